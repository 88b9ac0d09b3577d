"""Makes the plan of a run, which states the data, devices, checkpoint and steps of the run."""

import logging
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.cluster.worker import EVALUATOR, SINGLE_WORKER, Worker
from estimator_train.datasets import download, registry as datasets
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.devices import find_devices, prepare_devices
from estimator_train.distribution.engines import make_engine
from estimator_train.distribution.engines.engine import Engine
from estimator_train.errors import PeerLost, UserError
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.source import BadImage
from estimator_train.process.phases import Phase
from estimator_train.process.start_up import StartUpTimer
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups, total_train_steps
from estimator_train.training import schedules
from estimator_train.training.checkpoints import chosen_checkpoint, recovery, save_hook
from estimator_train.training.checkpoints.recovery import RecoveredCheckpoint
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.early_stopping import StopReason
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')
_POLL_INTERVAL_SECS = 1.
_MAX_LOGGED_CLASSES = 20


class RunData(NamedTuple):
  """The data set of a run.

  Attributes:
    dataset: the data set.
    sizes: the number of examples in each split.
    skipped_images: the images that were removed from the data set because they cannot be decoded;
      empty unless `--on_bad_image=skip`.
  """
  dataset: DataSet
  sizes: inputs.SplitSizes
  skipped_images: List[BadImage]


class Plan(NamedTuple):
  """What a run reads, which devices it uses, where it resumes, and at which step it ends.

  Attributes:
    settings: the settings of the run.
    run_dir: the directory of the run.
    data: the data set that the run reads.
    engine: trains the Estimator, on the devices of this process or of the cluster.
    checkpoint: the checkpoint to resume from, or to evaluate.
    examples_seen: the number of examples trained on before the checkpoint was saved; 0 if the run
      does not train.
    stop_step: the global step to train up to; None: the run does not train.
    schedule: the learning rate schedule; ignored if the model has its own optimizer.
    stop_reason: the reason why an evaluation stopped the previous run; None if no evaluation
      stopped that run.
  """
  settings: Settings
  run_dir: RunDir
  data: RunData
  engine: Engine
  checkpoint: RecoveredCheckpoint
  examples_seen: int
  stop_step: Optional[int]
  schedule: Schedule
  stop_reason: Optional[StopReason]

  @property
  def start_step(self) -> int:
    """The global step of the checkpoint; 0 if there is no checkpoint."""
    return self.checkpoint.step

  @property
  def conditions(self) -> Dict[str, Any]:
    """The settings and devices that affect the measurements, by their keys in the reports."""
    engine = self.engine
    return {
        'global_batch_size': self.settings.batch_size,
        'per_replica_batch_size': engine.examples_per_replica,
        'num_replicas': engine.num_replicas,
        'num_workers': engine.size,
        'examples_per_step': engine.examples_per_step,
        'dataset': self.settings.dataset,
        'model': self.settings.model,
        'distribution_strategy': self.settings.distribution_strategy,
        'devices': list(engine.devices.display_names),
        'dtype': self.settings.dtype,
        'enable_xla': self.settings.enable_xla,
        'tensorflow_version': tf.version.VERSION,
    }

  @property
  def skipped_images_result(self) -> Dict[str, Any]:
    """The entry of the result for skipped images; empty unless `--on_bad_image=skip`."""
    if self.settings.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.data.skipped_images]}


def make_plan(settings: Settings, start_up: StartUpTimer, worker: Worker = SINGLE_WORKER) -> Plan:
  """Prepares and checks the data, and determines the devices, the checkpoint and the steps.

  Args:
    settings: the settings of the run.
    start_up: the start-up timer. This function ends the phase `data`.
    worker: the role of this process in the run.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: a flag, the data or the checkpoint is invalid; nothing has been trained yet.
  """
  run_dir = RunDir(settings.model_dir)
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  _check_early_stopping_flags(settings[groups.Evaluation], worker)
  if worker.role == EVALUATOR:
    _wait_for_checkpoint(run_dir, settings.start_timeout_secs)
  devices = find_devices(settings[groups.Devices], worker.local_rank)
  prepare_devices(settings[groups.Devices], devices, settings.trains)
  engine = make_engine(settings, worker, devices)
  checkpoint = _find_checkpoint(settings, run_dir, worker)
  stop_reason = early_stopping.read_stop_reason(
      run_dir, settings[groups.Evaluation], checkpoint.step) if settings.trains else None
  with Phase('preparing the data'):
    data = _prepare_data(settings, run_dir)
  start_up.end_phase('data')
  schedule = Schedule(settings.learning_rate)
  plan = Plan(settings, run_dir, data, engine, checkpoint, examples_seen=0, stop_step=None,
              schedule=schedule, stop_reason=stop_reason)
  return _add_steps(plan) if settings.trains else plan


def _add_steps(plan: Plan) -> Plan:
  """Returns the plan with the examples seen, the last step and the learning rate schedule added."""
  settings, num_examples = plan.settings, plan.data.sizes.train
  examples_per_step = plan.engine.examples_per_step
  examples_seen = plan.run_dir.examples_seen(plan.start_step, examples_per_step)
  stop_step = total_train_steps(settings, num_examples, examples_per_step, plan.start_step,
                                examples_seen)
  schedule = schedules.make_schedule(settings, num_examples, examples_per_step, stop_step)
  return plan._replace(examples_seen=examples_seen, stop_step=stop_step, schedule=schedule)


def _check_early_stopping_flags(settings: groups.Evaluation, worker: Worker) -> None:
  """Raises a UserError if early stopping is requested although an evaluator task evaluates."""
  if worker.has_evaluator and (settings.early_stopping_steps or settings.stop_at_accuracy):
    raise UserError('a task of type evaluator cannot stop the training',
                    '--early_stopping_steps or --stop_at_accuracy with an evaluator in TF_CONFIG',
                    'remove the evaluator, so that the chief evaluates, or omit these flags')


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> None:
  """Waits until the chief has saved a first checkpoint.

  Raises:
    PeerLost: no checkpoint was saved within `timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while tf.train.latest_checkpoint(run_dir.path) is None:
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint appeared in {} within {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_POLL_INTERVAL_SECS)


def _find_checkpoint(settings: Settings, run_dir: RunDir,
                     worker: Worker) -> RecoveredCheckpoint:
  """Finds the checkpoint to resume from, or to evaluate."""
  if not settings.trains:
    return RecoveredCheckpoint(*chosen_checkpoint.resolve_checkpoint(
        settings[groups.Run], settings.checkpoint), skip_reasons=[])
  if worker.role == EVALUATOR:
    # The checkpoint is not verified, because the chief may delete it during the verification.
    return RecoveredCheckpoint(*save_hook.latest_checkpoint_and_step(run_dir.path), skip_reasons=[])
  return recovery.find_checkpoint(run_dir.path)


def _prepare_data(settings: Settings, run_dir: RunDir) -> RunData:
  """Obtains the data set, removes bad images if requested, and checks and counts the examples."""
  dataset = _obtain_dataset(settings)
  run_dir.make()
  skipped_images: List[BadImage] = []
  if settings.on_bad_image == 'skip':
    dataset, skipped_images = inputs.skip_bad_examples(dataset, settings[groups.Input],
                                                       run_dir.path)
  dataset = inputs.count_examples(dataset, settings)
  return RunData(dataset, inputs.check_files(dataset, settings), skipped_images)


def format_class_counts(class_names: Sequence[str], counts: Sequence[int]) -> str:
  """Returns the number of images of each class or, of many classes, of the extreme ones."""
  texts = list(map('{} {}'.format, class_names, counts))
  if len(texts) <= _MAX_LOGGED_CLASSES:
    return ', '.join(texts)
  return '{} classes, from {} to {}'.format(
      len(texts), *(texts[counts.index(extreme(counts))] for extreme in (min, max)))


def _obtain_dataset(settings: Settings) -> DataSet:
  """Downloads missing files, checks class names, logs class counts, and returns the data set."""
  dataset = datasets.describe(settings)
  if dataset.files:
    assert settings.data_dir is not None
    download.download_files(dataset.files, settings.data_dir)
  chosen_checkpoint.check_class_names(settings.model_dir, settings.checkpoint, dataset.labels)
  if settings.trains and inputs.make_source(dataset, dataset.train).class_indices_are_known:
    counts = inputs.class_counts(dataset)
    _LOG.info('%d training images: %s; the largest class has %.1f times as many as the smallest%s',
              sum(counts), format_class_counts(dataset.labels, counts),
              max(counts) / min(counts),
              '' if settings.class_weights != 'none' or max(counts) < 1.5 * min(counts)
              else ' (--class_weights=balanced compensates for that)')
  return dataset
