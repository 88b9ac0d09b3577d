"""Finds the splits in the folder of `--dataset=FOLDER`, and the defaults of other flags for it.

A value of `--dataset` with a slash is the path of a folder, whether the folder exists or not. The
folder has one of these layouts:

    train/CLASS/IMAGE    and val/CLASS/IMAGE or test/CLASS/IMAGE
    CLASS/IMAGE
    train/RECORDS        and val/RECORDS or test/RECORDS, which are TFRecord files
    train-RECORDS        and val-RECORDS or test-RECORDS
    RECORDS

The class of an image is the name of the folder directly in that of the split, at any depth below.
"""

import glob
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from estimator_train.errors import UserError, join_items, printable
from estimator_train.settings import user_code
from estimator_train.settings.flag_type import all_flags
from estimator_train.settings.flags import (
  DATASETS,
  FOLDER_VALIDATION_FRACTION,
  KERAS_MODELS,
  TRAINING_MODES,
  WINDOWS_PATH,
  WINDOWS_PATH_REMEDY,
  DataFlags,
)

# The names of the folders and files of a split, in lower case. If there are several, the first of
# these names is read.
_TRAIN_NAMES = ('train', 'training')
_EVALUATION_NAMES = ('val', 'valid', 'validation', 'eval', 'test', 'testing')
_SPLIT_NAMES = _TRAIN_NAMES + _EVALUATION_NAMES
_IMAGE_NAME = re.compile(r'.*\.(jpe?g|jpe|jfif|png|gif|bmp|webp|tiff?|heic|heif|avif)',
                         re.IGNORECASE)
_RECORD_NAME = re.compile(r'.*(\.tfrecords?|-\d{5}-of-\d{5})(\.gz)?', re.IGNORECASE)
_OTHER_NAME = re.compile(r'.*\.(txt|json|csv|tsv|md|xml|ya?ml|html|py|ipynb|pdf|zip|tar|tar\.\w+|'
                         r'tgz|7z|rar)', re.IGNORECASE)
# A folder that archives of macOS contain next to the folder of the data.
_MACOS_FOLDER = '__MACOSX'
_ARCHIVE_ENDINGS = ('.zip', '.gz', '.tar', '.tgz')
_MAX_DEPTH = 3


class Splits(NamedTuple):
  """The splits in a folder.

  Attributes:
    train, evaluation: the path of a folder, or patterns of files; None if there is none.
  """
  train: Optional[str]
  evaluation: Optional[str]


class _Listing(NamedTuple):
  """The sorted names of the visible folders, of the images, and of the other files in a folder."""
  folders: List[str]
  images: List[str]
  others: List[str]

  @property
  def is_class(self) -> bool:
    """Whether the folder can only be that of a class, because images are directly in it."""
    return bool(self.images) and not self.folders


def is_folder(dataset: str) -> bool:
  """Returns whether a value of `--dataset` is the path of a folder, which need not exist."""
  return '/' in dataset and ':' not in dataset.rpartition('/')[2]


def normalize(dataset: str) -> str:
  """Returns the value of `--dataset`, with a slash if it is the name of an existing folder or file.

  The names of built-in data sets and of functions take precedence over names of folders.
  """
  try:
    if dataset in DATASETS or not os.path.lexists(dataset) or is_folder(dataset):
      return dataset
  except ValueError:  # The value is no text, which the check of the flag reports.
    return dataset
  if '/' in dataset or dataset in (os.curdir, os.pardir):
    return dataset + '/' if os.path.isdir(dataset) else dataset
  return dataset if user_code.is_function_name(dataset) else './' + dataset


def is_same(dataset: str, other: str) -> bool:
  """Returns whether two values of `--dataset` are equal, or paths of the same folder."""
  return dataset == other or (is_folder(dataset) and is_folder(other)
                              and os.path.realpath(dataset) == os.path.realpath(other))


def choose_defaults(values: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the defaults for `--dataset=FOLDER` of flags that are not given; {} for other data.

  A default that contradicts a given flag is left out.

  Args:
    values: the values of the given flags.
  """
  if not (isinstance(values.get('dataset'), str) and is_folder(values['dataset'])):
    return {}
  defaults = {name: flag.folder_default for name, flag in all_flags().items()
              if flag.folder_default is not None}
  model = values.get('model', defaults['model'])
  if values.get('train_steps') is not None or (
      values.get('mode', TRAINING_MODES[0]) not in TRAINING_MODES):
    del defaults['train_epochs']
  if values.get('cache_features') or values.get('input_pipeline') == 'published':
    del defaults['augment']
  if user_code.is_function_name(model):  # The model may be compiled, with its own optimizer.
    del defaults['lr_schedule']
  if user_code.is_function_name(model) or model in KERAS_MODELS:
    del defaults['image_size']
  return {name: value for name, value in defaults.items() if name not in values}


def find_patterns(flags: DataFlags, mode: str, is_folder_of_run: bool) -> Dict[str, Any]:
  """Returns the flags of the splits in the folder of `--dataset`, except for flags that are given.

  Args:
    is_folder_of_run: False if the model in `--model_dir` was trained on other data. It is then
      evaluated on all examples of a folder without splits.

  Raises:
    UserError: the folder does not exist, or does not have the splits that the mode reads.
  """
  is_evaluated_only = mode == 'evaluate' and not is_folder_of_run
  needs_train = flags.train_pattern is None and not is_evaluated_only
  needs_evaluation = flags.eval_pattern is None and flags.validation_fraction is None
  if not (needs_train or needs_evaluation):
    return {}
  splits = find_splits(flags.dataset)
  patterns: Dict[str, Any] = {}
  if needs_train and splits.train is None and mode != 'evaluate':
    raise UserError('the folder has no training examples',
                    '--dataset={} has {}, but no train'.format(flags.dataset, splits.evaluation),
                    'name the folder of the training images train, or give --train_pattern')
  if needs_train and splits.train is not None:
    patterns['train_pattern'] = splits.train
  if needs_evaluation and splits.evaluation is not None:
    patterns['eval_pattern'] = splits.evaluation
  elif needs_evaluation and is_evaluated_only:
    patterns['eval_pattern'] = splits.train
  elif needs_evaluation and mode in ('train_and_evaluate', 'evaluate'):
    patterns['validation_fraction'] = FOLDER_VALIDATION_FRACTION
  return patterns


def list_found_patterns(flags: Mapping[str, Optional[str]]) -> List[str]:
  """Returns the names of recorded flags whose values follow from the folder of `--dataset`.

  Args:
    flags: the recorded values as texts, by name.
  """
  dataset = flags.get('dataset') or ''
  if not is_folder(dataset):
    return []
  folder = dataset.rstrip('/') + '/'
  names = [name for name in ('train_pattern', 'eval_pattern')
           if ((flags.get(name) or '') + '/').startswith((folder, glob.escape(folder)))]
  is_default = flags.get('validation_fraction') == str(FOLDER_VALIDATION_FRACTION)
  return names + ['validation_fraction'] * is_default


def find_splits(dataset: str) -> Splits:
  """Returns the splits in a folder, at least one.

  Raises:
    UserError: the folder does not exist, or has none of the layouts.
  """
  folder = dataset.rstrip('/') or '/'
  _check_exists(folder, dataset)
  listing = _list(folder)
  for _ in range(_MAX_DEPTH):  # An archive may have been unpacked to a folder in this folder.
    if listing.images or len(listing.folders) != 1 or listing.folders[0].lower() in _SPLIT_NAMES:
      break
    inner_folder = os.path.join(folder, listing.folders[0])
    inner_listing = _list(inner_folder)
    if not inner_listing.folders:
      break
    folder, listing = inner_folder, inner_listing
  if not listing.folders and not listing.images:
    return _find_record_files(dataset, folder, listing)
  train, evaluation = (
      next((name for wanted in names for name in listing.folders if name.lower() == wanted), None)
      for names in (_TRAIN_NAMES, _EVALUATION_NAMES))
  has_other_folders = any(name.lower() not in _SPLIT_NAMES for name in listing.folders)

  def path_of_split(name: Optional[str]) -> Optional[str]:
    """Returns the path of a folder, unless it is that of a class with the name of a split."""
    path = os.path.join(folder, name or '')
    return None if name is None or has_other_folders and _list(path).is_class else path

  splits = Splits(path_of_split(train), path_of_split(evaluation))
  if splits == (None, None):
    splits = Splits(folder, None)
  for path in filter(None, splits):
    _check_layout(dataset, path)
  return splits


def find_unused_folders(flags: DataFlags) -> List[str]:
  """Returns the names of the folders next to those of the splits."""
  train, evaluation = flags.train_pattern or '', flags.eval_pattern or ''
  parent = os.path.dirname(train)
  if not parent or parent != os.path.dirname(evaluation) or not os.path.isdir(train):
    return []
  used = {os.path.basename(train), os.path.basename(evaluation)}
  return [name for name in _list(parent).folders if name not in used]


def _check_exists(folder: str, dataset: str) -> None:
  if os.path.isdir(folder):
    return
  given, remedy = '--dataset=' + dataset, 'give the path of a folder'
  if os.path.isfile(folder):
    given, remedy = given + ' is a file', (
        'unpack it, and give the folder' if folder.endswith(_ARCHIVE_ENDINGS) else
        'give a folder, or package.module:function, a function that reads the file, such as '
        'examples.csv_table:dataset')
  elif os.path.islink(folder):
    given += ' is a link to {}'.format(printable(os.readlink(folder)))
  elif WINDOWS_PATH.match(dataset):
    remedy = WINDOWS_PATH_REMEDY
  else:
    parent = os.path.dirname(folder)
    while parent and not os.path.isdir(parent):
      parent = os.path.dirname(parent)
    given += '; {} has {}'.format(printable(parent or 'this folder'),
                                  join_items(_list(parent or '.').folders) or 'no folders')
  raise UserError('there is no such folder', given, remedy)


def _check_layout(dataset: str, folder: str) -> None:
  """Raises a UserError unless the images in the folder of a split are in one folder per class."""
  listing = _list(folder)
  if listing.images:
    raise UserError(
        'each image must be in the folder of its class',
        '--dataset={}: {} has {:,} image(s), such as {}'.format(
            dataset, folder, len(listing.images), printable(listing.images[0])),
        'move them into the folders of their classes, or elsewhere' if listing.folders else
        'move them into a folder per class, such as {0}/cat and {0}/dog{1}'.format(
            folder, '; if {} is the folder of one class, give the folder that contains it'.format(
                folder) if folder == dataset.rstrip('/') else ''))
  if not listing.folders and not listing.others:
    raise _make_empty_error(dataset, folder, listing)


def _find_record_files(dataset: str, folder: str, listing: _Listing) -> Splits:
  """Returns the patterns of the TFRecord files in a folder; raises a UserError if it has none."""
  def find_patterns_of(split_name: str) -> List[str]:
    """Returns `train-*`, `train.*` and so on, as far as files have such names."""
    prefixes = {name[:len(split_name) + 1] for name in listing.others
                if re.match(split_name + '[^A-Za-z]', name, re.IGNORECASE)
                and not _OTHER_NAME.fullmatch(name)}
    return [os.path.join(glob.escape(folder), glob.escape(prefix) + '*')
            for prefix in sorted(prefixes)]

  train, evaluation = (
      ','.join(next(filter(None, map(find_patterns_of, names)), ())) or None
      for names in (_TRAIN_NAMES, _EVALUATION_NAMES))
  if (train, evaluation) == (None, None) and any(map(_RECORD_NAME.fullmatch, listing.others)):
    return Splits(folder, None)
  if (train, evaluation) == (None, None):
    raise _make_empty_error(dataset, folder, listing)
  return Splits(train, evaluation)


def _make_empty_error(dataset: str, folder: str, listing: _Listing) -> UserError:
  archives = [name for name in listing.others if name.endswith(_ARCHIVE_ENDINGS)]
  return UserError(
      'a folder of data needs images or TFRecord files', '--dataset={}: {} has {}'.format(
          dataset, folder, join_items(listing.others) or 'no visible files'),
      'unpack {}, or give another folder'.format(printable(archives[0])) if archives else
      'put the images into a folder per class, such as {0}/cat and {0}/dog'.format(folder))


def _list(folder: str) -> _Listing:
  try:
    with os.scandir(folder) as entries:
      visible = sorted((entry.name, os.path.isdir(entry.path)) for entry in entries
                       if not entry.name.startswith('.') and entry.name != _MACOS_FOLDER)
  except OSError as error:
    raise UserError('a folder cannot be listed', '{} ({})'.format(
        printable(folder), error.strerror), 'make it readable, or give another folder') from error
  files = [name for name, is_dir in visible if not is_dir]
  return _Listing([name for name, is_dir in visible if is_dir],
                  [name for name in files if _IMAGE_NAME.fullmatch(name)],
                  [name for name in files if not _IMAGE_NAME.fullmatch(name)])
