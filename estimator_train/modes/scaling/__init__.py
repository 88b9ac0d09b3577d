"""`--mode=scaling`: measures how throughput grows with the number of replicas or workers.

Each point of the sweep is a training run in new processes.
"""

import logging
import signal
import statistics
import time
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.data import built_in
from estimator_train.data.description import DataSet
from estimator_train.distribution.threads import available_cores
from estimator_train.doctor import installation
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.modes.scaling import points, report
from estimator_train.modes.scaling.points import Point, PointResult, RunChild
from estimator_train.reports import page
from estimator_train.run_dir import run_files
from estimator_train.settings import Settings, groups
from estimator_train.system import child_process
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')
# Flags that may differ when the mode is run again in the same model_dir.
_CHANGEABLE_FLAGS = ('model_dir', 'repeats', 'verbosity')


def run(settings: Settings, run_child: RunChild = child_process.run_program,
        clock: Callable[[], float] = time.monotonic) -> Dict[str, Any]:
  """Returns the result: rate, speed-up and efficiency for each number of replicas or workers.

  Args:
    settings: settings of the points.
    run_child: runs a point in a child process.
    clock: returns the time in seconds.

  Raises:
    UserError: every point failed; the error contains the result of the mode.
  """
  run_dir = run_files.RunDir(settings.run.model_dir)
  points_dir = run_dir.path_to(points.POINTS_FOLDER)
  run_dir.check_flags(settings, _CHANGEABLE_FLAGS)
  # The run of each point has mode='train', which affects the description: a data set must have
  # training examples, and the class names of image files are not read from `model_dir`.
  dataset = built_in.describe(settings.evolve(mode='train'))
  dataset.require_images('--mode=scaling')
  unit, max_count, base_settings = _choose_unit(settings)
  run_files.make_folder(points_dir)
  run_dir.record_flags(settings)
  results = _run_points(points.plan_points(settings, unit, max_count), base_settings, dataset,
                        run_child, clock)
  result = report.write_scaling_report(base_settings, results)
  page.write_page_of_finished_run(settings.run.model_dir, settings.reporting)
  if len(result['failures']) == len(results):
    raise UserError('all points of the sweep failed', result['failures'][0]['error'],
                    'see the logs in ' + points_dir, result)
  return result


def _choose_unit(settings: Settings) -> Tuple[str, int, Settings]:
  """Chooses what the sweep varies.

  Returns:
    The unit (GPU, CPU or WORKER) whose number varies, the largest number, and the settings that
    all points share.
  """
  if settings.experiments.scale_over == 'workers':
    return (points.WORKER,) + _choose_max_workers(settings)
  return _choose_max_replicas(settings.devices) + (settings,)


def _choose_max_workers(settings: Settings) -> Tuple[int, Settings]:
  """Returns the largest number of workers, and the settings of one worker."""
  if settings.devices.distribution_strategy != 'horovod':
    settings = settings.evolve(distribution_strategy='multi_worker_mirrored')
  # num_gpus=-1 means all GPUs.
  wants_gpus = settings.devices.num_gpus and not settings.devices.num_cpu_replicas
  gpus = installation.count_gpus() if wants_gpus else 0
  if gpus or (wants_gpus and settings.devices.num_gpus > 0):
    gpus_per_worker = max(settings.devices.num_gpus, 1)
    max_workers = max(gpus // gpus_per_worker, 1)
    _LOG.info('found %d GPU(s): measuring 1 to %d workers with %d GPU(s) each', gpus, max_workers,
              gpus_per_worker)
    return max_workers, settings.evolve(num_gpus=gpus_per_worker)
  max_workers, cores = points.plan_cpu_workers()
  _LOG.info('measuring 1 to %d workers, %s', max_workers,
            'each pinned to {} core(s)'.format(cores) if cores else 'which share the only core')
  return max_workers, settings.evolve(
      num_gpus=0, num_cpu_replicas=max(settings.devices.num_cpu_replicas, 1))


def _choose_max_replicas(settings: groups.Devices) -> Tuple[str, int]:
  """Returns the device type of the replicas, GPU or CPU, and the largest number of replicas."""
  if settings.num_gpus > 0:
    return points.GPU, settings.num_gpus
  if settings.num_cpu_replicas:
    return points.CPU, settings.num_cpu_replicas
  # num_gpus=-1 means all GPUs.
  gpus = installation.count_gpus() if settings.num_gpus < 0 else 0
  if gpus:
    return points.GPU, gpus
  max_replicas, _ = points.plan_cpu_workers()
  _LOG.info('without GPUs: measuring 1 to %d replicas on logical CPU devices, on %d core(s)',
            max_replicas, available_cores())
  return points.CPU, max_replicas


def _run_points(planned: Sequence[Point], settings: Settings, dataset: DataSet,
                run_child: RunChild, clock: Callable[[], float]) -> List[PointResult]:
  """Runs the points that are not complete yet, and returns the results of all points."""
  results = points.read_completed_points(planned, settings.run.folder)
  completed = {result.point for result in results}
  remaining = [point for point in planned if point not in completed]
  if completed:
    _LOG.info('%d of %d points are already complete%s', len(completed), len(planned),
              '; resuming with the others' if remaining else '')
  try:
    with logging_redirect_tqdm([_LOG]), \
        make_progress_bar(total=len(planned), initial=len(completed), unit='point') as bar:
      for number, point in enumerate(remaining, 1):
        results.append(points.run_point(point, settings, dataset, run_child, clock))
        left_secs = _estimate_secs(remaining[number:], results)
        bar.update()
        bar.set_postfix_str('about {:.0f} s left'.format(left_secs))
        if bar.disable or results[-1].error:
          _LOG.info('point %d/%d: %s: %s; about %.0f s left', len(results), len(planned),
                    point.describe(), _format_result(results[-1]), left_secs)
  except (KeyboardInterrupt, StoppedBySignal) as stopped:
    raise _make_stop_error(getattr(stopped, 'signum', signal.SIGINT),
                           sum(result.error is None for result in results),
                           len(planned)) from stopped
  return results


def _make_stop_error(signum: int, num_completed: int, num_points: int) -> StoppedBySignal:
  return StoppedBySignal(signum, 'stopped by {} with {} of {} points complete; the same command '
                         'resumes from there'.format(signal.Signals(signum).name, num_completed,
                                                     num_points))


def _format_result(result: PointResult) -> str:
  if result.figures is None:
    return 'failed: {}'.format(result.error)
  return '{:,.0f} examples/sec'.format(result.figures['steady_examples_per_sec'])


def _estimate_secs(remaining: Iterable[Point], results: Sequence[PointResult]) -> float:
  """Estimates how many seconds the remaining points will take in total.

  The estimate for a point is the time of the last result that differs only in `repeat`. If there is
  no such result, the estimate is the mean time of the points that have a result.
  """
  secs = {result.point._replace(repeat=0): result.secs for result in results}
  mean = statistics.mean(secs.values())
  return sum(secs.get(point._replace(repeat=0), mean) for point in remaining)
