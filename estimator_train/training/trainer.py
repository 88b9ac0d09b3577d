"""Trains the model of a run up to the last step."""

import functools
import logging
import math
import signal
from typing import Any, Callable, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding
from estimator_train.checkpoints.saving import RetryingSaver, SaveCheckpoints
from estimator_train.data import arrays
from estimator_train.data.opening import make_input_settings, make_train_input_fn
from estimator_train.data.order import Shard
from estimator_train.data.source import InputFn, translate_errors
from estimator_train.errors import (
  CheckpointNotSaved,
  PeerLost,
  StoppedBySignal,
  TrainingFailed,
  UserError,
)
from estimator_train.model import frozen_features, initial_weights
from estimator_train.reports import metrics_log
from estimator_train.reports.step_times import RunTimes
from estimator_train.settings import Settings, user_code
from estimator_train.settings.flags import DEFAULT_SAVE_SECS
from estimator_train.system.formatting import format_count
from estimator_train.system.library_call import is_library_call
from estimator_train.system.signals import SignalState
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training import selection
from estimator_train.training.evaluation import EvaluateAfterSave, EvaluationLoop
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.progress import LogEpochs, ShowProgress
from estimator_train.training.run import Run
from estimator_train.training.selection import StopReason
from estimator_train.training.steps import StepMonitor
from estimator_train.training.stopping import RespondToSignals, StepWatchdog, StopAtNonFiniteLoss
from estimator_train.training.summaries import WriteSummaries
from estimator_train.training.timing import StepTimer, StepTimes, TraceSteps

_LOG = logging.getLogger('estimator_train')


class Outcome(NamedTuple):
  """The outcome of a training run.

  Attributes:
    times: the times of the steps; there are none if there was nothing left to train.
    stopped_by_signal: whether a signal to this or another worker stopped the training.
    stop_reason: None if no evaluation stopped the training.
  """
  times: RunTimes
  stopped_by_signal: bool = False
  stop_reason: Optional[StopReason] = None


def train(run: Run, model: PreparedModel, signals: SignalState,
          evaluation_loop: Optional[EvaluationLoop] = None) -> Outcome:
  """Trains up to the last step, or until a stop is requested, and saves a last checkpoint.

  Args:
    signals: the caller must use this object in a `with` statement around the training and the
      reports, so that no signal interrupts them.
    evaluation_loop: evaluates checkpoints during the training; None if this process does not
      evaluate.

  Raises:
    StoppedBySignal: a signal arrived before the first step.
    TrainingFailed: the loss or the weights are not finite, or a checkpoint could not be saved.
    UserError: the input could not be read.
  """
  if not run.trains_further:
    return _outcome_without_training(run)
  settings, engine, is_chief = run.settings, run.engine, run.process.is_chief
  _discard_results_after_checkpoint(run)
  with translate_errors(run.data.train), run.peers.announce_activity('preparing its input'):
    input_fn = make_run_input_fn(run, model)
  run.start_up.end_phase('data')

  if run.event_dir is not None:
    estimator_patches.open_event_file(run.event_dir)
  user_hooks = _make_user_hooks(settings)
  times, monitor = StepTimes(run.start_up), StepMonitor(engine.is_synchronous)
  timeout_secs = 0 if is_library_call() else settings.cluster.step_timeout_secs
  watchdog = StepWatchdog(timeout_secs or math.inf, run.peers.is_another_task_busy)
  loss_check = StopAtNonFiniteLoss(monitor, settings.optimizer.on_nan == 'skip', model.schedule)
  summaries = WriteSummaries(run, model.schedule, monitor)
  progress = ShowProgress(run, model, monitor)
  saver = _make_saver(run, times, signals, evaluation_loop) if is_chief else None
  tracer = _make_tracer(run, monitor, times)
  stop_hook = RespondToSignals(signals, engine, monitor, saver)
  hooks = [
      StepTimer(times),
      monitor,
      watchdog,
      loss_check,  # Precedes the saver, which must save nothing after the run has failed.
      summaries,
      progress,
      *([LogEpochs(run, model, monitor)] if run.clock.num_examples else []),
      *([saver] if saver else []),
      *([tracer] if tracer else []),
      *user_hooks,
      stop_hook]

  try:
    with estimator_patches.without_nan_hook(), translate_errors(run.data.train):
      engine.train(model.training_estimator, input_fn, hooks, run.end_step)
  except TrainingFailed as error:
    summaries.record_failure()
    raise _add_context(error, run, loss_check) from error
  finally:
    progress.close()
    watchdog.close()
    if saver:
      saver.wait_for_graph_file()

  # Only the chief reads the step of the last checkpoint, because the other tasks may arrive here
  # before the chief has saved this checkpoint.
  last_step = (finding.find_latest_checkpoint_and_step(run.run_dir.path)[1] if is_chief
               else monitor.global_step)
  was_stopped, stop_reason = stop_hook.has_stopped_training, None
  if was_stopped and signals.stop_signum is None:
    stop_reason = selection.read_stop_reason(run.run_dir, settings.evaluation, last_step)
  return Outcome(times.to_run_times(last_step, loss_check.last_finite_loss,
                                    tracer.traced_steps if tracer else frozenset(),
                                    monitor.local_step),
                 was_stopped and stop_reason is None, stop_reason)


def _outcome_without_training(run: Run) -> Outcome:
  """Logs why there is nothing to train, and returns an outcome without steps."""
  step, end_step = run.start.step, run.end_step
  times = RunTimes([], [], [], {}, global_step=step, loss=None)
  if step >= end_step:
    _LOG.info('nothing to train: %s %s', run.run_dir.path, _describe_end(run))
    return Outcome(times)
  assert run.stop_reason is not None
  _LOG.info('nothing to train: %s was stopped at step %d (%s); to continue, change or omit '
            '--early_stopping_epochs, --early_stopping_steps or --stop_at_accuracy',
            run.run_dir.path, step, run.stop_reason.text)
  return Outcome(times, stop_reason=run.stop_reason)


def _describe_end(run: Run) -> str:
  """Describes how far the run has trained, and how to continue if it was meant to."""
  step, duration = run.start.step, run.settings.duration
  if duration.train_epochs is not None:
    name, given, trained = 'train_epochs', duration.train_epochs, run.clock.completed_epochs(step)
    amount = format_count(trained, 'epoch') + ' (step {})'.format(step)
  else:
    name, given, trained = 'train_steps', run.end_step, step
    amount = format_count(trained, 'step')
  if given >= trained:
    return 'is at step {} of {}'.format(step, run.end_step)
  return ('has already trained for {0}, and --{1} counts from the start of the run: give '
          '--{1}={2} for {3} more'.format(amount, name, trained + given, given))


def _discard_results_after_checkpoint(run: Run) -> None:
  """Removes what an earlier run recorded after the checkpoint, and logs that the run resumes."""
  if run.start.step:
    _LOG.info('resuming from step %d, %d examples seen, in %s', run.start.step,
              run.examples_seen, run.run_dir.path)
    if run.settings.input.input_pipeline == 'published':
      _LOG.warning('--input_pipeline=published starts another epoch instead of continuing with '
                   'the next example')
  if run.process.is_chief:
    selection.remove_stop_reason(run.run_dir)
    metrics_log.remove_steps_after(run.run_dir.path, run.start.step)
    run.run_dir.record_clock(run.clock)


def make_run_input_fn(run: Run, model: PreparedModel) -> InputFn:
  """Makes the `input_fn` of a run, which reads examples or cached features of frozen layers."""
  source, settings, engine = run.data.train, run.settings, run.engine
  assert source is not None and engine.process.rank is not None
  shard = Shard(engine.next_example_index(run.examples_seen), engine.num_workers,
                engine.process.rank, engine.examples_per_worker)
  input_plan = make_input_settings(source, settings, model.one_hot, engine.examples_per_replica,
                                   shard)
  if model.frozen_part is None:
    return make_train_input_fn(source, settings, *input_plan)
  model_dir = run.run_dir.path
  features = frozen_features.compute_features(
      model.frozen_part,
      finding.find_latest_checkpoint_and_step(model_dir)[0]
      or initial_weights.initial_weights_path(model_dir),
      source, settings, engine.devices)
  return arrays.make_train_input_fn(source, features, source.read_class_indices(), *input_plan)


def _add_context(error: TrainingFailed, run: Run,
                 loss_check: StopAtNonFiniteLoss) -> TrainingFailed:
  """Returns the error with the last losses and the last good checkpoint in its message."""
  last_checkpoint = run.run_dir.last_checkpoint()
  text = str(error) if isinstance(error, CheckpointNotSaved) else '{}; {}'.format(
      error, loss_check.describe_last_losses())
  return TrainingFailed('{}; {}'.format(
      text, 'there is no checkpoint' if last_checkpoint is None else
      'the last good checkpoint is ' + last_checkpoint))


def raise_if_stopped(outcome: Outcome, signals: SignalState) -> None:
  """Raises an error if a signal has stopped the training, or has arrived after it.

  Raises:
    PeerLost: another worker received the signal.
    StoppedBySignal: this process received the signal.
  """
  signum = signals.stop_signum
  if signum is not None:
    raise StoppedBySignal(
        signum, 'stopped by {} at step {}, whose checkpoint is saved; the same command resumes '
        'from there'.format(signal.Signals(signum).name, outcome.times.global_step))
  if outcome.stopped_by_signal:
    raise PeerLost('stopped at step {}, because another task received a signal; the same command '
                   'resumes from there'.format(outcome.times.global_step))


def _make_tracer(run: Run, monitor: StepMonitor, times: StepTimes) -> Optional[TraceSteps]:
  """Makes the hook of `--trace_steps`; returns None if this process traces no step."""
  settings, end_step = run.settings, run.end_step
  if settings.reporting.trace_steps is None or not run.process.is_chief:
    return None
  first, last = settings.reporting.trace_steps
  if last <= run.start.step or first > end_step:
    _LOG.warning('no step of --trace_steps=%d:%d is traced: this run trains steps %d to %d', first,
                 last, run.start.step + 1, end_step)
    return None
  return TraceSteps(monitor, times, run.run_dir.path, first, min(last, end_step))


def _make_saver(run: Run, times: StepTimes, signals: SignalState,
                evaluation_loop: Optional[EvaluationLoop]) -> SaveCheckpoints:
  flags = run.settings.checkpoints
  save_steps, save_secs = flags.save_checkpoints_steps, flags.save_checkpoints_secs
  listener = None
  if evaluation_loop:
    listener = EvaluateAfterSave(run, evaluation_loop, signals, times.record_pause)
  if save_steps is None and save_secs is None:
    save_secs = DEFAULT_SAVE_SECS
  retrying_saver = RetryingSaver(run.run_dir, flags.save_retry_secs,
                                 is_stopping=lambda: signals.stop_signum is not None)
  return SaveCheckpoints(retrying_saver, save_steps, save_secs, times.record_pause, listener)


def _make_user_hooks(settings: Settings) -> List[tf.train.SessionRunHook]:
  """Returns the hooks that the function of `--hooks` makes; an empty list without this flag.

  Raises:
    UserError: the function does not exist, fails, or does not return a list of hooks.
  """
  name = settings.reporting.hooks
  if name is None:
    return []
  hooks = user_code.call_function('hooks', name, 'settings', settings)
  if not isinstance(hooks, (list, tuple)) or not all(
      isinstance(hook, tf.train.SessionRunHook) for hook in hooks):
    raise UserError('the function of --hooks must return a list of SessionRunHooks',
                    '--hooks={} returned {!r:.100}'.format(name, hooks),
                    'return a list of objects of a subclass of tf.train.SessionRunHook')
  return [_UserHook(hook, '--hooks=' + name) for hook in hooks]


class _UserHook(tf.train.SessionRunHook):
  """Calls a hook of the user, and translates its errors."""

  def __init__(self, hook: tf.train.SessionRunHook, flag: str) -> None:
    for name in ('begin', 'after_create_session', 'before_run', 'after_run', 'end'):
      setattr(self, name, functools.partial(_call_user_method, flag, getattr(hook, name)))


def _call_user_method(flag: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
  with user_code.translate_errors('a hook failed', flag):
    try:
      return method(*args, **kwargs)
    except tf.errors.OpError as error:
      session_error = error
  # This error is not translated, because the session recovers from some errors of this type.
  raise session_error
