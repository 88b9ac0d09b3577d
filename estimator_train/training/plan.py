"""What a run is going to do, found out before its model is built: data, devices and steps."""

import logging
import time
from typing import Any, Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.cluster.worker import ALONE, EVALUATOR, Worker
from estimator_train.datasets import download, registry as datasets
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.devices import find_devices, ready
from estimator_train.distribution.engines import make_engine
from estimator_train.distribution.engines.engine import Engine
from estimator_train.errors import PeerLost, UserError
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.source import BadImage
from estimator_train.process.start_up import StartUp
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups, total_train_steps
from estimator_train.training import schedules
from estimator_train.training.checkpoints import chosen_checkpoint, recovery, save_hook
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.early_stopping import StopReason
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
_RETRY_SECS = 1.


class Data(NamedTuple):
  """The examples of a run.

  Attributes:
    dataset: where they are.
    sizes: how many each split has.
    skipped: the images besides, which cannot be decoded.
  """
  dataset: DataSet
  sizes: inputs.SplitSizes
  skipped: List[BadImage]


class Plan(NamedTuple):
  """What a run is going to do.

  Attributes:
    settings: what was asked for.
    run_dir: the folder of the run.
    data: the examples that it reads.
    engine: the devices and processes that it runs on.
    checkpoint: that it resumes from, or evaluates.
    examples_seen: the examples that the steps up to the checkpoint's took.
    stop_step: the global step to train up to; None where the run does not train.
    schedule: the learning rate; a model that is compiled already has its own.
    stop_reason: why an evaluation stopped the training before; None where none did.
  """
  settings: Settings
  run_dir: RunDir
  data: Data
  engine: Engine
  checkpoint: recovery.Found
  examples_seen: int
  stop_step: Optional[int]
  schedule: Schedule
  stop_reason: Optional[StopReason]

  @property
  def first_step(self) -> int:
    """The global step of the checkpoint."""
    return self.checkpoint.step

  @property
  def conditions(self) -> Dict[str, Any]:
    """What a figure of this run depends on, by the names in the reports."""
    engine = self.engine
    return {
        'global_batch_size': self.settings.batch_size,
        'per_replica_batch_size': engine.batch_size,
        'num_replicas': engine.num_replicas,
        'num_workers': engine.size,
        'examples_per_step': engine.examples_per_step,
        'dataset': self.settings.dataset,
        'model': self.settings.model,
        'distribution_strategy': self.settings.distribution_strategy,
        'devices': list(engine.devices.labels),
        'dtype': self.settings.dtype,
        'enable_xla': self.settings.enable_xla,
        'tensorflow_version': tf.version.VERSION,
    }

  @property
  def skipped_images(self) -> Dict[str, Any]:
    """What a result reports of skipped images; nothing unless skipping them was allowed."""
    if self.settings.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.data.skipped]}


def make_plan(settings: Settings, start_up: StartUp, worker: Worker = ALONE) -> Plan:
  """Gets and checks the data, and finds the devices, the checkpoint and the steps.

  Args:
    settings: of the run.
    start_up: gets the part `data`.
    worker: which process of the run this is.

  Raises:
    UserError: something that was given is wrong; nothing has been trained yet.
  """
  run_dir = RunDir(settings.model_dir)
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  _check_evaluator(settings[groups.Evaluation], worker)
  if worker.role == EVALUATOR:
    _wait_for_checkpoint(run_dir, settings.start_timeout_secs)
  devices = find_devices(settings[groups.Devices])
  ready(settings[groups.Devices], devices, settings.trains)
  engine = make_engine(settings, worker, devices)
  checkpoint = _find_checkpoint(settings, run_dir, worker)
  stop_reason = early_stopping.read(
      run_dir, settings[groups.Evaluation], checkpoint.step) if settings.trains else None
  data = _prepare_data(settings, run_dir)
  start_up.end('data')
  schedule = Schedule(settings.learning_rate)
  plan = Plan(settings, run_dir, data, engine, checkpoint, 0, None, schedule, stop_reason)
  return _with_steps(plan) if settings.trains else plan


def _with_steps(plan: Plan) -> Plan:
  """Returns the plan of a training with its steps and its schedule."""
  settings, num_examples = plan.settings, plan.data.sizes.train
  per_step = plan.engine.examples_per_step
  seen = plan.run_dir.examples_seen(plan.first_step, per_step)
  stop_step = total_train_steps(settings, num_examples, per_step, plan.first_step, seen)
  return plan._replace(examples_seen=seen, stop_step=stop_step, schedule=schedules.make(
      settings, num_examples, per_step, stop_step))


def _check_evaluator(settings: groups.Evaluation, worker: Worker) -> None:
  """Raises a UserError for flags that need the chief to evaluate, where another task does."""
  if worker.has_evaluator and (settings.early_stopping_steps or settings.stop_at_accuracy):
    raise UserError('a task of type evaluator cannot stop the others',
                    '--early_stopping_steps or --stop_at_accuracy with an evaluator in TF_CONFIG',
                    'leave the evaluator out, so that the chief evaluates, or the flags')


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> None:
  """Waits until the chief has saved a first checkpoint.

  Raises:
    PeerLost: there is none within `--start_timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while tf.train.latest_checkpoint(run_dir.path) is None:
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint came to {} for {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_RETRY_SECS)


def _find_checkpoint(settings: Settings, run_dir: RunDir, worker: Worker) -> recovery.Found:
  """Finds the checkpoint to resume from, or to evaluate."""
  if not settings.trains:
    return recovery.Found(*chosen_checkpoint.resolve(
        settings[groups.Run], settings.checkpoint), passed_over=[])
  if worker.role == EVALUATOR:  # The chief may delete what it reads.
    return recovery.Found(*save_hook.latest(run_dir.path), passed_over=[])
  return recovery.find(run_dir.path)


def _prepare_data(settings: Settings, run_dir: RunDir) -> Data:
  """Describes, gets and checks the examples."""
  dataset = _describe(settings)
  run_dir.make()
  skipped: List[BadImage] = []
  if settings.on_bad_image == 'skip':
    dataset, skipped = inputs.skip_bad(dataset, settings[groups.Input], run_dir.path)
  return Data(dataset, inputs.check_files(dataset, settings), skipped)


def _describe(settings: Settings) -> DataSet:
  """Describes the data set, gets published files that are missing, and logs its classes."""
  dataset = datasets.describe(settings)
  if dataset.files:
    assert settings.data_dir is not None
    download.fetch(dataset.files, settings.data_dir)
  chosen_checkpoint.check_labels(settings.model_dir, settings.checkpoint, dataset.labels)
  if settings.trains and inputs.make_source(dataset, dataset.train).lists_classes:
    counts = inputs.class_counts(dataset)
    _LOG.info('%d images to train on: %s; the largest class is %.1f times the smallest%s',
              sum(counts), ', '.join(map('{} {}'.format, dataset.labels, counts)),
              max(counts) / min(counts),
              '' if settings.class_weights != 'none' or max(counts) < 1.5 * min(counts)
              else ' (--class_weights=balanced evens that out)')
  return dataset
