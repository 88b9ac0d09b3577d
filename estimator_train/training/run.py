"""Opens a run: determines its devices, start checkpoint, data and last step."""

import contextlib
import logging
import tempfile
from typing import Any, Dict, Iterator, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding
from estimator_train.checkpoints.finding import Start
from estimator_train.checkpoints.pinned_files import ReadableCheckpoint
from estimator_train.data.opening import Data, open_data
from estimator_train.distribution.devices import find_devices, prepare_devices
from estimator_train.distribution.engines import Engine, make_engine
from estimator_train.distribution.peers import Peers
from estimator_train.distribution.process import SINGLE_PROCESS, Process
from estimator_train.errors import UserError
from estimator_train.model.schedules import Schedule, make_schedule
from estimator_train.run_dir import RunDir
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings
from estimator_train.settings.flags import EvaluationFlags
from estimator_train.system.formatting import format_count
from estimator_train.system.progress import show_phase
from estimator_train.system.start_up import StartUpTimer
from estimator_train.training import selection
from estimator_train.training.evaluation_steps import EvaluationSteps, plan_evaluations
from estimator_train.training.selection import StopReason

_LOG = logging.getLogger('estimator_train')
_MAX_REPORTED_FILES = 5


class Run(NamedTuple):
  """A run: its settings, folder, devices, data, and the steps at which it starts and ends.

  Attributes:
    engine: trains on the devices of this process, together with the other processes if there are
      any.
    start: the checkpoint with which the run starts.
    clock: converts steps to examples and epochs.
    end_step: the last global step to train; `start.step` if the mode does not train.
    schedule: None if the mode does not train. A model that the user has compiled ignores it.
    evaluation_steps: None unless the mode both trains and evaluates.
    stop_reason: None if no evaluation stopped the previous run.
    start_up: times the phases up to the end of the first step.
  """
  settings: Settings
  run_dir: RunDir
  engine: Engine
  start: Start
  data: Data
  clock: StepClock
  end_step: int
  schedule: Optional[Schedule]
  evaluation_steps: Optional[EvaluationSteps]
  stop_reason: Optional[StopReason]
  start_up: StartUpTimer

  @property
  def process(self) -> Process:
    return self.engine.process

  @property
  def peers(self) -> Peers:
    return self.engine.peers

  @property
  def event_dir(self) -> Optional[str]:
    """The folder of TensorBoard's event files; None if this process writes none."""
    return self.run_dir.path if self.process.is_chief else None

  @property
  def trains_further(self) -> bool:
    """Whether there is a step to train."""
    return self.start.step < self.end_step and self.stop_reason is None

  @property
  def examples_seen(self) -> int:
    """The number of examples that earlier runs used, up to the step at which this run starts."""
    return self.clock.examples_at(self.start.step)

  @property
  def conditions(self) -> Dict[str, Any]:
    """The settings and devices that affect the speed, by their keys in the reports."""
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
    """The item of the result about skipped images; {} without `--on_bad_image=skip`."""
    if self.settings.input.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.data.skipped_images]}

  @property
  def skipped_images_figures(self) -> Dict[str, Any]:
    """The item of throughput.json about skipped images; {} if there are none."""
    skipped = self.data.skipped_images
    return {'skipped_images': {'count': len(skipped), 'files': [
        image.file for image in skipped[:_MAX_REPORTED_FILES]]}} if skipped else {}


def open_run(settings: Settings, run_dir: RunDir, process: Process = SINGLE_PROCESS,
             checkpoint_to_evaluate: Optional[ReadableCheckpoint] = None) -> Run:
  """Finds the devices, the checkpoint and the data of a run, and plans its steps.

  Args:
    checkpoint_to_evaluate: None if the mode trains.

  Raises:
    PeerLost: a task did not become reachable in time or, for an evaluator, the chief has not saved
      a checkpoint in time.
    UserError: a flag, the data or the checkpoint is invalid, or a flag is given in epochs although
      the data set is infinite.
  """
  start_up, trains = StartUpTimer(), settings.run.trains
  tf.logging.set_verbosity(tf.logging.INFO if settings.run.verbosity > 0 else tf.logging.ERROR)
  _check_early_stopping_flags(settings.evaluation, process)
  devices = find_devices(settings.devices, process.local_rank)
  prepare_devices(settings.devices, devices, trains)
  engine = make_engine(settings, process, devices)
  start = finding.find_start(settings, run_dir, process, checkpoint_to_evaluate)
  with show_phase('preparing the data'):
    data = open_data(settings, run_dir, start.checkpoint_run_dir, is_resumed=start.step > 0)
  start.checkpoint_run_dir.warn_of_missing_run_files(start.step, bool(data.spec.labels))
  clock, end_step = _read_clock(settings, run_dir, engine, start.step), start.step
  schedule: Optional[Schedule] = None
  evaluation_steps: Optional[EvaluationSteps] = None
  stop_reason: Optional[StopReason] = None
  if trains:
    assert data.train is not None
    stop_reason = selection.read_stop_reason(run_dir, settings.evaluation, start.step,
                                             data.test if settings.run.evaluates else None)
    clock = clock._replace(num_examples=data.train.num_examples)
    end_step = find_end_step(settings, clock, start.step)
    schedule = make_schedule(settings, clock, end_step)
    batch_size = settings.optimizer.batch_size
    if clock.num_examples is not None and batch_size > clock.num_examples:
      _LOG.warning('--batch_size=%d is more than the %s: each step reads more than an epoch; give '
                   'a smaller --batch_size', batch_size,
                   format_count(clock.num_examples, 'training example'))
    if settings.run.evaluates:
      evaluation_steps = plan_evaluations(settings, clock)
  start_up.end_phase('data')
  return Run(settings, run_dir, engine, start, data, clock, end_step, schedule, evaluation_steps,
             stop_reason, start_up)


@contextlib.contextmanager
def open_temporary_run(settings: Settings, learning_rate: float, train_steps: int,
                       **changes: Any) -> Iterator[Run]:
  """Opens a run in a temporary folder, so that no run in `model_dir` is changed or resumed.

  Args:
    changes: other flags that differ from `settings`.
  """
  with tempfile.TemporaryDirectory(prefix=settings.run.mode + '-') as folder:
    yield open_run(settings.with_constant_rate(
        learning_rate, mode='train', model_dir=folder, train_steps=train_steps, train_epochs=None,
        **changes), RunDir(folder))


def _read_clock(settings: Settings, run_dir: RunDir, engine: Engine, start_step: int) -> StepClock:
  """Returns the clock of the run, without the number of examples per epoch."""
  # Earlier versions did not write batch_sizes.json. Their steps had the batch size in flags.txt.
  previous_batch_size = run_dir.read_flags().get('batch_size', '')
  return run_dir.read_clock(
      engine.examples_per_step if not previous_batch_size.isdigit() else
      engine.examples_per_step * int(previous_batch_size) // settings.optimizer.batch_size
  ).resume_at(start_step, engine.examples_per_step)


def find_end_step(settings: Settings, clock: StepClock, start_step: int) -> int:
  """Returns the last global step to train.

  Each step takes a full batch, so the last step may use examples of the next epoch.

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
  if process.has_evaluator and flags.may_stop_training:
    raise UserError('a task of type evaluator cannot stop the training',
                    '--early_stopping_epochs, --early_stopping_steps or --stop_at_accuracy with an '
                    'evaluator in TF_CONFIG',
                    'remove the evaluator, so that the chief evaluates, or omit these flags')

