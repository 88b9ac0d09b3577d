"""Recommends how often to save checkpoints, from the time of a save and the number of tasks."""

import math
import os
from typing import Any, Optional

from estimator_train.doctor.check_results import CheckResult, ok, warning
from estimator_train.files import stored

# A task is assumed to be lost once in this time: few machines fail more often.
_TASK_FAILURE_INTERVAL_SECS = 30 * 86400.
# Near its optimum, the interval has little effect.
_TOLERATED_FACTOR = 4.


def young_interval(save_secs: float, failure_interval_secs: float) -> float:
  """Returns the interval between checkpoints that wastes the least time, by Young (1974).

  Args:
    save_secs: time of saving a checkpoint.
    failure_interval_secs: mean time between failures of the run.
  """
  return math.sqrt(2 * save_secs * failure_interval_secs)


def daly_interval(save_secs: float, failure_interval_secs: float) -> float:
  """Returns the interval by Daly (2006), which is also valid for slow saves and frequent failures.

  See young_interval for the arguments.
  """
  if save_secs >= 2 * failure_interval_secs:
    return failure_interval_secs
  ratio = math.sqrt(save_secs / (2 * failure_interval_secs))
  return young_interval(save_secs, failure_interval_secs) * (
      1 + ratio / 3 + ratio ** 2 / 9) - save_secs


def read_save_secs(model_dir: str) -> Optional[float]:
  """Returns the mean time of saving a checkpoint in the last run; None if none was measured."""
  try:
    throughput = stored.load(os.path.join(model_dir, 'throughput.json'), stored.parse_json) or {}
    pauses: Any = throughput['pauses']['checkpoint']
    return float(pauses['secs']) / float(pauses['count'])
  except (stored.DamagedFile, ValueError, KeyError, TypeError, ZeroDivisionError):
    return None


def check_checkpoint_interval(save_secs: float, num_tasks: int,
                              interval_secs: Optional[float]) -> CheckResult:
  """Compares `--save_checkpoints_secs` with the interval that wastes the least time.

  Args:
    save_secs: time of saving a checkpoint.
    num_tasks: number of tasks that train, each of which may be lost.
    interval_secs: `--save_checkpoints_secs` or its default; None if checkpoints are saved by steps.
  """
  name = 'checkpoint interval'
  best = daly_interval(save_secs, _TASK_FAILURE_INTERVAL_SECS / num_tasks)
  found = ('a checkpoint takes {:.2g} s; if each of {} task(s) is lost once in {:.0f} days, saving '
           'every {:.0f} s wastes the least time').format(
               save_secs, num_tasks, _TASK_FAILURE_INTERVAL_SECS / 86400, best)
  if interval_secs is not None and best < interval_secs / _TOLERATED_FACTOR:
    return warning(name, found + ', not every {:.0f} s'.format(interval_secs),
                   'set --save_checkpoints_secs={:.0f}'.format(max(best, 1)))
  return ok(name, found)
