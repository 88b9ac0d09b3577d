"""Splits the training examples for `--validation_fraction`.

The split belongs to the run: a resumed run and `--mode=evaluate` use what the run has recorded.
"""

import hashlib
import logging
import os
from typing import Dict, List, Optional, Tuple, Union

import numpy as np

from estimator_train.data import ImageRecordSplit, ImageSplit
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, data_record
from estimator_train.run_dir.data_record import Validation
from estimator_train.settings import Settings

_LOG = logging.getLogger('estimator_train')
_Split = Union[ImageSplit, ImageRecordSplit]


def find_recorded(settings: Settings, run_dir: RunDir) -> Optional[Validation]:
  """Returns the validation that the run has recorded; None if this run chooses the examples.

  Args:
    settings: the settings of this run.
    run_dir: the folder of the run that saved the checkpoint.

  Raises:
    UserError: the examples of `--validation_fraction` may have been trained on.
  """
  fraction, record = settings.data.validation_fraction, data_record.read(run_dir)
  if fraction is None or record is None:
    return None
  before = record.validation
  if before is None or before.fraction != fraction:
    raise UserError(
        'examples that were trained on must not become those of --validation_fraction',
        '{} in {} and --validation_fraction={} now'.format(
            'no --validation_fraction' if before is None else
            '--validation_fraction={}'.format(before.fraction), run_dir.path, fraction),
        'give {}--eval_pattern with other examples, or another --model_dir'.format(
            '' if before is None else '--validation_fraction={}, '.format(before.fraction)))
  if before.seed != settings.optimizer.seed:
    _LOG.info('--validation_fraction: the examples stay those of --seed=%d', before.seed)
  return before


def split_examples(split: _Split, settings: Settings,
                   recorded: Optional[Validation]) -> Tuple[_Split, _Split, Validation]:
  """Returns the examples to train on, those of `--validation_fraction`, and how they were chosen.

  Args:
    split: all training examples.
    settings: have `--validation_fraction` and `--seed`.
    recorded: see find_recorded.

  Raises:
    UserError: there are no examples for validation, or the run has identified them otherwise.
  """
  fraction = settings.data.validation_fraction
  assert fraction is not None
  kind = 'files' if isinstance(split, ImageSplit) else 'records'
  if recorded is None:
    recorded = Validation(fraction, settings.optimizer.seed)
  if recorded.names not in (kind, None):
    raise UserError('--validation_fraction must choose from the same examples as before',
                    '{} before and {} now'.format(recorded.names, kind),
                    'give the --train_pattern of the run, or another --model_dir')
  names = _names_of(split)
  classes = split.classes if isinstance(split, ImageSplit) else np.zeros(len(names), np.int32)
  hashes = _hash(names, recorded.seed)
  thresholds = _find_thresholds(hashes, np.asarray(classes), recorded)
  is_validation = hashes < [thresholds.get(class_index, fraction) for class_index in classes]
  if not is_validation.any():
    raise UserError('--validation_fraction requires two examples of a class',
                    '--validation_fraction={} of {} example(s)'.format(fraction, len(names)),
                    'add examples')
  return (_take(split, np.flatnonzero(~is_validation)), _take(split, np.flatnonzero(is_validation)),
          recorded._replace(names=kind, thresholds=thresholds))


def _find_thresholds(hashes: np.ndarray, classes: np.ndarray,
                     recorded: Validation) -> Dict[int, float]:
  """Returns the thresholds that are not `fraction`, by class index.

  When a run begins, two or more examples of a class give at least one to each part. Later, an
  example for validation becomes one to train on if there is no other, but never the other way.
  """
  fraction = recorded.fraction
  thresholds = dict(recorded.thresholds or {})
  by_class = np.lexsort((hashes, classes))
  for members in np.split(by_class, np.flatnonzero(np.diff(classes[by_class])) + 1):
    first, second, last = (hashes[members[index]] for index in (0, min(1, len(members) - 1), -1))
    class_index = int(classes[members[0]])
    threshold = thresholds.get(class_index, fraction)
    if recorded.thresholds is None and first >= fraction:
      threshold = second
    if min(threshold, last) != fraction:
      thresholds[class_index] = float(min(threshold, last))
  return thresholds


def _hash(names: List[bytes], seed: int) -> np.ndarray:
  """Returns the hashes of the names, float64 [N], from 0 to 1."""
  prefix = b'%d ' % seed
  return np.array([int.from_bytes(hashlib.md5(prefix + name).digest()[:6], 'big') / (1 << 48)
                   for name in names])


def _names_of(split: _Split) -> List[bytes]:
  """Returns what identifies the examples wherever their files are.

  This is the name of a file and that of its folder, or the name of a file and the number of the
  record in it, which is found without reading the record.
  """
  if isinstance(split, ImageSplit):
    folders = {folder: os.path.basename(os.path.abspath(folder))
               for folder in {os.path.dirname(path) for path in split.files}}
    return [folders[os.path.dirname(path)] + b'/' + os.path.basename(path) for path in split.files]
  return [b'%s:%d' % (os.path.basename(name), number)
          for name, count in zip(split.records.names, np.diff(split.records.first_records))
          for number in range(count)]


def _take(split: _Split, chosen: np.ndarray) -> _Split:
  """Returns the split with the examples of these indices."""
  if isinstance(split, ImageSplit):
    return ImageSplit([split.files[index] for index in chosen], split.classes[chosen])
  return split._replace(kept=chosen)
