"""Holds out training examples for `--validation_fraction`.

The choice belongs to the run: a resumed run and `--mode=evaluate` use what the run has recorded.
"""

import hashlib
import logging
import os
from typing import List, Optional, Tuple, Union

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


def hold_out(split: _Split, settings: Settings,
             recorded: Optional[Validation]) -> Tuple[_Split, _Split, Validation]:
  """Returns the examples to train on, those of `--validation_fraction`, and what to record.

  When a run begins, a hash of its name decides about an example, and two or more examples of a
  class give at least one to each part. Later, the examples for validation are those recorded. All
  others are trained on: a name that the run does not know may be another one of a trained example.

  Args:
    split: all training examples.
    recorded: see find_recorded.

  Raises:
    UserError: there are no examples for validation.
  """
  fraction = settings.data.validation_fraction
  assert fraction is not None
  begins = recorded is None or recorded.examples is None
  if recorded is None:
    recorded = Validation(fraction, settings.optimizer.seed)
  names = _names_of(split)
  prefix = b'%d ' % recorded.seed
  hashes = np.array([hashlib.md5(prefix + name).digest()[:8] for name in names], 'S8').view('>u8')
  if isinstance(split, ImageSplit):
    classes, identities = np.asarray(split.classes), hashes
  else:  # The lengths reveal records that were written again under the same names.
    classes = np.zeros(len(names), np.int32)
    identities = hashes ^ split.records.lengths.astype('>u8')
  is_validation = (hashes < np.uint64(int(fraction * 2 ** 64)) if begins
                   else np.isin(identities, np.frombuffer(recorded.examples, '>u8')))
  by_class = np.lexsort((hashes, classes))
  for members in np.split(by_class, np.flatnonzero(np.diff(classes[by_class])) + 1):
    is_validation[members[0]] |= begins
    if is_validation[members].all():
      is_validation[members[-1]] = False
  if not is_validation.any():
    raise UserError(
        '--validation_fraction requires two examples of a class' if begins else
        'none of the examples that the run has kept for validation is there',
        '--validation_fraction={} of {} example(s)'.format(fraction, len(names)),
        'add examples' if begins else 'restore the files and their names, or give another '
        '--model_dir')
  return (split.take(np.flatnonzero(~is_validation)), split.take(np.flatnonzero(is_validation)),
          recorded._replace(examples=np.sort(identities[is_validation]).astype('>u8').tobytes()))


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

