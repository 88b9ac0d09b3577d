"""`--mode=report`: writes the report page of an existing run, or a comparison of several runs."""

from typing import Any, Dict

from estimator_train.reports import page, run_comparison
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the path of the page, and the main figures of each run."""
  runs = run_comparison.read_runs(settings.runs)
  RunDir(settings.model_dir).make()
  path = page.write_page_of_runs(runs, settings.model_dir)
  return {'mode': settings.mode, 'model_dir': settings.model_dir, 'page': path, 'runs': [{
      'folder': each.folder,
      'examples_per_sec': each.examples_per_sec,
      'steps_per_sec': each.steps_per_sec,
      'accuracy': each.data.evaluation.get('accuracy'),
      'average_loss': each.data.evaluation.get('average_loss'),
  } for each in runs]}
