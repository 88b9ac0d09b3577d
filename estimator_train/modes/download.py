"""`--mode=download`: downloads the files of a data set, and verifies files that already exist."""

from typing import Any, Dict, Optional

from estimator_train.data import datasets
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings


def run(settings: Settings, unused_run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Returns the result: the files of the data set, and whether each file has been downloaded."""
  return {'dataset': settings.data.dataset, 'data_dir': settings.data.data_dir,
          'files': [file._asdict() for file in datasets.download_missing_files(settings)]}
