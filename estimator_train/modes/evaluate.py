"""`--mode=evaluate`: evaluates a checkpoint, mostly one of a model_dir."""

from typing import Any, Dict

from estimator_train.reports import evaluation, learning_curves, page
from estimator_train.settings import Settings
from estimator_train.training import plan
from estimator_train.training.evaluation.evaluator import Evaluation


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: how well the checkpoint does on the test examples."""
  prepared = plan.prepare(settings)
  result = evaluation.write(settings, prepared.dataset.labels,
                            *Evaluation(prepared).of(prepared.checkpoint))
  result.update(prepared.left_out)
  learning_curves.write(settings)
  page.write_after(settings)
  return result
