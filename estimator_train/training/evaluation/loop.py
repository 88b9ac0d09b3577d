"""The evaluations of a training run: each keeps the best checkpoint, and says whether to stop."""

import logging
from typing import Any, Callable, Dict, List, Optional

from estimator_train.training.checkpoints import best_checkpoint, save_hook
from estimator_train.training.evaluation import early_stopping
from estimator_train.training.evaluation.evaluator import CutShort, Evaluation
from estimator_train.training.evaluation.sample_predictions import Sample
from estimator_train.training.plan import Run

_LOG = logging.getLogger('estimator_train')


class Rounds:
  """Evaluates the checkpoints of a run as they come.

  Args:
    run: that trains, or evaluates what others train.
    write: takes what Evaluation.of returns, and returns the result of that.
    is_stopped: whether to cut an evaluation short.
  """

  def __init__(self, run: Run,
               write: Callable[[Dict[str, Any], List[Sample]], Dict[str, Any]],
               is_stopped: Callable[[], bool] = lambda: False) -> None:
    self._run = run
    self._write = write
    self._evaluation = Evaluation(run, is_stopped)
    self._last: Dict[str, Any] = {}
    self._reason_to_stop: Optional[str] = None

  def evaluate(self, path: Optional[str] = None) -> Dict[str, Any]:
    """Evaluates a checkpoint, unless it was the last that was evaluated.

    Args:
      path: of it; None: the latest.

    Returns:
      The result, with the `best` so far; nothing where it was cut short.
    """
    settings = self._run.settings
    assert settings.model_dir is not None
    path = path or save_hook.latest(settings.model_dir)[0]
    assert path is not None
    if self._last.get('checkpoint') == path:
      return self._last
    # Held first: the chief of a cluster may delete it while its evaluator evaluates.
    held = best_checkpoint.hold(path, settings.model_dir,
                                'evaluator' if self._run.is_evaluator else None)
    try:
      counted, samples = self._evaluation.of(held)
    except CutShort:
      _LOG.info('the evaluation of %s is cut short; the same command makes up for it', path)
      return {}
    counted['checkpoint'] = path
    self._last = self._write(counted, samples)
    best = best_checkpoint.offer(held, counted, settings)
    self._last['best'] = best.as_result()
    self._reason_to_stop = early_stopping.reason(settings, counted, best)
    if self._reason_to_stop is not None:
      early_stopping.record(settings, counted['global_step'], self._reason_to_stop)
    return self._last

  def evaluate_now(self) -> Optional[str]:
    """Evaluates the latest checkpoint, and returns why to stop; None: go on."""
    return self._reason_to_stop if self.evaluate() else None
