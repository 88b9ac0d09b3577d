"""Times the start of a run: from the start of the process to the end of the first step."""

import math
import os
import time
from typing import Callable, Dict

from estimator_train.system import machine

_IMPORT_TIME = time.perf_counter()
# When its set-up is complete, run_train.sh sets this variable to the seconds since boot (as in
# /proc/uptime). Python then replaces run_train.sh in the same process (exec). The start time that
# Linux records for this process is therefore the start of run_train.sh, and includes the set-up.
START_TIME_VARIABLE = 'ESTIMATOR_TRAIN_STARTED_SECS'


def process_age_secs() -> float:
  """Returns the seconds since the start of this process, without the set-up by run_train.sh.

  Linux records the start in clock ticks since boot (proc(5), field 22 of stat). A tick is 10 ms
  long. On other systems, the age is measured from the import of this module.
  """
  try:
    with open('/proc/self/stat') as stat, open('/proc/uptime') as uptime:
      # The second field, the command's name in parentheses, may contain spaces.
      start_secs = int(stat.read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK')
      set_up_end_secs = float(os.environ.get(START_TIME_VARIABLE, '0'))
      return round(float(uptime.read().split()[0]) - max(start_secs, set_up_end_secs), 2)
  except (OSError, ValueError, IndexError):
    return time.perf_counter() - _IMPORT_TIME


def current_uptime() -> str:
  """Returns the seconds since boot as a value of START_TIME_VARIABLE; `0` if they are unknown."""
  return (machine.read_file('/proc/uptime').split() or ['0'])[0]


class StartUpTimer:
  """Measures the phases from the start of the process to the end of its first training step.

  If the first step is repeated after a recovery, the phases last until its repetition ends.

  Attributes:
    secs: the duration in seconds of each phase that has ended, by name, in order. The first phase,
      `import`, ends when this object is created.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter,
               process_age: Callable[[], float] = process_age_secs) -> None:
    self.secs: Dict[str, float] = {'import': process_age()}
    self._clock = clock
    self._phase_began_at = clock()

  def restart(self) -> None:
    """Measures from now on, not from the start of the process."""
    self.secs = {}
    self._phase_began_at = self._clock()

  def run_secs(self) -> float:
    """Returns the time since the beginning of the first phase."""
    return sum(self.secs.values()) + self._clock() - self._phase_began_at

  def end_phase(self, phase: str) -> None:
    """Adds the time since the end of the previous phase to the duration of `phase`."""
    now = self._clock()
    self.secs[phase] = self.secs.get(phase, 0.) + now - self._phase_began_at
    self._phase_began_at = now

  def end_first_step(self, waited_secs: float) -> None:
    """Ends the phases `first_batch` (the wait for input) and `first_step` (the rest of the step).

    Args:
      waited_secs: seconds that the first step waited for its batch. nan if the wait was not
        measured; the phase `first_batch` is then omitted.
    """
    self.end_phase('first_step')
    if not math.isnan(waited_secs):
      first_step = self.secs.pop('first_step')
      self.secs['first_batch'] = self.secs.get('first_batch', 0.) + waited_secs
      self.secs['first_step'] = first_step - waited_secs
