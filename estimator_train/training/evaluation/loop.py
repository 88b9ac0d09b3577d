"""The evaluation loop: evaluates checkpoints, promotes the best one, and decides when to stop."""

import logging
import time
from typing import Any, Callable, Dict, Optional, Set

import tensorflow.compat.v1 as tf

from estimator_train.training.checkpoints import (
  best_checkpoint,
  save_hook,
)
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.early_stopping import StopReason
from estimator_train.training.evaluation.evaluator import EvaluationStopped, Evaluator
from estimator_train.training.evaluation.sample_predictions import EvaluationSamples
from estimator_train.training.model import Model
from estimator_train.training.run import Run

_LOG = logging.getLogger('estimator_train')
_POLL_SECS = 1.

# A function that takes the return values of Evaluator.evaluate, writes the reports, and returns the
# result of the evaluation.
WriteReports = Callable[[Dict[str, Any], EvaluationSamples], Dict[str, Any]]


class EvaluationLoop:
  """Evaluates the checkpoints of a training run, and promotes the best of them.

  Args:
    run: the run.
    model: the model to evaluate.
    write_reports: a function that is called after each evaluation, see WriteReports.
    is_stop_requested: see Evaluator.

  Attributes:
    best_metric: the metric that selects the best checkpoint.
  """

  def __init__(self, run: Run, model: Model, write_reports: WriteReports,
               is_stop_requested: Callable[[], bool]) -> None:
    self._run_dir, self._settings = run.run_dir, run.settings.evaluation
    self._evaluator = Evaluator(run, model, is_stop_requested)
    self._write_reports = write_reports
    process = run.process
    self._pinned_by = None if process.is_chief else process.role
    self.best_metric = model.best_metric
    self._last_result: Dict[str, Any] = {}
    self._stop_reason: Optional[StopReason] = None

  def evaluate(self, path: Optional[str] = None) -> Dict[str, Any]:
    """Evaluates a checkpoint, unless the same checkpoint was evaluated last.

    Args:
      path: the path of the checkpoint, or None for the latest one.

    Returns:
      The result of the evaluation, with the best checkpoint so far as `best`; {} if a signal
      interrupted the evaluation.
    """
    path = path or save_hook.latest_checkpoint_and_step(self._run_dir.path)[0]
    assert path is not None
    if self._last_result.get('checkpoint') == path:
      return self._last_result
    # Without the pin, the chief could delete the checkpoint while the evaluator task reads it.
    pinned_path = best_checkpoint.pin(path, self._run_dir.path, self._pinned_by)
    try:
      metrics, samples = self._evaluator.evaluate(pinned_path)
    except EvaluationStopped:
      _LOG.info('the evaluation of %s was interrupted; the same command repeats it', path)
      return {}
    metrics['checkpoint'] = path
    self._last_result = self._write_reports(metrics, samples)
    best = best_checkpoint.promote_if_better(
        pinned_path, metrics['global_step'], best_checkpoint.values_of(metrics), self.best_metric,
        self._run_dir.path)
    self._last_result['best'] = best.as_result()
    self._stop_reason = early_stopping.find_stop_reason(
        self._settings, metrics, self.best_metric, best)
    if self._stop_reason is not None:
      early_stopping.write_stop_reason(self._run_dir, self._settings, self._stop_reason)
    return self._last_result

  def evaluate_latest(self) -> Optional[StopReason]:
    """Evaluates the latest checkpoint, and returns the reason to stop, or None to continue."""
    return self._stop_reason if self.evaluate() else None

  def evaluate_new_checkpoints(self, last_step: int) -> Dict[str, Any]:
    """Evaluates each checkpoint that another process saves, up to the checkpoint of the last step.

    Args:
      last_step: the global step at which the training ends.

    Returns:
      The result of the last evaluation.
    """
    result: Dict[str, Any] = {'global_step': -1}
    evaluated: Set[str] = set()
    while result['global_step'] < last_step:
      state = tf.train.get_checkpoint_state(self._run_dir.path)
      new_paths = [path for path in (state.all_model_checkpoint_paths if state else ())
                   if path not in evaluated and tf.train.checkpoint_exists(path)]
      if not new_paths:
        time.sleep(_POLL_SECS)
        continue
      evaluated.add(new_paths[0])
      try:
        result = self.evaluate(new_paths[0])
      except FileNotFoundError:
        _LOG.warning('%s was deleted before it could be evaluated', new_paths[0])
    return result
