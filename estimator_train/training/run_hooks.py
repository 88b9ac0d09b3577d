"""Makes the hooks of a training run, and collects the times that the hooks have measured."""

import logging
import math
from typing import Callable, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Timing
from estimator_train.settings.groups import DEFAULT_SAVE_SECS
from estimator_train.system.signals import SignalState, exit_now
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training.checkpoints import best_checkpoint, save_hook
from estimator_train.training.checkpoints.retrying_saver import RetryingSaver
from estimator_train.training.early_stopping import StopReason
from estimator_train.training.hooks import finite, stopping, trace
from estimator_train.training.hooks.progress import LogEpochs, ShowProgress
from estimator_train.training.hooks.step_timer import StepTimer
from estimator_train.training.hooks.steps import BatchMetrics, StepCounter
from estimator_train.training.hooks.summaries import WriteSummaries
from estimator_train.training.hooks.watchdog import StepWatchdog, dump_stacks
from estimator_train.training.model import Model
from estimator_train.training.run import Run

_LOG = logging.getLogger('estimator_train')

# Evaluates the latest checkpoint, and returns the reason to stop, or None to continue.
EvaluateLatest = Callable[[], Optional[StopReason]]


class RunHooks:
  """The hooks of a training run.

  Args:
    run: the run.
    model: the model to train.
    signals: the signals received so far.
    evaluate_latest: see EvaluateLatest. Called after each checkpoint at which an evaluation is
      due, except the last checkpoint. None: this process does not evaluate.

  Attributes:
    counter: counts the steps.
    loss_check: stops the training at a loss that is not finite.
    summaries: writes TensorBoard's data.
    stop_hook: stops the training after a signal, or when an evaluation requests a stop.
    all: the hooks, in the order in which the Estimator calls them.
  """

  def __init__(self, run: Run, model: Model, signals: SignalState,
               evaluate_latest: Optional[EvaluateLatest]) -> None:
    if run.event_dir is not None:
      estimator_patches.open_event_file(run.event_dir)
    engine, is_chief = run.engine, run.process.is_chief
    self._run = run
    self._step_timer = StepTimer(run.start_up)
    watchdog = StepWatchdog(run.settings.cluster.step_timeout_secs or math.inf,
                            engine.is_waiting_for_peer, _end_hanging_process)
    self.counter = StepCounter(engine.is_synchronous)
    metrics = BatchMetrics()
    self.loss_check = finite.StopAtNonFiniteLoss(
        self.counter, metrics, run.settings.optimizer.on_nan == 'skip', model.schedule)
    self.summaries = WriteSummaries(run, self.counter)
    self.stop_hook = stopping.StopOnSignal(signals, engine, self.counter)
    progress = ShowProgress(run, model, self.counter, metrics)
    self._saver = _make_saver(run, evaluate_latest, self.stop_hook, signals)
    self._tracer = _make_tracer(run, self.counter)
    self._close_hooks = (progress.close, watchdog.close, self._saver.close)
    # The loss check precedes the saver, so that nothing is saved after the check has ended the run.
    self.all: List[tf.train.SessionRunHook] = [
        self._step_timer,
        self.counter,
        watchdog,
        metrics,
        self.loss_check,
        self.summaries,
        progress,
        *([LogEpochs(run, model, self.counter, metrics)] if run.num_train_examples else []),
        *([self._saver] if is_chief else []),
        *([self._tracer] if is_chief and self._tracer else []),
        stopping.SaveOnSignal(signals, self._saver.save_now if is_chief else None),
        self.stop_hook,
        *engine.hooks()]

  def close(self) -> None:
    """Ends the threads and clears the progress bar; must be called after a failure, too."""
    for close in self._close_hooks:
      close()

  def make_timing(self, last_step: int) -> Timing:
    """Returns the measured times of the run; `last_step` is the step of the last checkpoint."""
    steps = self._step_timer
    timing = Timing(steps.began, steps.ended, steps.waited, self._run.start_up.secs, last_step,
                    self.loss_check.last_finite_loss, self._saver.pauses,
                    discarded_steps=steps.discarded_steps)
    if self._tracer is None:
      return timing
    return timing._replace(pauses=self._saver.pauses + self._tracer.pauses,
                           traced_steps=self._tracer.traced_steps)


def _make_tracer(run: Run, counter: StepCounter) -> Optional[trace.TraceSteps]:
  """Makes the hook of `--trace_steps`; returns None if this run has no step to trace."""
  settings, stop_step = run.settings, run.stop_step
  if settings.reporting.trace_steps is None:
    return None
  first, last = settings.reporting.trace_steps
  if last <= run.start.step or first > stop_step:
    _LOG.warning('no step of --trace_steps=%d:%d is traced: this run trains steps %d to %d', first,
                 last, run.start.step + 1, stop_step)
    return None
  return trace.TraceSteps(counter, run.run_dir.path, first, min(last, stop_step))


def _make_saver(run: Run, evaluate_latest: Optional[EvaluateLatest],
                stop_hook: stopping.StopOnSignal,
                signals: SignalState) -> save_hook.SaveCheckpoints:
  """Makes the hook that saves checkpoints, and that calls `evaluate_latest` after some saves."""
  settings = run.settings
  listeners = []
  save_steps = settings.checkpoints.save_checkpoints_steps
  eval_steps = settings.evaluation.eval_every_steps
  if eval_steps and evaluate_latest:
    save_steps = save_steps or eval_steps

    def evaluate() -> None:
      if stop_hook.has_stop_signal:  # The resumed run will evaluate this checkpoint.
        return
      with run.engine.busy('evaluating'):
        stop_reason = evaluate_latest()
      if stop_reason is not None:
        _LOG.info('stopping: %s', stop_reason.text)
        stop_hook.request_stop()

    listeners.append(save_hook.CallEveryNSteps(
        eval_steps, _evaluations_due_after(run, eval_steps), run.stop_step, evaluate))
  save_secs = settings.checkpoints.save_checkpoints_secs
  if save_steps is None and save_secs is None:
    save_secs = DEFAULT_SAVE_SECS
  retrying_saver = RetryingSaver(run.run_dir, settings.checkpoints.save_retry_secs,
                                 is_stopping=lambda: signals.stop_signum is not None)
  return save_hook.SaveCheckpoints(run.run_dir.path, save_steps, save_secs, retrying_saver,
                                   listeners)


def _evaluations_due_after(run: Run, every_steps: int) -> int:
  """Returns the global step after which evaluations are due; earlier steps need no evaluation.

  The evaluation at the start step is still due if the previous run was killed before the evaluation
  had ended.
  """
  best = best_checkpoint.read_best(run.run_dir.path)
  is_unevaluated = best is None or best.last_evaluated_step != run.start.step
  if is_unevaluated and run.start.step % every_steps == 0:
    return max(run.start.step - 1, 0)
  return run.start.step


def _end_hanging_process(secs: float) -> None:
  """Ends this process, because no step has finished for `secs` seconds."""
  dump_stacks()
  exit_now(
      'no step finished for {:.0f} s (--step_timeout_secs): the stack of each thread is above; '
      'the same command resumes from the last checkpoint; on several GPUs NCCL_DEBUG=INFO logs '
      'the cause, and --all_reduce_alg=hierarchical_copy (on one machine) or ring (on several '
      'machines) avoids NCCL'.format(secs))
