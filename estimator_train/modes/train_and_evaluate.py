"""`--mode=train_and_evaluate`: trains, then evaluates the last checkpoint."""

from typing import Any, Dict

from estimator_train.reports import evaluation, page, throughput
from estimator_train.settings import Settings
from estimator_train.training import learning_curves, run as runs, template_model


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: what was trained, how fast, and how well it does."""
  prepared = runs.prepare(settings)

  def evaluate() -> Dict[str, Any]:
    return evaluation.write(settings, prepared.dataset.labels, *runs.evaluate(prepared))

  trained = runs.train(prepared, evaluate_now=evaluate)
  result = throughput.write(settings, prepared.conditions, trained.timing)
  result.update(prepared.left_out)
  template_model.save(settings, prepared.dataset)
  if trained.stopped_by is None:
    result.update(evaluate())
  learning_curves.write(settings)
  page.write_after(settings)
  runs.raise_if_stopped(trained)
  return result
