"""Holds out training examples for `--validation_fraction`.

A run records the examples that it holds out. A resumed run and `--mode=evaluate` hold out the
recorded examples.
"""

import hashlib
import logging
import os
from typing import List, Optional, Tuple, Union

import numpy as np

from estimator_train.data import ImageRecordSplit, ImageSplit
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, data_record
from estimator_train.run_dir.data_record import Holdout
from estimator_train.settings import Settings

_LOG = logging.getLogger('estimator_train')
_Split = Union[ImageSplit, ImageRecordSplit]


def find_recorded(settings: Settings, run_dir: RunDir) -> Optional[Holdout]:
  """Returns the holdout that an earlier run has recorded; None if this run chooses the examples.

  Args:
    settings: the settings of this run.
    run_dir: the folder of the run that saved the checkpoint.

  Raises:
    UserError: the examples of `--validation_fraction` may have been trained on.
  """
  fraction, record = settings.data.validation_fraction, data_record.read(run_dir)
  if fraction is None or record is None:
    return None
  recorded = record.validation
  if recorded is None or recorded.fraction != fraction:
    raise UserError(
        'examples that were trained on must not become those of --validation_fraction',
        '{} in {} and --validation_fraction={} now'.format(
            'no --validation_fraction' if recorded is None else
            '--validation_fraction={}'.format(recorded.fraction), run_dir.path, fraction),
        'give {}--eval_pattern with other examples, or another --model_dir'.format(
            '' if recorded is None else '--validation_fraction={}, '.format(recorded.fraction)))
  if recorded.seed != settings.optimizer.seed:
    _LOG.info('--validation_fraction: the examples stay those of --seed=%d', recorded.seed)
  return recorded


def hold_out(split: _Split, settings: Settings,
             recorded: Optional[Holdout]) -> Tuple[_Split, _Split, Holdout]:
  """Returns the examples to train on, the held-out examples, and the holdout to record.

  In a new run, a hash of each example's name decides whether the example is held out. A class with
  two or more examples keeps at least one in each part. A resumed run holds out exactly the recorded
  examples. It trains on all others, because an unknown name may be a renamed example that was
  already trained on.

  Args:
    split: all training examples.
    settings: the settings of this run.
    recorded: the result of find_recorded.

  Raises:
    UserError: there are no examples for validation.
  """
  fraction = settings.data.validation_fraction
  assert fraction is not None
  is_new_run = recorded is None or recorded.example_ids is None
  if recorded is None:
    recorded = Holdout(fraction, settings.optimizer.seed)
  names = _names_of(split)
  prefix = b'%d ' % recorded.seed
  hashes = np.array([hashlib.md5(prefix + name).digest()[:8] for name in names], 'S8').view('>u8')
  if isinstance(split, ImageSplit):
    class_indices, example_ids = np.asarray(split.classes), hashes
  else:  # The lengths reveal records that were written again under the same names.
    class_indices = np.zeros(len(names), np.int32)
    example_ids = hashes ^ split.records.lengths.astype('>u8')
  is_held_out = (hashes < np.uint64(int(fraction * 2 ** 64)) if is_new_run
                 else np.isin(example_ids, np.frombuffer(recorded.example_ids, '>u8')))
  by_class = np.lexsort((hashes, class_indices))
  for members in np.split(by_class, np.flatnonzero(np.diff(class_indices[by_class])) + 1):
    is_held_out[members[0]] |= is_new_run
    if is_held_out[members].all():
      is_held_out[members[-1]] = False
  if not is_held_out.any():
    raise UserError(
        '--validation_fraction requires two examples of a class' if is_new_run else
        'the data has none of the validation examples of this run any more',
        '--validation_fraction={} of {} example(s)'.format(fraction, len(names)),
        'add examples' if is_new_run else 'restore the files and their names, or give another '
        '--model_dir')
  return (split.take(np.flatnonzero(~is_held_out)), split.take(np.flatnonzero(is_held_out)),
          recorded._replace(example_ids=np.sort(example_ids[is_held_out]).astype('>u8').tobytes()))


def _names_of(split: _Split) -> List[bytes]:
  """Returns a name for each example, which stays the same if the data set is moved.

  The name of an image is the name of its folder and file. The name of a record is the name of its
  file and its number in the file; finding the number does not require reading the record.
  """
  if isinstance(split, ImageSplit):
    folders = {folder: os.path.basename(os.path.abspath(folder))
               for folder in {os.path.dirname(path) for path in split.files}}
    return [folders[os.path.dirname(path)] + b'/' + os.path.basename(path) for path in split.files]
  return [b'%s:%d' % (os.path.basename(path), record)
          for path, count in zip(split.records.given_paths, np.diff(split.records.first_records))
          for record in range(count)]

