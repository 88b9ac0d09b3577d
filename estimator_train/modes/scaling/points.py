"""Plans and runs the points of a scaling sweep; each point is a training run."""

import os
import random
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from estimator_train import settings as settings_lib
from estimator_train.data import DataSet
from estimator_train.modes.parts import Part, RunChild
from estimator_train.reports import report_files
from estimator_train.run_dir import FLAGS_FILE
from estimator_train.settings import Settings
from estimator_train.system import json_values, storage
from estimator_train.system.child_process import ChildRun
from estimator_train.system.machine import available_cores

POINTS_FOLDER = 'points'
LOG_FILE = 'log.txt'
# Written last, so that only the folder of a completed point has this file.
_COMPLETION_FILE = 'done.json'
_CONSEQUENCE_OF_DAMAGE = 'the point runs again'
_THROUGHPUT_CHECK = json_values.fields({'examples_per_sec': json_values.number(low=1e-9)},
                                       report_files.THROUGHPUT_FIELDS)
# The folder `logs` has the output of all workers except the first.
_FILES_TO_KEEP = (FLAGS_FILE, LOG_FILE, 'throughput.json', 'logs')

GPU, CPU, WORKER = 'gpu', 'cpu', 'worker'
WEAK, STRONG, BOTH = 'weak', 'strong', 'both'
REAL, SYNTHETIC = 'real', 'synthetic'
# The number of steps after the warm-up, which a small network on a CPU trains in a few seconds.
_DEFAULT_TIMED_STEPS = 20
_NEVER_SECS = 2 ** 31 - 1  # Longer than any run.


class Point(NamedTuple):
  """One run of a sweep.

  Attributes:
    unit: GPU or CPU if the number of replicas varies, WORKER if the number of workers varies.
    scaling: WEAK keeps the batch size per unit constant. STRONG keeps the global batch size
      constant. BOTH is for a single unit, where weak and strong scaling are the same.
    repeat: the number of the repeat, from 1.
  """
  unit: str
  count: int  # type: ignore[assignment]  # Hides tuple.count.
  scaling: str
  input: str
  repeat: int

  @property
  def name(self) -> str:
    return '{}{}-{}-{}-{}'.format(*self)

  @property
  def description(self) -> str:
    return '{}, {} {}{}, {} input, repeat {}'.format(
        'weak and strong' if self.scaling == BOTH else self.scaling, self.count,
        WORKER if self.unit == WORKER else 'replica', '' if self.count == 1 else 's', self.input,
        self.repeat)

  def folder(self, model_dir: str) -> str:
    return os.path.join(model_dir, POINTS_FOLDER, self.name)

  def global_batch_size(self, batch_size: int) -> int:
    """Returns `--batch_size`, multiplied by the number of units if the scaling is weak."""
    return batch_size * (self.count if self.scaling == WEAK else 1)


def count_steps_per_point(settings: Settings) -> int:
  """Returns the number of steps of each point, including the warm-up."""
  return (settings.duration.train_steps
          or settings.reporting.throughput_warmup_steps + _DEFAULT_TIMED_STEPS)


def plan_points(settings: Settings, unit: str, max_count: int) -> List[Point]:
  """Returns the points in the order in which to run them.

  Each repeat has every combination of count, scaling and input once, in a random order of its own,
  so that other load on the machine affects all combinations alike.
  """
  inputs = [SYNTHETIC] if settings.data.dataset == 'synthetic' else [REAL, SYNTHETIC]
  points = []
  for repeat in range(1, settings.experiments.repeats + 1):
    points_of_repeat = [
        Point(unit, count, scaling, input_name, repeat) for count in list_unit_counts(max_count)
        for scaling in ((BOTH,) if count == 1 else (WEAK, STRONG)) for input_name in inputs]
    random.Random('{} {}'.format(settings.optimizer.seed, repeat)).shuffle(points_of_repeat)
    points.extend(points_of_repeat)
  return points


def list_unit_counts(max_count: int) -> List[int]:
  """Returns the counts to measure: the powers of two up to `max_count`, and `max_count` itself."""
  return sorted({2 ** power for power in range(max_count.bit_length())} | {max_count})


def plan_cpu_workers() -> Tuple[int, int]:
  """Returns the largest number of workers on the available cores, and the cores per worker.

  The number of workers is a power of two, and at least two. If there is only one core, all workers
  share it, and the number of cores per worker is 0.
  """
  # A worker has the same number of cores at every point, so that rates are comparable.
  cores = available_cores()
  max_workers = max(2, 2 ** (cores.bit_length() - 1))
  return max_workers, cores // max_workers


def make_point_settings(point: Point, settings: Settings, dataset: DataSet) -> Settings:
  """Returns the settings of the training run of a point.

  Args:
    settings: the settings of the sweep. If the unit is WORKER, the device flags are for one worker.
  """
  # Random weights and a tiny learning rate do not change the cost of a step. The tiny learning rate
  # keeps the loss finite.
  run_settings = settings.with_constant_rate(
      1e-9, weights='none', mode='train', model_dir=point.folder(settings.run.required_model_dir),
      export_dir=None, report_page=False, train_steps=count_steps_per_point(settings),
      batch_size=point.global_batch_size(settings.optimizer.batch_size),
      eval_every_epochs=None, eval_every_steps=None, early_stopping_epochs=None,
      early_stopping_steps=None, stop_at_accuracy=None,
      save_checkpoints_steps=None, save_checkpoints_secs=_NEVER_SECS)
  if point.unit != WORKER:
    run_settings = run_settings.evolve(num_gpus=point.count if point.unit == GPU else 0,
                                       num_cpu_replicas=point.count if point.unit == CPU else 0)
  if point.input == SYNTHETIC and not dataset.is_synthetic:
    # The image shape and the class names stay the same, so that a step takes the same time. Class
    # weights are not used, because synthetic data has no class counts.
    run_settings = run_settings.evolve(
        dataset='synthetic', train_pattern=None, eval_pattern=None, validation_fraction=None,
        image_size=dataset.image_shape, labels=dataset.labels, class_weights='none',
        class_sampling='natural', augment='none', mixup_alpha=0.)
  return run_settings


def make_part(point: Point, settings: Settings, dataset: DataSet) -> Part:
  """Makes the part that runs a point; see `make_point_settings` for `settings`."""
  arguments = settings_lib.to_arguments(make_point_settings(point, settings, dataset))
  module, cores, cores_per_worker = 'estimator_train', [], 0
  if point.unit == WORKER and not settings.devices.num_gpus:
    cores_per_worker = plan_cpu_workers()[1]
  if point.unit == WORKER and point.count > 1:
    module = 'estimator_train.launcher.local_cluster'
    arguments = ['--local_workers={}'.format(point.count),
                 '--local_cores={}'.format(cores_per_worker),
                 '--local_gpus={}'.format(settings.devices.num_gpus), *arguments]
  else:
    cores = sorted(os.sched_getaffinity(0))[:cores_per_worker]
  return Part(point.name, point.description, arguments,
              os.path.join(point.folder(settings.run.required_model_dir), LOG_FILE), module, cores)


def run_in_empty_folder(part: Part, run_child: RunChild) -> ChildRun:
  """Runs the part of a point in its folder, in which only _FILES_TO_KEEP remain after the run."""
  folder = os.path.dirname(part.log_path)
  shutil.rmtree(folder, ignore_errors=True)
  os.makedirs(folder)
  child = run_child(part.arguments, part.log_path, part.module, part.cores)
  for name in set(os.listdir(folder)).difference(_FILES_TO_KEEP):
    path = os.path.join(folder, name)
    if os.path.isdir(path):
      shutil.rmtree(path)
    else:
      os.remove(path)
  return child


def mark_as_complete(folder: str) -> Dict[str, Any]:
  """Records that the point in this folder is complete, and returns its reports by name."""
  throughput = storage.load_json(report_files.path_to(folder, 'throughput'), _THROUGHPUT_CHECK)
  storage.write_json(os.path.join(folder, _COMPLETION_FILE), {'point': os.path.basename(folder)})
  return {'throughput': throughput}


def read_complete_reports(folder: str) -> Optional[Dict[str, Any]]:
  """Returns the reports of the point in this folder by name; None if the point is incomplete."""
  completion = storage.load_json_or_warn(os.path.join(folder, _COMPLETION_FILE),
                                         json_values.fields({'point': json_values.text}),
                                         _CONSEQUENCE_OF_DAMAGE)
  throughput = storage.load_json_or_warn(
      report_files.path_to(folder, 'throughput'), _THROUGHPUT_CHECK, _CONSEQUENCE_OF_DAMAGE)
  is_complete = completion is not None and completion['point'] == os.path.basename(folder)
  return {'throughput': throughput} if is_complete and throughput is not None else None
