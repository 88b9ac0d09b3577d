"""Trains the model of a run up to the last step."""

import logging
import math
import signal
from typing import Callable, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf
from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.checkpoints import best_checkpoint, finding
from estimator_train.checkpoints.saving import RetryingSaver, SaveCheckpoints
from estimator_train.data import arrays
from estimator_train.data.opening import make_batching, make_train_input_fn
from estimator_train.data.order import Shard
from estimator_train.data.source import InputFn, translate_errors
from estimator_train.errors import CheckpointNotSaved, PeerLost, StoppedBySignal, TrainingFailed
from estimator_train.model import frozen_features
from estimator_train.reports import metrics_log
from estimator_train.reports.step_times import RunTimes
from estimator_train.settings.flags import DEFAULT_SAVE_SECS
from estimator_train.system.signals import SignalState
from estimator_train.tf_patches import estimator as estimator_patches, saved_weights
from estimator_train.training import selection, stopping
from estimator_train.training.preparation import PreparedModel
from estimator_train.training.progress import LogEpochs, ShowProgress
from estimator_train.training.run import Run
from estimator_train.training.selection import StopReason
from estimator_train.training.steps import StepMonitor
from estimator_train.training.summaries import WriteSummaries
from estimator_train.training.timing import StepTimes, TimeSteps, TraceSteps
from estimator_train.training.user_hooks import make_user_hooks

_LOG = logging.getLogger('estimator_train')

# Evaluates the latest checkpoint, and returns the reason to stop, or None to continue.
EvaluateLatest = Callable[[], Optional[StopReason]]


class Outcome(NamedTuple):
  """The outcome of a training run.

  Attributes:
    times: the times of the steps; empty if there was nothing left to train.
    stopped_by_signal: whether a signal to this worker or another worker stopped the training.
    stop_reason: the reason why an evaluation stopped the run; None: no evaluation stopped the run.
  """
  times: RunTimes
  stopped_by_signal: bool = False
  stop_reason: Optional[StopReason] = None


def train(run: Run, model: PreparedModel, signals: SignalState,
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
  if run.start.step >= run.end_step or run.stop_reason is not None:
    return _outcome_without_training(run)
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
  source = run.data.train
  with translate_errors(source), run.engine.busy('preparing its input'):
    input_fn = make_input_fn(run, model)
  run.start_up.end_phase('data')
  hooks = RunHooks(run, model, signals, evaluate_latest)
  try:
    # Log lines would break the progress bar, so tqdm writes the lines above the bar.
    with logging_redirect_tqdm([_LOG] if _LOG.handlers else []), \
        estimator_patches.without_nan_hook(), translate_errors(source):
      run.engine.train(model.training_estimator, input_fn, hooks.all, run.end_step)
  except TrainingFailed as error:
    hooks.summaries.record_failure()
    raise _failure_with_context(error, run, hooks) from error
  finally:
    hooks.close()
  return _make_outcome(run, signals, hooks)


def _outcome_without_training(run: Run) -> Outcome:
  """Logs why there is nothing to train, and returns an outcome without steps."""
  step, end_step = run.start.step, run.end_step
  times = RunTimes([], [], [], {}, global_step=step, loss=None)
  if step >= end_step:
    # Only --train_steps can end a run before the checkpoint's step; see find_end_step.
    _LOG.info('nothing to train: %s is at step %d%s', run.run_dir.path, step,
              ' of {}'.format(end_step) if step == end_step
              else ', past --train_steps={}'.format(end_step))
    return Outcome(times)
  assert run.stop_reason is not None
  _LOG.info('nothing to train: %s was stopped at step %d (%s); to continue, change or omit '
            '--early_stopping_steps or --stop_at_accuracy', run.run_dir.path, step,
            run.stop_reason.text)
  return Outcome(times, stop_reason=run.stop_reason)


def make_input_fn(run: Run, model: PreparedModel) -> InputFn:
  """Makes the training `input_fn`, which yields images or cached features of frozen layers."""
  source, settings, engine = run.data.train, run.settings, run.engine
  assert source is not None and engine.process.rank is not None
  shard = Shard(engine.first_example(run.examples_seen), engine.num_workers,
                engine.process.rank, engine.examples_per_worker)
  batching = make_batching(source.spec, settings, model.one_hot, engine.examples_per_replica,
                           shard)
  if settings.input.class_sampling == 'balanced':
    batching = batching._replace(class_indices=source.class_indices())
  if model.frozen_part is None:
    return make_train_input_fn(source, settings, batching)
  model_dir = run.run_dir.path
  features = frozen_features.compute_features(
      model.frozen_part,
      finding.latest_checkpoint_and_step(model_dir)[0]
      or saved_weights.initial_weights_path(model_dir),
      source, settings, engine.devices)
  return arrays.make_train_input_fn(source, features, source.class_indices(), batching)


def _failure_with_context(error: TrainingFailed, run: Run, hooks: 'RunHooks') -> TrainingFailed:
  """Returns a TrainingFailed that also states the last losses and the last good checkpoint."""
  last_checkpoint = run.run_dir.last_checkpoint()
  text = str(error) if isinstance(error, CheckpointNotSaved) else '{}; {}'.format(
      error, hooks.loss_check.loss_history)
  return TrainingFailed('{}; {}'.format(
      text, 'there is no checkpoint' if last_checkpoint is None else
      'the last good checkpoint is ' + last_checkpoint))


def _make_outcome(run: Run, signals: SignalState, hooks: 'RunHooks') -> Outcome:
  """Returns the outcome of a training that has ended without an error."""
  # Only the chief reads the step of the last checkpoint, because other tasks may run this code
  # before the chief has saved the checkpoint.
  reached_step = (finding.latest_checkpoint_and_step(run.run_dir.path)[1]
                  if run.process.is_chief else hooks.monitor.global_step)
  has_stopped, stop_reason = hooks.stop_hook.has_stopped, None
  if has_stopped and signals.stop_signum is None:
    stop_reason = selection.read_stop_reason(
        run.run_dir, run.settings.evaluation, reached_step)
  return Outcome(hooks.run_times(reached_step), has_stopped and stop_reason is None, stop_reason)


def raise_if_stopped(outcome: Outcome, signals: SignalState) -> None:
  """Raises an error if a signal stopped the training, or arrived after the training.

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


class RunHooks:
  """The hooks of a training run.

  Args:
    run: the run.
    model: the model to train.
    signals: the signals received so far.
    evaluate_latest: see EvaluateLatest. Called after each checkpoint at which an evaluation is
      due, except the last checkpoint. None: this process does not evaluate.

  Attributes:
    monitor: counts the steps.
    loss_check: stops the training at a loss that is not finite.
    summaries: writes TensorBoard's data.
    stop_hook: stops the training after a signal, or when an evaluation requests a stop.
    all: the hooks, in the order in which the Estimator calls them.
  """

  def __init__(self, run: Run, model: PreparedModel, signals: SignalState,
               evaluate_latest: Optional[EvaluateLatest]) -> None:
    if run.event_dir is not None:
      estimator_patches.open_event_file(run.event_dir)
    engine, is_chief = run.engine, run.process.is_chief
    user_hooks = make_user_hooks(run.settings)  # Fails before the other hooks start threads.
    self._times = StepTimes(run.start_up)
    watchdog = stopping.StepWatchdog(run.settings.cluster.step_timeout_secs or math.inf,
                                     engine.is_waiting_for_peer)
    self.monitor = StepMonitor(engine.is_synchronous)
    self.loss_check = stopping.StopAtNonFiniteLoss(
        self.monitor, run.settings.optimizer.on_nan == 'skip', model.schedule)
    self.summaries = WriteSummaries(run, self.monitor)
    self.stop_hook = stopping.RespondToSignals(signals, engine, self.monitor)
    progress = ShowProgress(run, model, self.monitor)
    self._saver = _make_saver(run, self._times, self.stop_hook, signals, evaluate_latest)
    self._tracer = _make_tracer(run, self.monitor, self._times)
    if is_chief:
      self.stop_hook.save_now = self._saver.save_now
    self._close_hooks = (progress.close, watchdog.close, self._saver.close)
    # The loss check precedes the saver, so that nothing is saved after the check has ended the run.
    self.all: List[tf.train.SessionRunHook] = [
        TimeSteps(self._times),
        self.monitor,
        watchdog,
        self.loss_check,
        self.summaries,
        progress,
        *([LogEpochs(run, model, self.monitor)] if run.clock.num_examples else []),
        *([self._saver] if is_chief else []),
        *([self._tracer] if self._tracer else []),
        *user_hooks,
        self.stop_hook,
        *engine.hooks()]

  def close(self) -> None:
    """Ends the threads and clears the progress bar; must be called after a failure, too."""
    for close in self._close_hooks:
      close()

  def run_times(self, reached_step: int) -> RunTimes:
    """Returns the measured times of the run, which ended at a global step."""
    return self._times.of_run(reached_step, self.loss_check.last_finite_loss,
                              self._tracer.traced_steps if self._tracer else frozenset())


def _make_tracer(run: Run, monitor: StepMonitor, times: StepTimes) -> Optional[TraceSteps]:
  """Makes the hook of `--trace_steps`; None if this process traces no step."""
  settings, end_step = run.settings, run.end_step
  if settings.reporting.trace_steps is None or not run.process.is_chief:
    return None
  first, last = settings.reporting.trace_steps
  if last <= run.start.step or first > end_step:
    _LOG.warning('no step of --trace_steps=%d:%d is traced: this run trains steps %d to %d', first,
                 last, run.start.step + 1, end_step)
    return None
  return TraceSteps(monitor, times, run.run_dir.path, first, min(last, end_step))


def _make_saver(run: Run, times: StepTimes, stop_hook: stopping.RespondToSignals,
                signals: SignalState,
                evaluate_latest: Optional[EvaluateLatest]) -> SaveCheckpoints:
  """Makes the hook that saves checkpoints, and that calls `evaluate_latest` after some saves."""
  flags, eval_steps = run.settings.checkpoints, run.settings.evaluation.eval_every_steps
  save_steps, save_secs = flags.save_checkpoints_steps, flags.save_checkpoints_secs

  def evaluate() -> None:
    if stop_hook.has_stop_signal or evaluate_latest is None:
      return  # After a signal, the resumed run will evaluate this checkpoint.
    with times.record_pause('evaluation'), run.engine.busy('evaluating'):
      stop_reason = evaluate_latest()
    if stop_reason is not None:
      _LOG.info('stopping: %s', stop_reason.text)
      stop_hook.request_stop()

  after_save: Callable[[int], None] = lambda step: None
  if eval_steps and evaluate_latest:
    save_steps = save_steps or eval_steps
    after_save = make_periodic_callback(eval_steps, _evaluations_due_after(run, eval_steps),
                                        run.end_step, evaluate)
  if save_steps is None and save_secs is None:
    save_secs = DEFAULT_SAVE_SECS
  retrying_saver = RetryingSaver(run.run_dir, flags.save_retry_secs,
                                 is_stopping=lambda: signals.stop_signum is not None)
  return SaveCheckpoints(run.run_dir.path, save_steps, save_secs, retrying_saver,
                         times.record_pause, after_save)


def make_periodic_callback(every_steps: int, due_after_step: int, end_step: int,
                           function: Callable[[], None]) -> Callable[[int], None]:
  """Returns a callback that calls a function at the first checkpoint in each N global steps.

  Args:
    every_steps: N, a multiple of the number of steps between checkpoints.
    due_after_step: the global step after which calls are due.
    end_step: the global step at which training ends; the function is not called at this step.
    function: the function to call, which evaluates the latest checkpoint.
  """
  last_interval = due_after_step // every_steps

  def after_save(step: int) -> None:
    # With parameter servers, checkpoints need not be at multiples of N, because other workers
    # increment the global step, too. What counts is that a new interval of N steps has begun.
    nonlocal last_interval
    interval = step // every_steps
    if interval > last_interval and step < end_step:
      last_interval = interval
      function()

  return after_save


def _evaluations_due_after(run: Run, every_steps: int) -> int:
  """Returns the global step after which evaluations are due.

  If an evaluation at the start step is due but missing, this is the step before it.
  """
  best = best_checkpoint.read_best(run.run_dir.path)
  is_unevaluated = best is None or best.last_evaluated_step != run.start.step
  if is_unevaluated and run.start.step % every_steps == 0:
    return max(run.start.step - 1, 0)
  return run.start.step
