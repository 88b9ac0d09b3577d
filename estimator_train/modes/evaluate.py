"""`--mode=evaluate`: evaluates a checkpoint."""

from typing import Any, Dict

from estimator_train.reports import evaluation, learning_curves, page
from estimator_train.settings import Settings
from estimator_train.training.evaluation import Evaluator
from estimator_train.training.model import prepare
from estimator_train.training.run import open_run


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result, which has the metrics of the checkpoint on the test examples."""
  run = open_run(settings)
  evaluator = Evaluator(run, prepare(run))
  result = evaluation.write_evaluation_report(
      settings.run, run.data.dataset.labels, *evaluator.evaluate(run.start.checkpoint))
  result.update(run.skipped_images_result)
  learning_curves.write_learning_curves(settings.run.folder)
  page.write_page_of_finished_run(settings.run.model_dir, settings.reporting)
  return result
