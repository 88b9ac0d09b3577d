"""When an evaluation stops the training, and `stopped.json`, which records that it did."""

import contextlib
import json
import os
from typing import Any, Dict, NamedTuple, Optional

from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups
from estimator_train.training.checkpoints.best_checkpoint import Best

_FILE = 'stopped.json'
_RULES = ('early_stopping_steps', 'stop_at_accuracy', 'best_metric')


class StopReason(NamedTuple):
  """Why an evaluation stopped a training.

  Attributes:
    global_step: of the checkpoint that was evaluated.
    text: the reason, for the log and the result.
  """
  global_step: int
  text: str


def reason(settings: groups.Evaluation, figures: Dict[str, Any],
           best: Best) -> Optional[StopReason]:
  """Returns why to stop after an evaluation; None: continue.

  Args:
    settings: the rules.
    figures: `accuracy` and `global_step` of the evaluation.
    best: so far.
  """
  if settings.stop_at_accuracy is not None and figures['accuracy'] >= settings.stop_at_accuracy:
    return StopReason(figures['global_step'], 'accuracy {:.4f} reaches {:g}'.format(
        figures['accuracy'], settings.stop_at_accuracy))
  steps = settings.early_stopping_steps
  if steps is not None and figures['global_step'] - best.global_step >= steps:
    return StopReason(figures['global_step'], 'no better {} for {} steps'.format(
        settings.best_metric.replace('_', ' '), figures['global_step'] - best.global_step))
  return None


def write(run_dir: RunDir, settings: groups.Evaluation, stop_reason: StopReason) -> None:
  """Records that training was stopped, so that the same command does not continue it."""
  atomic.write_json(run_dir.file(_FILE), dict(
      _rules(settings), global_step=stop_reason.global_step, why=stop_reason.text))


def read(run_dir: RunDir, settings: groups.Evaluation,
         global_step: int) -> Optional[StopReason]:
  """Returns why training was stopped, by these rules and not after this step; None: it was not."""
  try:
    with open(run_dir.file(_FILE), encoding='utf-8') as file:
      recorded = json.load(file)
    if recorded['global_step'] <= global_step and _rules(settings).items() <= recorded.items():
      return StopReason(recorded['global_step'], str(recorded['why']))
  except (OSError, ValueError, TypeError, KeyError, AttributeError):
    pass  # One more evaluation finds out.
  return None


def clear(run_dir: RunDir) -> None:
  """Removes the record, as training continues."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(run_dir.file(_FILE))


def _rules(settings: groups.Evaluation) -> Dict[str, Any]:
  return {name: getattr(settings, name) for name in _RULES}
