"""A run from settings to an Estimator, its training, and its evaluation."""

import logging
import signal
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train import model_dir
from estimator_train.datasets import download, image_folder, registry as datasets
from estimator_train.datasets.description import DataSet, ImageSplit
from estimator_train.errors import StoppedBySignal, TrainingFailed, UserError
from estimator_train.inputs import bad_images, factory as inputs
from estimator_train.settings import (
    Settings,
    lr_warmup_steps,
    per_replica_batch_size,
    scaled_learning_rate,
    total_train_steps,
)
from estimator_train.start_up import StartUp
from estimator_train.timing import Timing
from estimator_train.training import (
    checkpoints,
    frozen_features,
    hooks,
    initial_weights,
    trace,
)
from estimator_train.training.devices import Devices, find_devices
from estimator_train.training.estimator import Converted, convert
from estimator_train.training.sample_predictions import Sample, SamplePredictions
from estimator_train.training.time_history import TimeHistory
from estimator_train.training.user_errors import reworded

_LOG = logging.getLogger('estimator_train')
_SAVE_SECS = 600


class Run(NamedTuple):
  """What a run has found out before its first step.

  Attributes:
    settings: what was asked for.
    dataset: what it reads.
    sizes: how many examples that has.
    skipped: the images that it has besides, and that cannot be decoded.
    devices: where it runs, a replica each.
    batch_size: per replica.
    stop_step: the global step to train up to; None where the run does not train.
    converted: the model as an Estimator.
    start_up: what the time since the start of the process went into.
  """
  settings: Settings
  dataset: DataSet
  sizes: inputs.SplitSizes
  skipped: List[bad_images.BadImage]
  devices: Devices
  batch_size: int
  stop_step: Optional[int]
  converted: Converted
  start_up: StartUp

  @property
  def estimator(self) -> tf.estimator.Estimator:
    return self.converted.estimator

  @property
  def conditions(self) -> Dict[str, Any]:
    """What a figure of this run depends on, by the names in the reports."""
    return {
        'global_batch_size': self.settings.batch_size,
        'per_replica_batch_size': self.batch_size,
        'num_replicas': self.devices.num_replicas,
        'num_workers': 1,
        'dataset': self.settings.dataset,
        'model': self.settings.model,
        'distribution_strategy': self.settings.distribution_strategy,
        'devices': list(self.devices.labels),
        'tensorflow_version': tf.version.VERSION,
    }

  @property
  def left_out(self) -> Dict[str, Any]:
    """What a result says of the examples that were left out; nothing unless that was allowed."""
    if self.settings.on_bad_image != 'skip':
      return {}
    return {'skipped_images': [image._asdict() for image in self.skipped]}


class Trained(NamedTuple):
  """What came of a training.

  Attributes:
    timing: when its steps began and ended; no step when there was nothing left to train.
    stopped_by: the signal that ended it early; None when it reached its last step.
  """
  timing: Timing
  stopped_by: Optional[int]


def prepare(settings: Settings) -> Run:
  """Gets and checks the data, finds the devices, and makes the Estimator.

  Raises:
    UserError: something that was given is wrong; nothing has been trained yet.
  """
  assert settings.model_dir is not None
  start_up = StartUp()
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  devices = find_devices(settings)
  batch_size = per_replica_batch_size(settings.batch_size, devices.num_replicas)
  if not settings.trains and checkpoints.latest(settings.model_dir)[0] is None:
    raise UserError('there is no checkpoint to evaluate', '--model_dir=' + settings.model_dir,
                    'train first, or give the folder of a run that has')
  dataset = _describe(settings)
  model_dir.make(settings.model_dir)
  skipped: List[bad_images.BadImage] = []
  if settings.on_bad_image == 'skip':
    dataset, skipped = bad_images.without_bad(dataset, settings)
  sizes = inputs.check_files(dataset, settings)
  start_up.end('data')
  stop_step = total_train_steps(settings, sizes.train) if settings.trains else None
  warmup_steps = lr_warmup_steps(settings, sizes.train) if settings.trains else 0
  balances = settings.trains and settings.class_weights == 'balanced'
  converted = convert(settings, dataset, devices, warmup_steps,
                      inputs.class_counts(dataset) if balances else None,
                      model_dir.read_flags(settings.model_dir))
  start_up.end('model')
  if settings.trains:
    model_dir.record(settings, dataset.labels)
  _LOG.info('%s on %s: %s, %d replica(s) on %s, batch size %d global, %d per replica',
            settings.model, settings.dataset, settings.distribution_strategy,
            devices.num_replicas, ', '.join(devices.labels), settings.batch_size, batch_size)
  if settings.trains and (settings.scale_learning_rate != 'none' or warmup_steps):
    _LOG.info('learning rate %g for batch size %d is %g for %d (%s), warmed up over %d steps',
              settings.learning_rate, settings.base_batch_size, scaled_learning_rate(settings),
              settings.batch_size, settings.scale_learning_rate, warmup_steps)
  return Run(settings, dataset, sizes, skipped, devices, batch_size, stop_step, converted,
             start_up)


def _describe(settings: Settings) -> DataSet:
  """Describes the data set, gets its files where they are missing and published, and says what
  of each class there is to train on."""
  assert settings.model_dir is not None
  dataset = datasets.describe(settings)
  if dataset.files:
    assert settings.data_dir is not None
    download.fetch(dataset.files, settings.data_dir)
  model_dir.check_labels(settings.model_dir, dataset.labels)
  if isinstance(dataset.train, ImageSplit) and settings.trains:
    counts = image_folder.class_counts(dataset.train, len(dataset.labels))
    _LOG.info('%d images to train on: %s; the largest class is %.1f times the smallest%s',
              sum(counts), ', '.join(map('{} {}'.format, dataset.labels, counts)),
              max(counts) / min(counts),
              '' if settings.class_weights != 'none' or max(counts) < 1.5 * min(counts)
              else ' (--class_weights=balanced evens that out)')
  return dataset


def train(run: Run, evaluate_now: Optional[Callable[[], Any]] = None) -> Trained:
  """Trains up to the last step, or until a signal asks to stop; saves a checkpoint either way.

  Args:
    run: what to train.
    evaluate_now: called at each checkpoint that is due for an evaluation, but for the last.

  Raises:
    TrainingFailed: the loss was not finite.
    UserError: the input could not be read.
  """
  settings, stop_step = run.settings, run.stop_step
  assert stop_step is not None
  _, first_step = checkpoints.latest(run.estimator.model_dir)
  if first_step >= stop_step:
    _LOG.info('%s is at step %d already, and %d are asked for: nothing to train',
              run.estimator.model_dir, first_step, stop_step)
    return Trained(Timing([], [], [], {}, first_step, None), None)
  if first_step:
    _LOG.info('going on from step %d in %s', first_step, run.estimator.model_dir)
  with reworded(run.dataset.train):
    input_fn = _make_train_input_fn(run, first_step)
  run.start_up.end('data')
  history = TimeHistory(run.start_up)
  stop = hooks.StopOnSignal()
  progress = hooks.Progress(run.estimator.model_dir, stop_step, settings.log_every_steps,
                            settings.batch_size)
  finite = hooks.StopAtNonFiniteLoss()
  saver = _make_saver(settings, stop_step, evaluate_now)
  tracer = _make_tracer(settings, first_step, stop_step)
  try:
    with logging_redirect_tqdm([_LOG]), reworded(run.dataset.train):
      # Whether the loss is finite must be known before that step's checkpoint is saved.
      run.converted.trainer.train(input_fn, max_steps=stop_step, hooks=[
          history, finite, progress, stop, saver, *([tracer] if tracer else [])])
  except TrainingFailed as error:
    path, step = checkpoints.latest(run.estimator.model_dir)
    raise TrainingFailed('{}; the last checkpoint is {} of step {}'.format(
        error, path, step)) from error
  finally:
    progress.close()
    stop.close()
  _, last_step = checkpoints.latest(run.estimator.model_dir)
  timing = Timing(history.began, history.ended, history.waited, run.start_up.secs, last_step,
                  finite.loss, saver.pauses)
  if tracer:
    timing = timing._replace(pauses=saver.pauses + tracer.pauses, traced=tracer.traced)
  return Trained(timing, stop.signum)


def _make_train_input_fn(run: Run, first_step: int) -> inputs.InputFn:
  settings, converted = run.settings, run.converted
  skip_examples = first_step * settings.batch_size
  if converted.frozen is None:
    return inputs.make_train_input_fn(run.dataset, settings, converted.one_hot, run.batch_size,
                                      skip_examples)
  assert settings.model_dir is not None
  checkpoint, _ = checkpoints.latest(settings.model_dir)
  features = frozen_features.compute(
      converted.frozen, checkpoint or initial_weights.written_to(settings.model_dir),
      inputs.make_pass(run.dataset, settings), settings, run.devices)
  return inputs.make_feature_input_fn(run.dataset, settings, converted.one_hot, run.batch_size,
                                      skip_examples, features)


def raise_if_stopped(trained: Trained) -> None:
  """Raises StoppedBySignal when a signal ended the training early."""
  if trained.stopped_by is not None:
    raise StoppedBySignal(
        trained.stopped_by,
        'stopped by {} at step {}, which is saved; the same command goes on from there'.format(
            signal.Signals(trained.stopped_by).name, trained.timing.global_step))


def evaluate(run: Run) -> Tuple[Dict[str, Any], List[Sample]]:
  """Evaluates the latest checkpoint on every test example.

  Returns:
    (`accuracy`, `average_loss`, `examples`, `confusion_matrix`, `global_step` and `checkpoint`,
    a few of the examples)

  Raises:
    UserError: the input could not be read, or not every example was counted.
  """
  path, _ = checkpoints.latest(run.estimator.model_dir)
  samples = SamplePredictions(run.sizes.test, run.batch_size)
  with reworded(run.dataset.test):
    counted = run.estimator.evaluate(
        inputs.make_eval_input_fn(run.dataset, run.settings, run.converted.one_hot,
                                  run.batch_size), hooks=[samples], checkpoint_path=path)
  if run.sizes.test not in (None, counted['examples']):
    raise UserError('the evaluation did not see every example',
                    '{} of {}'.format(counted['examples'], run.sizes.test),
                    'check whether the files were changed while they were read')
  return {
      'accuracy': float(counted['accuracy']),
      'average_loss': float(counted['average_loss']),
      'examples': int(counted['examples']),
      'confusion_matrix': counted['confusion_matrix'].tolist(),
      'global_step': int(counted['global_step']),
      'checkpoint': path,
  }, samples.samples


def _make_tracer(settings: Settings, first_step: int,
                 stop_step: int) -> Optional[trace.TraceSteps]:
  if settings.trace_steps is None:
    return None
  assert settings.model_dir is not None
  first, last = settings.trace_steps
  if last <= first_step or first > stop_step:
    _LOG.warning('no step of --trace_steps=%d:%d is run: this run is of steps %d to %d', first,
                 last, first_step + 1, stop_step)
    return None
  return trace.TraceSteps(settings.model_dir, first, min(last, stop_step))


def _make_saver(settings: Settings, stop_step: int,
                evaluate_now: Optional[Callable[[], Any]]) -> checkpoints.SaveCheckpoints:
  listeners = []
  save_steps = settings.save_checkpoints_steps
  if settings.eval_every_steps and evaluate_now:
    save_steps = save_steps or settings.eval_every_steps
    listeners.append(checkpoints.AtEverySteps(settings.eval_every_steps, stop_step, evaluate_now))
  save_secs = settings.save_checkpoints_secs
  if save_steps is None and save_secs is None:
    save_secs = _SAVE_SECS
  assert settings.model_dir is not None
  return checkpoints.SaveCheckpoints(settings.model_dir, save_steps, save_secs,
                                     settings.keep_checkpoint_max, listeners)
