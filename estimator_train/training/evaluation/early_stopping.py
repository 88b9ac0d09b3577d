"""When evaluations say that it is time to stop, and `stopped.json`, which says that it was."""

import contextlib
import json
import os
from typing import Any, Dict, Optional

from estimator_train.files import atomic
from estimator_train.settings import Settings
from estimator_train.training.checkpoints.best_checkpoint import Best

_FILE = 'stopped.json'
_RULES = ('early_stopping_steps', 'stop_at_accuracy', 'best_metric')


def reason(settings: Settings, figures: Dict[str, Any], best: Best) -> Optional[str]:
  """Returns why to stop after an evaluation; None: go on.

  Args:
    settings: of the run.
    figures: `accuracy` and `global_step` of the evaluation.
    best: so far.
  """
  if settings.stop_at_accuracy is not None and figures['accuracy'] >= settings.stop_at_accuracy:
    return 'accuracy {:.4f} reaches {:g}'.format(figures['accuracy'], settings.stop_at_accuracy)
  steps = settings.early_stopping_steps
  if steps is not None and figures['global_step'] - best.global_step >= steps:
    return 'no better {} for {} steps'.format(
        settings.best_metric.replace('_', ' '), figures['global_step'] - best.global_step)
  return None


def record(settings: Settings, global_step: int, why: str) -> None:
  """Notes that training was stopped, so that the same command does not train on."""
  atomic.write_json(_path(settings), dict(_rules(settings), global_step=global_step, why=why))


def recorded(settings: Settings, global_step: int) -> Optional[str]:
  """Returns why training was stopped, by these rules and not after this step; None: it was not."""
  try:
    with open(_path(settings), encoding='utf-8') as file:
      told = json.load(file)
    if told['global_step'] <= global_step and _rules(settings).items() <= told.items():
      return str(told['why'])
  except (OSError, ValueError, TypeError, KeyError, AttributeError):
    pass  # One more evaluation finds out.
  return None


def forget(settings: Settings) -> None:
  """Removes the note, as training goes on."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(_path(settings))


def _rules(settings: Settings) -> Dict[str, Any]:
  return {name: getattr(settings, name) for name in _RULES}


def _path(settings: Settings) -> str:
  assert settings.model_dir is not None
  return os.path.join(settings.model_dir, _FILE)
