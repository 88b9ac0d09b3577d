"""`--mode=scaling`: measures how the rate grows with the replicas, or with the workers.

Each run is in processes of its own.
"""

import logging
import signal
import statistics
import time
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.benchmarking import scaling_report, sweep
from estimator_train.benchmarking.sweep import Outcome, Point
from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.threads import available_cores
from estimator_train.doctor import tensorflow_import
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.process import child_process
from estimator_train.reports import page
from estimator_train.run_dir import run_files
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')
# What may change from one start of a sweep to the next.
_FREE_FLAGS = ('model_dir', 'repeats', 'verbosity')
RunChild = Callable[..., child_process.ChildRun]


def run(settings: Settings, run_child: RunChild = child_process.run,
        clock: Callable[[], float] = time.monotonic) -> Dict[str, Any]:
  """Returns the result: the rate, speed-up and efficiency at each number of replicas or workers.

  Args:
    settings: of the sweep.
    run_child: runs a point.
    clock: in seconds.

  Raises:
    UserError: every point failed; it has the result.
  """
  run_dir = run_files.RunDir(settings.model_dir)
  logs = run_dir.file(sweep.FOLDER)
  run_dir.check_flags(settings, _FREE_FLAGS)
  dataset = registry.describe(settings.evolve(mode='train'))
  unit, most, each = _units(settings)
  run_files.make_folder(logs)
  run_dir.record_flags(settings)
  outcomes = _run_points(sweep.plan(settings, unit, most), each, dataset, run_child, clock)
  result = scaling_report.write(each, outcomes)
  page.write_after(settings.model_dir, settings[groups.Reporting])
  if len(result['failures']) == len(outcomes):
    raise UserError('no point of the sweep could be run', result['failures'][0]['error'],
                    'the logs are in ' + logs, result)
  return result


def _units(settings: Settings) -> Tuple[str, int, Settings]:
  """Returns what there are more and more of, the most of them, and the settings of the runs."""
  if settings.scale_over == 'workers':
    return (sweep.WORKER,) + _workers(settings)
  return _devices(settings[groups.Devices]) + (settings,)


def _workers(settings: Settings) -> Tuple[int, Settings]:
  """Returns the most workers, and the settings of one."""
  settings = settings.evolve(distribution_strategy='multi_worker_mirrored')
  wants_gpus = settings.num_gpus and not settings.num_cpu_replicas
  gpus = tensorflow_import.count_gpus() if wants_gpus else 0
  if gpus or (wants_gpus and settings.num_gpus > 0):
    of_one = max(settings.num_gpus, 1)
    most = max(gpus // of_one, 1)
    _LOG.info('1 to %d workers with %d of %d GPU(s) each', most, of_one, gpus)
    return most, settings.evolve(num_gpus=of_one)
  most, cores = sweep.cpu_workers()
  _LOG.info('1 to %d workers, %s', most, 'each on {} core(s) of its own'.format(cores) if cores
            else 'which share the only core')
  return most, settings.evolve(
      num_gpus=0, num_cpu_replicas=max(settings.num_cpu_replicas, 1))


def _devices(settings: groups.Devices) -> Tuple[str, int]:
  """Returns of what the replicas are, and the largest number of them."""
  if settings.num_gpus > 0:
    return sweep.GPU, settings.num_gpus
  if settings.num_cpu_replicas:
    return sweep.CPU, settings.num_cpu_replicas
  gpus = tensorflow_import.count_gpus() if settings.num_gpus < 0 else 0
  if gpus:
    return sweep.GPU, gpus
  most, _ = sweep.cpu_workers()
  _LOG.info('no GPU: 1 to %d replicas on logical CPU devices, for %d core(s)', most,
            available_cores())
  return sweep.CPU, most


def _run_points(points: List[Point], settings: Settings, dataset: DataSet,
                run_child: RunChild, clock: Callable[[], float]) -> List[Outcome]:
  """Runs the points that are not done yet, one by one, and returns what came of all."""
  outcomes = sweep.read_done(points, settings[groups.Run])
  done = {outcome.point for outcome in outcomes}
  missing = [point for point in points if point not in done]
  if done:
    _LOG.info('%d of %d points are done already%s', len(done), len(points),
              '; going on with the others' if missing else '')
  try:
    with logging_redirect_tqdm([_LOG]), \
        tqdm(total=len(points), initial=len(done), unit='point', disable=None) as bar:
      for number, point in enumerate(missing, 1):
        outcomes.append(_run_point(point, settings, dataset, run_child, clock))
        left = _seconds_left(missing[number:], outcomes)
        bar.update()
        bar.set_postfix_str('about {:.0f} s left'.format(left))
        if bar.disable or outcomes[-1].error:
          _LOG.info('point %d/%d: %s: %s; about %.0f s left', len(outcomes), len(points),
                    point.in_words(), _in_words(outcomes[-1]), left)
  except (KeyboardInterrupt, StoppedBySignal) as stopped:
    raise _stopped(getattr(stopped, 'signum', signal.SIGINT),
                   sum(outcome.error is None for outcome in outcomes), len(points)) from stopped
  return outcomes


def _run_point(point: Point, settings: Settings, dataset: DataSet, run_child: RunChild,
               clock: Callable[[], float]) -> Outcome:
  launch = sweep.launch(point, settings, dataset)
  log = sweep.begin(point, settings[groups.Run])
  began = clock()
  ran = run_child(launch.arguments, log, launch.module, launch.cores)
  return sweep.end(point, settings[groups.Run], ran, clock() - began)


def _stopped(signum: int, done: int, count: int) -> StoppedBySignal:
  return StoppedBySignal(signum, 'stopped by {} with {} of {} points done; the same command goes '
                         'on from there'.format(signal.Signals(signum).name, done, count))


def _in_words(outcome: Outcome) -> str:
  if outcome.figures is None:
    return 'failed: {}'.format(outcome.error)
  return '{:,.0f} examples/sec'.format(outcome.figures['steady_examples_per_sec'])


def _seconds_left(missing: Iterable[Point], outcomes: Sequence[Outcome]) -> float:
  """Returns how long the points will take: as the same one in an earlier round, or as the mean."""
  secs = {outcome.point._replace(repeat=0): outcome.secs for outcome in outcomes}
  mean = statistics.mean(secs.values())
  return sum(secs.get(point._replace(repeat=0), mean) for point in missing)
