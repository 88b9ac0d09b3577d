"""`--mode=evaluate`: evaluates the latest checkpoint of a model_dir."""

from typing import Any, Dict

from estimator_train.reports import evaluation
from estimator_train.settings import Settings
from estimator_train.training import run as runs


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: how well the checkpoint does on the test examples."""
  prepared = runs.prepare(settings)
  result = evaluation.write(settings, prepared.dataset.labels, *runs.evaluate(prepared))
  result.update(prepared.left_out)
  return result
