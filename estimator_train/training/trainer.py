"""Carries out a training run: makes its plan, prepares its model, and trains to the last step."""

import functools
import logging
import signal
from typing import Any, Callable, Dict, NamedTuple, Optional

from tqdm.contrib.logging import logging_redirect_tqdm

from estimator_train.cluster.worker import SINGLE_WORKER, Worker
from estimator_train.errors import CheckpointNotSaved, PeerLost, StoppedBySignal, TrainingFailed
from estimator_train.inputs import factory as inputs
from estimator_train.inputs.batching import Shard
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.process.signals import SignalState
from estimator_train.process.start_up import StartUpTimer
from estimator_train.reports.step_times import Timing
from estimator_train.settings import Settings, groups
from estimator_train.tf_patches import estimator as estimator_patches, saved_weights
from estimator_train.training import frozen_features
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.early_stopping import StopReason
from estimator_train.training.evaluation.evaluator import Evaluator
from estimator_train.training.evaluation.loop import EvaluationLoop
from estimator_train.training.plan import Plan, make_plan
from estimator_train.training.prepared_model import PreparedModel, prepare_model
from estimator_train.training.run_hooks import RunHooks

_LOG = logging.getLogger('estimator_train')


class TrainingOutcome(NamedTuple):
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


class Trainer:
  """Trains a model up to the last step, or until a signal or an evaluation requests a stop.

  Args:
    settings: the settings of the run.
    signals: the signals received so far. The caller uses this object in a `with` statement around
      training and reports, so that no signal interrupts the training or the reports.
    write_reports: writes the reports of an evaluation, and returns the result of the evaluation.
      Called with the flags of the group `run`, the class names and the two return values of
      Evaluator.evaluate. None: this process does not evaluate.
    worker: the role of this process in the run.

  Attributes:
    plan: the data, devices, checkpoint and steps of the run.
    evaluation: the evaluation loop; None: this process does not evaluate.

  Raises:
    PeerLost: another worker did not connect.
    UserError: a flag, the data or the checkpoint is invalid; nothing has been trained yet.
  """

  def __init__(self, settings: Settings, signals: SignalState,
               write_reports: Optional[Callable[..., Dict[str, Any]]] = None,
               worker: Worker = SINGLE_WORKER) -> None:
    self._settings, self._signals = settings, signals
    self._start_up = StartUpTimer()
    self.plan: Plan = make_plan(settings, self._start_up, worker)
    self._engine = self.plan.engine
    self._model: PreparedModel = prepare_model(self.plan, self._start_up)
    self.evaluation: Optional[EvaluationLoop] = None
    if write_reports is not None:
      evaluator = Evaluator(self.plan, self._model, lambda: signals.stop_signum is not None)
      self.evaluation = EvaluationLoop(
          self.plan.run_dir, settings[groups.Evaluation], evaluator, self._model.best_metric,
          functools.partial(write_reports, settings[groups.Run], self.plan.data.dataset.labels),
          None if worker.is_chief else worker.role)

  def train(self) -> TrainingOutcome:
    """Trains up to the last step, or until a stop is requested, and saves a last checkpoint.

    Raises:
      StoppedBySignal: a signal arrived before the first step.
      TrainingFailed: the loss or the weights are not finite, or a checkpoint could not be saved.
      UserError: the input could not be read.
    """
    plan, model_dir = self.plan, self.plan.run_dir.path
    assert plan.stop_step is not None
    if plan.start_step >= plan.stop_step or plan.stop_reason is not None:
      return self._outcome_without_training()
    if plan.start_step:
      _LOG.info('resuming from step %d, %d examples seen, in %s', plan.start_step,
                plan.examples_seen, model_dir)
      if self._settings.input_pipeline == 'published':
        _LOG.warning('--input_pipeline=published starts another epoch instead of continuing with '
                     'the next example')
    if self._engine.worker.is_chief:
      early_stopping.remove_stop_reason(plan.run_dir)
      plan.run_dir.record_batch_size(plan.start_step, self._engine.examples_per_step,
                                     plan.examples_seen)
    source = inputs.make_source(plan.data.dataset, plan.data.dataset.train)
    with translate_errors(source), self._engine.busy('preparing its input'):
      input_fn = self._make_input_fn()
    self._start_up.end_phase('data')
    hooks = RunHooks(plan, self._model, self._start_up, self._signals,
                     self.evaluation.evaluate_latest if self.evaluation else None)
    try:
      # Log lines would break the progress bar, so tqdm writes the lines above the bar.
      with logging_redirect_tqdm([_LOG] if _LOG.handlers else []), \
          estimator_patches.without_nan_hook(), translate_errors(source):
        self._engine.train(self._model.training_estimator, input_fn, hooks.all, plan.stop_step)
    except TrainingFailed as error:
      hooks.summaries.record_failure()
      raise self._failure_with_context(error, hooks) from error
    finally:
      hooks.close()
    return self._make_outcome(hooks)

  def leave_cluster(
      self, measurements: Optional[Dict[str, Any]] = None) -> Dict[str, Dict[str, Any]]:
    """Leaves the cluster; the chief first waits until all other workers have left.

    Args:
      measurements: the measurements that a worker sends to the chief; None on the chief.

    Returns:
      On the chief, the measurements of each other worker by the worker's name; else an empty dict.
    """
    return self._engine.finish(measurements)

  def _outcome_without_training(self) -> TrainingOutcome:
    """Logs why there is nothing to train, and returns an outcome without steps."""
    plan, model_dir = self.plan, self.plan.run_dir.path
    timing = Timing([], [], [], {}, plan.start_step, None)
    if plan.stop_step is not None and plan.start_step >= plan.stop_step:
      # Only --train_steps can end a run before the checkpoint's step; see total_train_steps.
      _LOG.info('nothing to train: %s is at step %d%s', model_dir, plan.start_step,
                ' of {}'.format(plan.stop_step) if plan.start_step == plan.stop_step
                else ', past --train_steps={}'.format(plan.stop_step))
      return TrainingOutcome(timing)
    assert plan.stop_reason is not None
    _LOG.info('nothing to train: %s was stopped at step %d (%s); to continue, change or omit '
              '--early_stopping_steps or --stop_at_accuracy', model_dir, plan.start_step,
              plan.stop_reason.text)
    return TrainingOutcome(timing, stop_reason=plan.stop_reason)

  def _make_input_fn(self) -> inputs.InputFn:
    """Makes the training `input_fn`, which yields images or cached features of frozen layers."""
    plan, model, engine = self.plan, self._model, self._engine
    assert engine.worker.rank is not None
    shard = Shard(engine.first_example(plan.examples_seen), engine.size, engine.worker.rank,
                  engine.examples_per_worker)
    if model.frozen_part is None:
      return inputs.make_train_input_fn(plan.data.dataset, self._settings, model.one_hot,
                                        engine.examples_per_replica, shard)
    model_dir = plan.run_dir.path
    features = frozen_features.compute_features(
        model.frozen_part,
        save_hook.latest_checkpoint_and_step(model_dir)[0]
        or saved_weights.initial_weights_path(model_dir),
        inputs.make_single_epoch(plan.data.dataset, self._settings), self._settings, engine.devices)
    return inputs.make_feature_input_fn(plan.data.dataset, self._settings, model.one_hot,
                                        engine.examples_per_replica, shard, features)

  def _failure_with_context(self, error: TrainingFailed, hooks: RunHooks) -> TrainingFailed:
    """Returns a TrainingFailed that also states the last losses and the last good checkpoint."""
    last_checkpoint = self.plan.run_dir.last_checkpoint()
    text = str(error) if isinstance(error, CheckpointNotSaved) else '{}; {}'.format(
        error, hooks.loss_check.loss_history)
    return TrainingFailed('{}; {}'.format(
        text, 'there is no checkpoint' if last_checkpoint is None else
        'the last good checkpoint is ' + last_checkpoint))

  def _make_outcome(self, hooks: RunHooks) -> TrainingOutcome:
    """Returns the outcome of a training that has ended without an error."""
    # Only the chief reads the step of the last checkpoint, because other tasks may run this code
    # before the chief has saved the checkpoint.
    is_chief = self._engine.worker.is_chief
    last_step = (save_hook.latest_checkpoint_and_step(self.plan.run_dir.path)[1] if is_chief
                 else hooks.counter.global_step)
    has_stopped, signum, stop_reason = hooks.stop_hook.has_stopped, self._signals.stop_signum, None
    if has_stopped and signum is None:
      stop_reason = early_stopping.read_stop_reason(
          self.plan.run_dir, self._settings[groups.Evaluation], last_step)
    return TrainingOutcome(hooks.make_timing(last_step), signum,
                           has_stopped and stop_reason is None, stop_reason)


def raise_if_stopped(outcome: TrainingOutcome, signals: SignalState) -> None:
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


def run_evaluator_task(settings: Settings, worker: Worker,
                       write_reports: Callable[..., Dict[str, Any]]) -> Dict[str, Any]:
  """Evaluates each checkpoint that the chief saves, up to the last step.

  Args:
    settings: the settings of the run.
    worker: the role of this process, the evaluator.
    write_reports: see Trainer.

  Returns:
    The result of the last evaluation.
  """
  trainer = Trainer(settings, SignalState(), write_reports, worker)
  assert trainer.evaluation is not None and trainer.plan.stop_step is not None
  return trainer.evaluation.evaluate_new_checkpoints(trainer.plan.stop_step)
