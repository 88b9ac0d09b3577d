"""Opens a run: its devices, the checkpoint where it starts, its data, and its last step."""

import contextlib
import logging
import time
from typing import Any, Dict, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint, compatibility, finding
from estimator_train.checkpoints.pinned_files import SavedCheckpoint
from estimator_train.data import DataSet, datasets, download, validation
from estimator_train.data.opening import Data, make_source, open_data
from estimator_train.distribution.devices import find_devices, prepare_devices
from estimator_train.distribution.engine import Engine, make_engine
from estimator_train.distribution.process import EVALUATOR, SINGLE_PROCESS, Process
from estimator_train.errors import PeerLost, UserError, join_items
from estimator_train.model.schedules import Schedule, make_schedule
from estimator_train.run_dir import RunDir
from estimator_train.run_dir.data_record import Validation
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings
from estimator_train.settings.flags import EvaluationFlags
from estimator_train.system.start_up import StartUpTimer
from estimator_train.training import selection
from estimator_train.training.selection import StopReason

_LOG = logging.getLogger('estimator_train')
_POLL_INTERVAL_SECS = 1.


class Start(NamedTuple):
  """Where a run starts.

  Attributes:
    checkpoint: the path of the checkpoint to resume from, or to evaluate; None: there is none.
    step: the global step of the checkpoint; 0 if there is no checkpoint.
    stop_reason: the reason why an evaluation stopped the previous run; None if no evaluation
      stopped that run.
  """
  checkpoint: Optional[str]
  step: int
  stop_reason: Optional[StopReason] = None


def find_start(settings: Settings, run_dir: RunDir, engine: Engine,
               checkpoint_to_evaluate: Optional[SavedCheckpoint]) -> Start:
  """Finds the checkpoint to resume from, or to evaluate.

  Args:
    settings, run_dir, engine: those of the run.
    checkpoint_to_evaluate: the return value of finding.open_checkpoint; None if the run trains.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: the checkpoint does not exist or does not load.
  """
  if checkpoint_to_evaluate is not None:
    return Start(checkpoint_to_evaluate.files, checkpoint_to_evaluate.global_step)
  checkpoint: Optional[str]
  if engine.process.role == EVALUATOR:
    checkpoint = _wait_for_checkpoint(run_dir, settings.cluster.start_timeout_secs)
    step = int(tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP))
  else:
    checkpoint, step = finding.find_intact_checkpoint(run_dir.path)
  return Start(checkpoint, step)


def _make_clock(settings: Settings, run_dir: RunDir, engine: Engine, start_step: int) -> StepClock:
  """Makes the clock of a run that resumes at a global step, without the number of examples."""
  # The batch size in flags.txt is that of all steps which have no record in batch_sizes.json.
  previous_batch_size = run_dir.flags().get('batch_size', '')
  return run_dir.clock(
      engine.examples_per_step if not previous_batch_size.isdigit() else
      engine.examples_per_step * int(previous_batch_size) // settings.optimizer.batch_size
  ).resume_at(start_step, engine.examples_per_step)


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> str:
  """Waits until the chief has saved a first checkpoint, and pins the latest one.

  Raises:
    PeerLost: no checkpoint was saved within `timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while True:
    latest = finding.latest_checkpoint(run_dir.path)
    if latest is not None:
      with contextlib.suppress(FileNotFoundError):  # The chief has deleted it: take the next one.
        return best_checkpoint.pin(latest, run_dir.path, EVALUATOR)
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint appeared in {} within {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_POLL_INTERVAL_SECS)


class Run(NamedTuple):
  """What a run reads, which devices it uses, where it starts, and at which step it ends.

  Attributes:
    settings: the settings of the run.
    run_dir: the directory of the run.
    engine: trains the Estimator, on the devices of this process or of the cluster.
    start: the checkpoint to resume from, or to evaluate.
    data: the data set that the run reads.
    clock: counts the examples and the epochs of all steps.
    end_step: the global step to train up to; `start.step` if the run does not train.
    schedule: the learning rate schedule; ignored if the model has its own optimizer.
    start_up: the timer of the phases until the end of the first step.
  """
  settings: Settings
  run_dir: RunDir
  engine: Engine
  start: Start
  data: Data
  clock: StepClock
  end_step: int
  schedule: Schedule
  start_up: StartUpTimer

  @property
  def process(self) -> Process:
    """The role of this process in the run."""
    return self.engine.process

  @property
  def event_dir(self) -> Optional[str]:
    """The folder of TensorBoard's event files; None if this process writes none."""
    return self.run_dir.path if self.process.is_chief else None

  @property
  def examples_seen(self) -> int:
    """The number of examples of the steps before the run started."""
    return self.clock.examples_at(self.start.step)

  @property
  def conditions(self) -> Dict[str, Any]:
    """The settings and devices that affect the measurements, by their keys in the reports."""
    engine = self.engine
    return {
        'global_batch_size': self.settings.optimizer.batch_size,
        'per_replica_batch_size': engine.examples_per_replica,
        'num_replicas': engine.num_replicas,
        'num_workers': engine.num_workers,
        'examples_per_step': engine.examples_per_step,
        'dataset': self.settings.data.dataset,
        'model': self.settings.model.model,
        'distribution_strategy': self.settings.devices.distribution_strategy,
        'devices': list(engine.devices.display_names),
        'dtype': self.settings.devices.dtype,
        'enable_xla': self.settings.devices.enable_xla,
        'tensorflow_version': tf.version.VERSION,
    }

  @property
  def skipped_images_result(self) -> Dict[str, Any]:
    """The entry of the result for skipped images; empty unless `--on_bad_image=skip`."""
    if self.settings.input.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.data.skipped_images]}


def open_run(settings: Settings, run_dir: RunDir, process: Process = SINGLE_PROCESS,
             checkpoint: Optional[SavedCheckpoint] = None) -> Run:
  """Finds the devices and the checkpoint, checks and counts the data, and computes the last step.

  Args:
    settings, run_dir: those of the run.
    process: the role of this process in the run.
    checkpoint: the checkpoint to evaluate; None if the run trains.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: a flag, the data or the checkpoint is invalid; nothing has been trained yet.
  """
  start_up = StartUpTimer()
  tf.logging.set_verbosity(tf.logging.INFO if settings.run.verbosity > 0 else tf.logging.ERROR)
  _check_early_stopping_flags(settings.evaluation, process)
  devices = find_devices(settings.devices, process.local_rank)
  prepare_devices(settings.devices, devices, settings.run.trains)
  engine = make_engine(settings, process, devices)
  start = find_start(settings, run_dir, engine, checkpoint)
  _LOG.info('preparing the data')
  checkpoint_run_dir = finding.run_dir_of_checkpoint(settings, run_dir)
  dataset = _obtain_dataset(settings, run_dir, validation.find_recorded(
      settings, checkpoint_run_dir) if start.step else None)
  run_dir.make()
  data = open_data(dataset, settings, run_dir.path)
  checkpoint_run_dir.warn_of_missing_records(start.step, bool(data.spec.labels))
  clock = _make_clock(settings, run_dir, engine, start.step)
  end_step, schedule = start.step, Schedule(settings.optimizer.learning_rate)
  if settings.run.trains:
    assert data.train is not None
    start = start._replace(stop_reason=selection.read_stop_reason(
        run_dir, settings.evaluation, start.step,
        data.test if settings.run.evaluates else None))
    clock = clock._replace(num_examples=data.train.num_examples)
    end_step = find_end_step(settings, clock, start.step)
    schedule = make_schedule(settings, clock, end_step)
  start_up.end_phase('data')
  return Run(settings, run_dir, engine, start, data, clock, end_step, schedule, start_up)


def find_end_step(settings: Settings, clock: StepClock, start_step: int) -> int:
  """Returns the global step at which training stops.

  Every step takes a full batch, so the last step may include examples of the next epoch.

  Args:
    settings: settings with either `train_steps` or `train_epochs`.
    clock: the clock of the run.
    start_step: the global step from which the run resumes.

  Raises:
    UserError: `train_epochs` is given for an infinite data set.
  """
  duration = settings.duration
  if duration.train_steps is not None:
    return duration.train_steps
  assert duration.train_epochs is not None
  if clock.num_examples is None:
    raise UserError('an infinite data set has no epochs',
                    '--dataset={} --train_epochs={}'.format(settings.data.dataset,
                                                            duration.train_epochs),
                    'give --train_steps instead')
  return max(start_step, clock.step_at_epoch(duration.train_epochs))


def _check_early_stopping_flags(flags: EvaluationFlags, process: Process) -> None:
  """Raises a UserError if early stopping is requested although an evaluator task evaluates."""
  if process.has_evaluator and (flags.early_stopping_steps or flags.stop_at_accuracy):
    raise UserError('a task of type evaluator cannot stop the training',
                    '--early_stopping_steps or --stop_at_accuracy with an evaluator in TF_CONFIG',
                    'remove the evaluator, so that the chief evaluates, or omit these flags')


def _obtain_dataset(settings: Settings, run_dir: RunDir,
                    recorded: Optional[Validation]) -> DataSet:
  """Downloads missing files, checks class names, logs class counts, and returns the data set."""
  dataset = datasets.describe(settings, recorded)
  if dataset.files:
    assert settings.data.data_dir is not None
    download.download_files(dataset.files, settings.data.data_dir)
  compatibility.check_class_names(settings, run_dir, dataset.labels)
  source = make_source(dataset, dataset.train) if settings.run.trains else None
  if source is not None and source.class_indices_are_known:
    counts = source.class_counts()
    smallest = min(filter(None, counts))
    _LOG.info('%d training images: %s; the largest class has %.1f times as many as the smallest%s',
              sum(counts), join_items(list(map('{} {}'.format, dataset.labels, counts))),
              max(counts) / smallest,
              '' if max(counts) < 1.5 * smallest or 'balanced' in (
                  settings.optimizer.class_weights, settings.input.class_sampling)
              else ' (--class_weights=balanced compensates for that)')
  return dataset
