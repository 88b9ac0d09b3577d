"""Times the start of a run: from the start of the process to the end of the first step."""

import math
import os
import time
from typing import Callable, Dict

from estimator_train.system import machine

_IMPORT_TIME = time.perf_counter()
# The time at which run_train.sh completed its set-up, in seconds since boot (as in /proc/uptime).
# run_train.sh sets this variable, and then replaces itself by Python (exec). For Linux, the process
# started with run_train.sh, before the set-up.
START_TIME_VARIABLE = 'ESTIMATOR_TRAIN_STARTED_SECS'


def process_age_secs() -> float:
  """Returns the seconds since the start of this process, without the set-up by run_train.sh.

  On systems other than Linux, these are the seconds since the import of this module.
  """
  try:
    with open('/proc/self/stat') as stat, open('/proc/uptime') as uptime:
      # Field 22 is the start in clock ticks since boot; see proc(5). The second field, the name of
      # the command in parentheses, may contain spaces.
      start_secs = int(stat.read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK')
      set_up_end_secs = float(os.environ.get(START_TIME_VARIABLE, '0'))
      return round(float(uptime.read().split()[0]) - max(start_secs, set_up_end_secs), 2)
  except (OSError, ValueError, IndexError):
    return time.perf_counter() - _IMPORT_TIME


def uptime_text() -> str:
  """Returns the seconds since boot, as text for START_TIME_VARIABLE; '0' if they are unknown."""
  return (machine.read_kernel_file('/proc/uptime').split() or ['0'])[0]


class StartUpTimer:
  """Measures the phases from the start of the process to the end of its first training step.

  If the first step is repeated after a recovery, the last phase ends with the repeated step.

  Attributes:
    secs_by_phase: the duration of each phase that has ended, in order. The first phase, `import`,
      ends when this object is made.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter,
               process_age: Callable[[], float] = process_age_secs) -> None:
    self.secs_by_phase: Dict[str, float] = {'import': process_age()}
    self._clock = clock
    self._phase_began_at = clock()

  def restart(self) -> None:
    """Discards all phases, and begins the first phase."""
    self.secs_by_phase = {}
    self._phase_began_at = self._clock()

  def secs_since_start(self) -> float:
    return sum(self.secs_by_phase.values()) + self._clock() - self._phase_began_at

  def end_phase(self, phase: str) -> None:
    """Adds the time since the previous phase ended to a phase."""
    now = self._clock()
    self.secs_by_phase[phase] = self.secs_by_phase.get(phase, 0.) + now - self._phase_began_at
    self._phase_began_at = now

  def end_first_step(self, waited_secs: float) -> None:
    """Ends the phases `first_batch` (the wait for input) and `first_step` (the rest of the step).

    Args:
      waited_secs: how long the first step waited for its batch; nan if this was not measured, so
        that there is no phase `first_batch`.
    """
    self.end_phase('first_step')
    if not math.isnan(waited_secs):
      first_step = self.secs_by_phase.pop('first_step')
      self.secs_by_phase['first_batch'] = self.secs_by_phase.get('first_batch', 0.) + waited_secs
      self.secs_by_phase['first_step'] = first_step - waited_secs
