"""`--mode=report`: writes the report page of an existing run, or a comparison of several runs."""

import os
from typing import Any, Dict

from estimator_train.errors import UserError
from estimator_train.reports import page, run_comparison
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the path of the page, and the main figures of each run."""
  if len(settings.runs) > 1 and os.path.realpath(settings.model_dir) in map(
      os.path.realpath, settings.runs):
    raise UserError('--model_dir must not be one of the compared runs, since its page would be '
                    'lost', '--model_dir=' + settings.model_dir, 'give another folder')
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
