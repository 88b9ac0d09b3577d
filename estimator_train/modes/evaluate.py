"""`--mode=evaluate`: evaluates a checkpoint, mostly one of a model_dir."""

from typing import Any, Dict

from estimator_train.process.start_up import StartUp
from estimator_train.reports import evaluation, learning_curves, page
from estimator_train.settings import Settings, groups
from estimator_train.training.evaluation.evaluator import Evaluator
from estimator_train.training.plan import make_plan
from estimator_train.training.prepared_model import prepare_model


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: how good the checkpoint is on the test examples."""
  start_up = StartUp()
  plan = make_plan(settings, start_up)
  evaluator = Evaluator(plan, prepare_model(plan, start_up))
  result = evaluation.write(settings[groups.Run], plan.data.dataset.labels,
                            *evaluator.evaluate(plan.checkpoint.path))
  result.update(plan.skipped_images)
  learning_curves.write(settings[groups.Run])
  page.write_after(settings.model_dir, settings[groups.Reporting])
  return result
