"""`--mode=evaluate`: evaluates a checkpoint."""

from typing import Any, Dict

from estimator_train.process.start_up import StartUpTimer
from estimator_train.reports import evaluation, learning_curves, page
from estimator_train.settings import Settings, groups
from estimator_train.training.evaluation.evaluator import Evaluator
from estimator_train.training.plan import make_plan
from estimator_train.training.prepared_model import prepare_model


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result, which has the metrics of the checkpoint on the test examples."""
  start_up = StartUpTimer()
  plan = make_plan(settings, start_up)
  evaluator = Evaluator(plan, prepare_model(plan, start_up))
  result = evaluation.write_evaluation_report(
      settings[groups.Run], plan.data.dataset.labels, *evaluator.evaluate(plan.checkpoint.path))
  result.update(plan.skipped_images_result)
  learning_curves.write_learning_curves(settings.model_dir)
  page.write_page_of_finished_run(settings.model_dir, settings[groups.Reporting])
  return result
