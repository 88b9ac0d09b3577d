"""How long this process has been running, from before Python's imports, and what that went into."""

import math
import os
import time
from typing import Callable, Dict

_IMPORTED = time.perf_counter()

# run_train.sh notes here, on the clock of /proc/uptime, when it was done with setting up: exec
# keeps the process, and with it the time that the kernel tells.
STARTED_VARIABLE = 'ESTIMATOR_TRAIN_STARTED_SECS'


def process_age_secs() -> float:
  """Returns the seconds since the kernel started this process.

  Linux tells the start in clock ticks after boot (proc(5), field 22 of stat), to 10 ms. Elsewhere
  the count begins when this module is imported.
  """
  try:
    with open('/proc/self/stat') as stat, open('/proc/uptime') as uptime:
      # The second field is the command's name in brackets, and may hold blanks.
      started = int(stat.read().rpartition(')')[2].split()[19]) / os.sysconf('SC_CLK_TCK')
      noted = float(os.environ.get(STARTED_VARIABLE, '0'))
      return round(float(uptime.read().split()[0]) - max(started, noted), 2)
  except (OSError, ValueError, IndexError):
    return time.perf_counter() - _IMPORTED


def uptime() -> str:
  """Returns now, as STARTED_VARIABLE notes it; nothing that counts where that is unknown."""
  try:
    with open('/proc/uptime') as file:
      return file.read().split()[0]
  except OSError:
    return '0'


class StartUp:
  """What the time from the start of the process to the end of its first step goes into.

  Attributes:
    secs: by part, in the order in which they began: `import`, which is all that came before this
      object was made, and those that were ended since.
  """

  def __init__(self, clock: Callable[[], float] = time.perf_counter,
               process_age: Callable[[], float] = process_age_secs) -> None:
    self.secs: Dict[str, float] = {'import': process_age()}
    self._clock = clock
    self._since = clock()

  def end(self, part: str) -> None:
    """Adds what has passed since the last part ended to this one."""
    now = self._clock()
    self.secs[part] = self.secs.get(part, 0.) + now - self._since
    self._since = now

  def end_first_step(self, waited_secs: float) -> None:
    """Ends the last two parts: the first batch, which took so long, and the rest of its step.

    Args:
      waited_secs: nan where it was not observed; then there is one part.
    """
    self.end('first_step')
    if not math.isnan(waited_secs):
      first_step = self.secs.pop('first_step')
      self.secs.update(first_batch=waited_secs, first_step=first_step - waited_secs)
