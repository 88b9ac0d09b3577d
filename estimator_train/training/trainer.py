"""Trains the model of a run up to the last step."""

import logging
import signal
from typing import NamedTuple, Optional

from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.data import arrays
from estimator_train.data.batching import Shard
from estimator_train.data.data import make_batching, make_single_epoch, make_train_input_fn
from estimator_train.data.source import InputFn, translate_errors
from estimator_train.errors import CheckpointNotSaved, PeerLost, StoppedBySignal, TrainingFailed
from estimator_train.reports.step_times import Timing
from estimator_train.system.signals import SignalState
from estimator_train.tf_patches import estimator as estimator_patches, saved_weights
from estimator_train.training import early_stopping, frozen_features
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.early_stopping import StopReason
from estimator_train.training.model import Model
from estimator_train.training.run import Run
from estimator_train.training.run_hooks import EvaluateLatest, RunHooks

_LOG = logging.getLogger('estimator_train')


class Outcome(NamedTuple):
  """The outcome of a training run.

  Attributes:
    timing: the times of the steps; empty if there was nothing left to train.
    signum: the number of the stop signal that this process has received; None: no stop signal.
    stopped_by_signal: whether a signal to this worker or another worker stopped the training.
    stop_reason: the reason why an evaluation stopped the run; None: no evaluation stopped the run.
  """
  timing: Timing
  signum: Optional[int] = None
  stopped_by_signal: bool = False
  stop_reason: Optional[StopReason] = None


def train(run: Run, model: Model, signals: SignalState,
          evaluate_latest: Optional[EvaluateLatest] = None) -> Outcome:
  """Trains up to the last step, or until a stop is requested, and saves a last checkpoint.

  Args:
    run: the run.
    model: the model to train.
    signals: the signals received so far. The caller uses this object in a `with` statement around
      training and reports, so that no signal interrupts the training or the reports.
    evaluate_latest: see EvaluateLatest. Called after each checkpoint at which an evaluation is
      due, except the last checkpoint. None: this process does not evaluate.

  Raises:
    StoppedBySignal: a signal arrived before the first step.
    TrainingFailed: the loss or the weights are not finite, or a checkpoint could not be saved.
    UserError: the input could not be read.
  """
  if run.start.step >= run.stop_step or run.start.stop_reason is not None:
    return _outcome_without_training(run)
  if run.start.step:
    _LOG.info('resuming from step %d, %d examples seen, in %s', run.start.step,
              run.start.examples_seen, run.run_dir.path)
    if run.settings.input.input_pipeline == 'published':
      _LOG.warning('--input_pipeline=published starts another epoch instead of continuing with '
                   'the next example')
  if run.process.is_chief:
    early_stopping.remove_stop_reason(run.run_dir)
    run.run_dir.record_batch_size(run.start.step, run.engine.examples_per_step,
                                  run.start.examples_seen)
  source = run.data.train
  with translate_errors(source), run.engine.busy('preparing its input'):
    input_fn = _make_input_fn(run, model)
  run.start_up.end_phase('data')
  hooks = RunHooks(run, model, signals, evaluate_latest)
  try:
    # Log lines would break the progress bar, so tqdm writes the lines above the bar.
    with logging_redirect_tqdm([_LOG] if _LOG.handlers else []), \
        estimator_patches.without_nan_hook(), translate_errors(source):
      run.engine.train(model.training_estimator, input_fn, hooks.all, run.stop_step)
  except TrainingFailed as error:
    hooks.summaries.record_failure()
    raise _failure_with_context(error, run, hooks) from error
  finally:
    hooks.close()
  return _make_outcome(run, signals, hooks)


def _outcome_without_training(run: Run) -> Outcome:
  """Logs why there is nothing to train, and returns an outcome without steps."""
  step, stop_step = run.start.step, run.stop_step
  timing = Timing([], [], [], {}, step, None)
  if step >= stop_step:
    # Only --train_steps can end a run before the checkpoint's step; see total_train_steps.
    _LOG.info('nothing to train: %s is at step %d%s', run.run_dir.path, step,
              ' of {}'.format(stop_step) if step == stop_step
              else ', past --train_steps={}'.format(stop_step))
    return Outcome(timing)
  assert run.start.stop_reason is not None
  _LOG.info('nothing to train: %s was stopped at step %d (%s); to continue, change or omit '
            '--early_stopping_steps or --stop_at_accuracy', run.run_dir.path, step,
            run.start.stop_reason.text)
  return Outcome(timing, stop_reason=run.start.stop_reason)


def _make_input_fn(run: Run, model: Model) -> InputFn:
  """Makes the training `input_fn`, which yields images or cached features of frozen layers."""
  source, settings, engine = run.data.train, run.settings, run.engine
  assert source is not None and engine.process.rank is not None
  shard = Shard(engine.first_example(run.start.examples_seen), engine.num_workers,
                engine.process.rank, engine.examples_per_worker)
  batching = make_batching(source.dataset, settings, model.one_hot, engine.examples_per_replica,
                           shard)
  if model.frozen_part is None:
    return make_train_input_fn(source, settings, batching)
  model_dir = run.run_dir.path
  features = frozen_features.compute_features(
      model.frozen_part,
      save_hook.latest_checkpoint_and_step(model_dir)[0]
      or saved_weights.initial_weights_path(model_dir),
      make_single_epoch(source, settings), settings, engine.devices)
  return arrays.make_train_input_fn(source, features, source.class_indices(), batching)


def _failure_with_context(error: TrainingFailed, run: Run, hooks: RunHooks) -> TrainingFailed:
  """Returns a TrainingFailed that also states the last losses and the last good checkpoint."""
  last_checkpoint = run.run_dir.last_checkpoint()
  text = str(error) if isinstance(error, CheckpointNotSaved) else '{}; {}'.format(
      error, hooks.loss_check.loss_history)
  return TrainingFailed('{}; {}'.format(
      text, 'there is no checkpoint' if last_checkpoint is None else
      'the last good checkpoint is ' + last_checkpoint))


def _make_outcome(run: Run, signals: SignalState, hooks: RunHooks) -> Outcome:
  """Returns the outcome of a training that has ended without an error."""
  # Only the chief reads the step of the last checkpoint, because other tasks may run this code
  # before the chief has saved the checkpoint.
  last_step = (save_hook.latest_checkpoint_and_step(run.run_dir.path)[1]
               if run.process.is_chief else hooks.counter.global_step)
  has_stopped, signum, stop_reason = hooks.stop_hook.has_stopped, signals.stop_signum, None
  if has_stopped and signum is None:
    stop_reason = early_stopping.read_stop_reason(
        run.run_dir, run.settings.evaluation, last_step)
  return Outcome(hooks.make_timing(last_step), signum,
                 has_stopped and stop_reason is None, stop_reason)


def raise_if_stopped(outcome: Outcome, signals: SignalState) -> None:
  """Raises an error if a signal stopped the training, or arrived after the training.

  Raises:
    PeerLost: another worker received the signal.
    StoppedBySignal: this process received the signal.
  """
  signum = outcome.signum or signals.stop_signum
  if signum is not None:
    raise StoppedBySignal(
        signum, 'stopped by {} at step {}, whose checkpoint is saved; the same command resumes '
        'from there'.format(signal.Signals(signum).name, outcome.timing.global_step))
  if outcome.stopped_by_signal:
    raise PeerLost('stopped at step {}, because another task received a signal; the same command '
                   'resumes from there'.format(outcome.timing.global_step))
