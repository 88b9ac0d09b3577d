"""`--mode=download`: downloads the files of a data set, and verifies files that already exist."""

from typing import Any, Dict, Optional

from estimator_train.data import datasets
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.proposals import make_command
from estimator_train.system.formatting import format_bytes, format_count
from estimator_train.system.summary import log_summary


def run(settings: Settings, unused_run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Returns the result: the files of the data set, and whether each file has been downloaded."""
  dataset, data_dir = settings.data.dataset, settings.data.data_dir
  files = datasets.download_missing_files(settings)
  log_summary('{} is complete: {} of {} downloaded'.format(
      dataset, sum(file.downloaded for file in files), format_count(len(files), 'file')),
              [('data', data_dir), ('size', format_bytes(sum(file.size for file in files)))],
              make_command(*to_training_arguments(settings)))
  return {'dataset': dataset, 'data_dir': data_dir,
          'files': [file._asdict() for file in files]}
