"""`--mode=train`: trains, without an evaluation at the end."""

from typing import Any, Dict

from estimator_train.reports import page, throughput
from estimator_train.settings import Settings
from estimator_train.training import learning_curves, run as runs, template_model


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: what was trained and how fast."""
  prepared = runs.prepare(settings)
  trained = runs.train(prepared)
  result = throughput.write(settings, prepared.conditions, trained.timing)
  result.update(prepared.left_out)
  template_model.save(settings, prepared.dataset)
  learning_curves.write(settings)
  page.write_after(settings)
  runs.raise_if_stopped(trained)
  return result
