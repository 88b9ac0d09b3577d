"""`--mode=download`: gets the files of a data set, and checks those that are there."""

from typing import Any, Dict

from estimator_train.datasets import registry as datasets
from estimator_train.settings import Settings


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the files and where they came from; none for a set that needs none."""
  return {'dataset': settings.dataset, 'data_dir': settings.data_dir,
          'files': [file._asdict() for file in datasets.get(settings)]}
