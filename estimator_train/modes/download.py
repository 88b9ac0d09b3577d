"""`--mode=download`: downloads the files of a data set, and verifies files that already exist."""

from typing import Any, Dict

from estimator_train.datasets import registry as datasets
from estimator_train.settings import Settings


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the files and their sources; no files for a data set that needs none."""
  return {'dataset': settings.dataset, 'data_dir': settings.data_dir,
          'files': [file._asdict() for file in datasets.get(settings)]}
