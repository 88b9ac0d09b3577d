"""Holds out training examples for `--validation_fraction`.

A run records the examples that it holds out. A resumed run and `--mode=evaluate` hold out the
recorded examples.
"""

import hashlib
import logging
import os
from typing import List, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_train.data import ImageRecordSplit, ImageSplit
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, data_record
from estimator_train.run_dir.data_record import Holdout
from estimator_train.settings import Settings

_LOG = logging.getLogger('estimator_train')
_Split = Union[ImageSplit, ImageRecordSplit]


def find_recorded_holdout(settings: Settings, run_dir: RunDir) -> Optional[Holdout]:
  """Returns the holdout that an earlier run has recorded; None if this run chooses the examples.

  Args:
    run_dir: the folder of the run that saved the checkpoint.

  Raises:
    UserError: the examples of `--validation_fraction` may have been trained on.
  """
  fraction, record = settings.data.validation_fraction, data_record.read(run_dir)
  if fraction is None or record is None:
    return None
  recorded_holdout = record.validation
  if recorded_holdout is None or recorded_holdout.fraction != fraction:
    raise UserError(
        'examples that were trained on must not become those of --validation_fraction',
        '{} in {} and --validation_fraction={} now'.format(
            'no --validation_fraction' if recorded_holdout is None else
            '--validation_fraction={}'.format(recorded_holdout.fraction), run_dir.path, fraction),
        'give {}--eval_pattern with other examples, or another --model_dir'.format(
            '' if recorded_holdout is None else
            '--validation_fraction={}, '.format(recorded_holdout.fraction)))
  if recorded_holdout.seed != settings.optimizer.seed:
    _LOG.info('--validation_fraction: the examples stay those of --seed=%d', recorded_holdout.seed)
  return recorded_holdout


def hold_out_examples(split: _Split, settings: Settings,
                      recorded_holdout: Optional[Holdout],
                      class_names: Sequence[str] = ()) -> Tuple[_Split, _Split, Holdout]:
  """Returns the examples to train on, the held-out examples, and the holdout to record.

  In a new run, a hash of each example's name decides whether the example is held out. If a class
  has two or more examples, at least one is held out, and at least one is not. A resumed run holds
  out exactly the recorded examples. It trains on all others, because an example with an unknown
  name may have been trained on under its earlier name.

  Args:
    split: all training examples.
    recorded_holdout: the result of find_recorded_holdout.
    class_names: the class names if they may differ from the names of the folders of the images.

  Raises:
    UserError: there are no examples for validation.
  """
  fraction = settings.data.validation_fraction
  assert fraction is not None
  is_new_run = recorded_holdout is None or recorded_holdout.example_ids is None
  if recorded_holdout is None:
    recorded_holdout = Holdout(fraction, settings.optimizer.seed)
  names = _list_example_names(split, class_names)
  prefix = b'%d ' % recorded_holdout.seed
  hashes = np.array([hashlib.md5(prefix + name).digest()[:8] for name in names], 'S8').view('>u8')
  if isinstance(split, ImageSplit):
    class_indices, example_ids = np.asarray(split.classes), hashes
  else:  # The lengths reveal records that were written again under the same names.
    class_indices = np.zeros(len(names), np.int32)
    example_ids = hashes ^ split.records.lengths.astype('>u8')
  is_held_out = (hashes < np.uint64(int(fraction * 2 ** 64)) if is_new_run
                 else np.isin(example_ids, np.frombuffer(recorded_holdout.example_ids, '>u8')))
  indices_by_class = np.lexsort((hashes, class_indices))
  class_starts = np.flatnonzero(np.diff(class_indices[indices_by_class])) + 1
  for class_members in np.split(indices_by_class, class_starts):
    is_held_out[class_members[0]] |= is_new_run
    if is_held_out[class_members].all():
      is_held_out[class_members[-1]] = False
  if not is_held_out.any():
    raise UserError(
        '--validation_fraction requires two examples of a class' if is_new_run else
        'the data has none of the validation examples of this run any more',
        '--validation_fraction={} of {} example(s)'.format(fraction, len(names)),
        'add examples' if is_new_run else 'restore the files and their names, or give another '
        '--model_dir')
  return (split.take(np.flatnonzero(~is_held_out)), split.take(np.flatnonzero(is_held_out)),
          recorded_holdout._replace(
              example_ids=np.sort(example_ids[is_held_out]).astype('>u8').tobytes()))


def _list_example_names(split: _Split, class_names: Sequence[str]) -> List[bytes]:
  """Returns a name for each example, which stays the same if the data set is moved.

  The name of an image consists of the names of its folder and its file, and begins with the name of
  its class if this is the name of another folder. The name of a record consists of the name of its
  file and the number of the record in the file.
  """
  if isinstance(split, ImageSplit):
    folders = {folder: os.path.basename(os.path.abspath(folder))
               for folder in {os.path.dirname(path) for path in split.files}}
    names = [folders[os.path.dirname(path)] + b'/' + os.path.basename(path)
             for path in split.files]
    prefixes = [os.fsencode(name) + b'/' for name in class_names]
    return [name if not prefixes or name.startswith(prefixes[class_index])
            else prefixes[class_index] + name
            for name, class_index in zip(names, split.classes)]
  return [b'%s:%d' % (os.path.basename(path), record)
          for path, count in zip(split.records.original_paths, np.diff(split.records.first_records))
          for record in range(count)]

