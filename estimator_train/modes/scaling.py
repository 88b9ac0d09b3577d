"""`--mode=scaling`: measures how the rate grows with the replicas, each run in its own process."""

import logging
import os
import signal
import statistics
import time
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train import child_runs, model_dir, settings as settings_lib, sweep, whole_files
from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.machine import tensorflow_import
from estimator_train.reports import page, scaling
from estimator_train.settings import Settings
from estimator_train.sweep import Outcome, Point

_LOG = logging.getLogger('estimator_train')
# What may change from one start of a sweep to the next.
_FREE_FLAGS = ('model_dir', 'repeats', 'verbosity')
RunChild = Callable[[Sequence[str], str], child_runs.ChildRun]


def run(settings: Settings, run_child: RunChild = child_runs.run) -> Dict[str, Any]:
  """Returns the result: the rate, speed-up and efficiency at each number of replicas.

  Raises:
    UserError: every point failed; it has the result.
  """
  assert settings.model_dir is not None
  model_dir.check_flags(settings, _FREE_FLAGS)
  dataset = registry.describe(settings._replace(mode='train'))
  device, most = _devices(settings)
  model_dir.make(os.path.join(settings.model_dir, sweep.FOLDER))
  # Another start of this sweep would take the running point's folder away.
  with whole_files.open_locked(os.path.join(settings.model_dir, sweep.FOLDER, 'lock')):
    model_dir.record_flags(settings)
    outcomes = _run_points(sweep.plan(settings, device, most), settings, dataset, run_child)
  result = scaling.write(settings, outcomes)
  page.write_after(settings)
  if len(result['failures']) == len(outcomes):
    raise UserError('no point of the sweep could be run', result['failures'][0]['error'],
                    'the logs are in ' + os.path.join(settings.model_dir, sweep.FOLDER), result)
  return result


def _devices(settings: Settings) -> Tuple[str, int]:
  """Returns of what the replicas are, and the largest number of them."""
  if settings.num_gpus > 0:
    return sweep.GPU, settings.num_gpus
  if settings.num_cpu_replicas:
    return sweep.CPU, settings.num_cpu_replicas
  gpus = tensorflow_import.count_gpus() if settings.num_gpus < 0 else 0
  if gpus:
    return sweep.GPU, gpus
  cores = len(os.sched_getaffinity(0))
  most = max(2, 2 ** (cores.bit_length() - 1))
  _LOG.info('no GPU: 1 to %d replicas on logical CPU devices, for %d core(s)', most, cores)
  return sweep.CPU, most


def _run_points(points: List[Point], settings: Settings, dataset: DataSet,
                run_child: RunChild) -> List[Outcome]:
  """Runs the points that are not done yet, one by one, and returns what came of all."""
  outcomes = sweep.read_done(points, settings)
  done = {outcome.point for outcome in outcomes}
  missing = [point for point in points if point not in done]
  if done:
    _LOG.info('%d of %d points are done already%s', len(done), len(points),
              '; going on with the others' if missing else '')
  try:
    with logging_redirect_tqdm([_LOG]), \
        tqdm(total=len(points), initial=len(done), unit='point', disable=None) as bar:
      for number, point in enumerate(missing, 1):
        outcomes.append(_run_point(point, settings, dataset, run_child))
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


def _run_point(point: Point, settings: Settings, dataset: DataSet,
               run_child: RunChild) -> Outcome:
  arguments = settings_lib.to_arguments(sweep.settings_of(point, settings, dataset))
  log = sweep.begin(point, settings)
  began = time.monotonic()
  ran = run_child(arguments, log)
  return sweep.end(point, settings, ran, time.monotonic() - began)


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
