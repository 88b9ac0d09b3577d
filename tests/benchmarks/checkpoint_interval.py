"""Simulates failures and stragglers in clusters of up to 1,024 workers, and checkpoints.

  python tests/benchmarks/checkpoint_interval.py [--save_secs=5] [--failure_days=30]
      [--restart_secs=90] [--deviation=0.05]

For each number of workers, prints the interval between checkpoints that wastes the least time in
the simulation, and the intervals of Young and Daly. Useful time is the fraction of the time that is
neither spent on saving, nor on steps that are repeated after a failure, nor on restarts.

- `save_secs`: time of saving a checkpoint, while all workers wait.
- `failure_days`: mean time until one worker is lost; exponentially distributed.
- `restart_secs`: from the loss of a worker until the first step of the resumed run.
- `deviation`: relative standard deviation of the step time of one worker. All workers wait for the
  slowest one, which the column `stragglers` shows: the step time relative to that of one worker.
"""

import math
import sys
from typing import Dict

import numpy as np

DEFAULTS = {'save_secs': 5., 'failure_days': 30., 'restart_secs': 90., 'deviation': .05}
WORKERS = (1, 4, 16, 64, 256, 1024)
FACTORS = np.geomspace(1 / 8, 8, 25)  # Of Daly's interval.
NUM_FAILURES = 20000
NUM_STEPS = 2000


def young_interval(save_secs: float, failure_secs: float) -> float:
  """Returns the interval between checkpoints that wastes the least time, by Young (1974).

  Args:
    save_secs: time of saving a checkpoint.
    failure_secs: mean time between failures of the run.
  """
  return math.sqrt(2 * save_secs * failure_secs)


def daly_interval(save_secs: float, failure_secs: float) -> float:
  """Returns the interval by Daly (2006), which is also valid for slow saves and frequent failures.

  See young_interval for the arguments.
  """
  if save_secs >= 2 * failure_secs:
    return failure_secs
  ratio = math.sqrt(save_secs / (2 * failure_secs))
  return young_interval(save_secs, failure_secs) * (1 + ratio / 3 + ratio ** 2 / 9) - save_secs


def simulate(interval_secs: float, failure_times: np.ndarray, save_secs: float,
             restart_secs: float) -> float:
  """Returns the useful fraction of the time.

  Args:
    interval_secs: time of training between two checkpoints.
    failure_times: seconds of training and saving from each restart to the next failure.
    save_secs, restart_secs: see the documentation of this module.
  """
  # Work since the last complete checkpoint is lost.
  useful = np.floor(failure_times / (interval_secs + save_secs)) * interval_secs
  return float(useful.sum() / (failure_times + restart_secs).sum())


def slowest_of(workers: int, deviation: float, random: np.random.RandomState) -> float:
  """Returns the mean time of the slowest worker, relative to the mean time of a worker."""
  times = random.normal(1., deviation, [NUM_STEPS, workers])
  return float(times.max(axis=1).mean())


def main() -> None:
  """Prints a row for each number of workers."""
  values: Dict[str, float] = dict(DEFAULTS)
  for argument in sys.argv[1:]:
    name, _, value = argument.lstrip('-').partition('=')
    if name not in values:
      sys.exit('unknown argument {}: choose from {}'.format(argument, ', '.join(values)))
    values[name] = float(value)
  print('| workers | stragglers | hours between failures | Young | Daly | simulated | useful time, '
        'Daly | simulated | every 600 s |\n|---|---|---|---|---|---|---|---|---|')
  random = np.random.RandomState(0)
  for workers in WORKERS:
    failure_secs = values['failure_days'] * 86400 / workers
    failure_times = random.exponential(failure_secs, NUM_FAILURES)
    young = young_interval(values['save_secs'], failure_secs)
    daly = daly_interval(values['save_secs'], failure_secs)

    def useful(interval: float, times: np.ndarray = failure_times) -> float:
      return simulate(interval, times, values['save_secs'], values['restart_secs'])

    fractions = [useful(daly * factor) for factor in FACTORS]
    best = daly * FACTORS[int(np.argmax(fractions))]
    print('| {:,} | {:.2f} | {:,.1f} | {:,.0f} s | {:,.0f} s | {:,.0f} s | {:.2%} | {:.2%} | '
          '{:.2%} |'.format(workers, slowest_of(workers, values['deviation'], random),
                            failure_secs / 3600, young, daly, best, useful(daly), max(fractions),
                            useful(600.)))


if __name__ == '__main__':
  main()
