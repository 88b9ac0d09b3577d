"""A sweep: its points, the flags of each, and what stays of those that were run."""

import json
import os
import random
import shutil
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train import settings as settings_lib
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.threads import available_cores
from estimator_train.files import atomic
from estimator_train.process.child_process import ChildRun
from estimator_train.run_dir.run_files import FLAGS_FILE, RunDir
from estimator_train.settings import Settings, groups

FOLDER = 'points'
LOG_FILE = 'log.txt'
_FIGURES_FILE = 'throughput.json'
# Written last: a point without it is not done.
_DONE_FILE = 'done.json'
# The last: what the workers but the first have written.
_KEPT = (FLAGS_FILE, LOG_FILE, _FIGURES_FILE, 'logs')

GPU, CPU, WORKER = 'gpu', 'cpu', 'worker'
WEAK, STRONG, BOTH = 'weak', 'strong', 'both'
REAL, SYNTHETIC = 'real', 'synthetic'
# After the warm-up, where --train_steps does not say: some seconds of a small network on a CPU.
_TIMED_STEPS = 20
_NEVER_SECS = 2 ** 31 - 1


class Point(NamedTuple):
  """One run of a sweep.

  Attributes:
    unit: what there are more and more of: replicas on a GPU or CPU each, or WORKERs.
    count: of them.
    scaling: WEAK (a unit's batch stays), STRONG (the global batch stays), or BOTH: with one unit
      they are the same.
    input: REAL or SYNTHETIC.
    repeat: counts from 1.
  """
  unit: str
  count: int  # type: ignore[assignment]  # It hides tuple's method, as index does in Task.
  scaling: str
  input: str
  repeat: int

  @property
  def name(self) -> str:
    """The name of its folder."""
    return '{}{}-{}-{}-{}'.format(*self)

  def in_words(self) -> str:
    return '{}, {} {}{}, {} input, repeat {}'.format(
        'weak and strong' if self.scaling == BOTH else self.scaling, self.count,
        WORKER if self.unit == WORKER else 'replica', '' if self.count == 1 else 's', self.input,
        self.repeat)


class Launch(NamedTuple):
  """What to run for a point: the arguments of child_process.run."""
  arguments: List[str]
  module: str = 'estimator_train'
  cores: Sequence[int] = ()


class Outcome(NamedTuple):
  """What came of a point.

  Attributes:
    point: which.
    secs: the life of its process.
    figures: its throughput.json; None where it failed.
    code: of its process.
    error: why it failed; None where it did not.
  """
  point: Point
  secs: float
  figures: Optional[Dict[str, Any]]
  code: int = 0
  error: Optional[str] = None


def train_steps(settings: Settings) -> int:
  """Returns the steps of every point, with those of the warm-up."""
  return settings.train_steps or settings.throughput_warmup_steps + _TIMED_STEPS


def plan(settings: Settings, unit: str, most: int) -> List[Point]:
  """Returns the points in the order in which to run them.

  Each round has every point once, in an order of its own: what else the machine does for a while
  meets points of all kinds.

  Args:
    settings: of the sweep.
    unit: GPU, CPU or WORKER.
    most: the largest number of them.
  """
  inputs = [SYNTHETIC] if settings.dataset == 'synthetic' else [REAL, SYNTHETIC]
  points = []
  for repeat in range(1, settings.repeats + 1):
    of_this_round = [
        Point(unit, count, scaling, kind, repeat) for count in counts(most)
        for scaling in ((BOTH,) if count == 1 else (WEAK, STRONG)) for kind in inputs]
    random.Random('{} {}'.format(settings.seed, repeat)).shuffle(of_this_round)
    points.extend(of_this_round)
  return points


def counts(most: int) -> List[int]:
  """Returns the powers of two up to a number, and that number."""
  return sorted({2 ** power for power in range(most.bit_length())} | {most})


def global_batch_size(point: Point, settings: groups.Optimizer) -> int:
  """Returns the examples of a step; `--batch_size` is that of the run of a single unit."""
  return settings.batch_size * (point.count if point.scaling == WEAK else 1)


def settings_of(point: Point, settings: Settings, dataset: DataSet) -> Settings:
  """Returns the settings of the run that measures a point; the devices of a worker are those of
  the settings given."""
  changed = settings.evolve(
      mode='train', model_dir=folder(point, settings[groups.Run]), export_dir=None,
      train_steps=train_steps(settings),
      batch_size=global_batch_size(point, settings[groups.Optimizer]),
      eval_every_steps=None, early_stopping_steps=None, stop_at_accuracy=None,
      save_checkpoints_steps=None, save_checkpoints_secs=_NEVER_SECS,
      # What costs the same and cannot fail: a loss that is not finite would end the run.
      weights='none', learning_rate=1e-9, lr_schedule='constant',
      lr_boundaries_epochs=(), lr_values=(), lr_warmup_epochs=0., report_page=False)
  if point.unit != WORKER:
    changed = changed.evolve(num_gpus=point.count if point.unit == GPU else 0,
                             num_cpu_replicas=point.count if point.unit == CPU else 0)
  if point.input == SYNTHETIC and not dataset.is_synthetic:
    # As much work for the model; made-up examples cannot be counted by class.
    changed = changed.evolve(dataset='synthetic', train_pattern=None, eval_pattern=None,
                             image_size=dataset.image_shape, labels=dataset.labels,
                             class_weights='none')
  return changed


def cpu_workers() -> Tuple[int, int]:
  """Returns how many workers the cores are for at most, a power of two, and the cores of each.

  A worker has as many in a small point as in the largest, or small ones would be too fast. Two on a
  single core have none of their own.
  """
  cores = available_cores()
  most = max(2, 2 ** (cores.bit_length() - 1))
  return most, cores // most


def launch(point: Point, settings: Settings, dataset: DataSet) -> Launch:
  """Returns what to run for a point; its settings are those of settings_of."""
  arguments = settings_lib.to_arguments(settings_of(point, settings, dataset))
  if point.unit != WORKER:
    return Launch(arguments)
  cores = 0 if settings.num_gpus else cpu_workers()[1]
  if point.count == 1:
    return Launch(arguments, cores=sorted(os.sched_getaffinity(0))[:cores])
  places = ['--local_workers={}'.format(point.count), '--local_cores={}'.format(cores),
            '--local_gpus={}'.format(settings.num_gpus)]
  return Launch(places + arguments, 'estimator_train.launcher.local_cluster')


def folder(point: Point, settings: groups.Run) -> str:
  """Returns the point's own folder."""
  return RunDir(settings.model_dir).file(FOLDER, point.name)


def read_done(points: Sequence[Point], settings: groups.Run) -> List[Outcome]:
  """Returns the points that an earlier start of this sweep is done with."""
  outcomes = []
  for point in points:
    try:
      done = _read(point, settings, _DONE_FILE)
      outcomes.append(Outcome(point, done['secs'], _read(point, settings, _FIGURES_FILE)))
    except (OSError, ValueError):
      continue
  return outcomes


def begin(point: Point, settings: groups.Run) -> str:
  """Makes the point's folder, without what a start that was killed has left there; returns the
  path of its log."""
  path = folder(point, settings)
  shutil.rmtree(path, ignore_errors=True)
  os.makedirs(path)
  return os.path.join(path, LOG_FILE)


def end(point: Point, settings: groups.Run, ran: ChildRun, secs: float) -> Outcome:
  """Keeps what is small of a point's folder, and its being done, unless it failed."""
  path = folder(point, settings)
  for name in set(os.listdir(path)).difference(_KEPT):
    each = os.path.join(path, name)
    if os.path.isdir(each):
      shutil.rmtree(each)
    else:
      os.remove(each)
  if ran.code:
    return Outcome(point, secs, None, ran.code, ran.error)
  figures = _read(point, settings, _FIGURES_FILE)
  atomic.write_json(os.path.join(path, _DONE_FILE), {'point': point.name, 'secs': secs})
  return Outcome(point, secs, figures)


def _read(point: Point, settings: groups.Run, name: str) -> Dict[str, Any]:
  with open(os.path.join(folder(point, settings), name), encoding='utf-8') as file:
    return json.load(file)
