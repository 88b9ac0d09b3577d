"""How long this process has been running, counted from its start, before Python and its imports."""

import os
import time

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
