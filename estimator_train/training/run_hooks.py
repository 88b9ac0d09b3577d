"""Makes the hooks of a training run, and collects the times that the hooks have measured."""

import logging
import math
from typing import Callable, List, Optional

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Timing
from estimator_train.settings.groups import DEFAULT_SAVE_SECS
from estimator_train.system.progress import Phase
from estimator_train.system.signals import SignalState, exit_now
from estimator_train.tf_patches import estimator as estimator_patches
from estimator_train.training.checkpoints import best_checkpoint, save_hook
from estimator_train.training.checkpoints.retrying_saver import RetryingSaver
from estimator_train.training.evaluation.early_stopping import StopReason
from estimator_train.training.hooks import finite, progress, stopping, trace
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.epochs import LogEpochs
from estimator_train.training.hooks.record_steps import RecordSteps
from estimator_train.training.hooks.step_counter import StepCounter
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
    settings, stop_step, engine = run.settings, run.stop_step, run.engine
    is_chief = engine.process.is_chief
    event_dir = run.run_dir.path if is_chief else None
    if event_dir is not None:
      estimator_patches.open_event_file(event_dir)
    self._start_up = run.start_up
    self._first_step_phase = Phase('building the graph and running the first step')
    self._history = RecordSteps(run.start_up)
    self._watchdog = StepWatchdog(settings.cluster.step_timeout_secs or math.inf,
                                  engine.is_waiting_for_peer, _end_hanging_process)
    self.counter = StepCounter(engine.is_synchronous)
    metrics = BatchMetrics()
    self.loss_check = finite.StopAtNonFiniteLoss(
        self.counter, metrics, settings.optimizer.on_nan == 'skip', model.schedule)
    self.summaries = WriteSummaries(self.counter, event_dir, settings, stop_step,
                                    run.data.dataset.labels)
    assert run.data.train is not None
    num_examples = run.data.train.num_examples
    self._progress = progress.ShowProgress(
        self.counter, metrics, event_dir, stop_step, settings.reporting.log_every_steps,
        engine.examples_per_step, num_examples, model.schedule, self._first_step_phase.end)
    self.stop_hook = stopping.StopOnSignal(signals, engine, self.counter)
    self._saver = _make_saver(run, evaluate_latest, self.stop_hook, signals)
    self._tracer = _make_tracer(run, self.counter)
    # The loss check precedes the saver, so that nothing is saved after the check has ended the run.
    self.all: List[tf.train.SessionRunHook] = [
        self._history, self.counter, self._watchdog, metrics, self.loss_check, self.summaries,
        self._progress]
    if num_examples is not None:
      self.all.append(LogEpochs(model.schedule, num_examples, engine.examples_per_step, stop_step,
                                self.counter, metrics))
    if is_chief:
      self.all += [self._saver, self._tracer] if self._tracer else [self._saver]
    self.all += [stopping.SaveOnSignal(signals, self._saver.save_now if is_chief else None),
                 self.stop_hook]
    self.all += engine.hooks()

  def close(self) -> None:
    """Ends the threads and clears the progress bar; must be called after a failure, too."""
    self._first_step_phase.end()
    self._watchdog.close()
    self._progress.close()
    self._saver.close()

  def make_timing(self, last_step: int) -> Timing:
    """Returns the measured times of the run; `last_step` is the step of the last checkpoint."""
    history = self._history
    timing = Timing(history.began, history.ended, history.waited, self._start_up.secs, last_step,
                    self.loss_check.last_finite_loss, self._saver.pauses,
                    discarded_steps=history.discarded_steps)
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
