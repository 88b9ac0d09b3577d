"""`--mode=download`: gets the files of a data set, and checks those that are there."""

from typing import Any, Dict

from estimator_train.datasets import download, registry as datasets
from estimator_train.settings import Settings


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the files and where they came from; none for a set that needs none."""
  dataset = datasets.describe(settings.dataset, settings.data_dir, settings.image_size)
  fetched = []
  if dataset.files:
    assert settings.data_dir is not None
    fetched = download.fetch(dataset.files, settings.data_dir)
  return {'dataset': dataset.name, 'data_dir': settings.data_dir,
          'files': [file._asdict() for file in fetched]}
