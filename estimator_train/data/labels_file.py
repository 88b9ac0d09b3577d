"""Reads and writes `labels.txt`: the class names of the labels in the TFRecord files next to it.

A line is a class name or, in all lines, a label and a class name, such as `0:daisy`.
"""

import logging
import os
import re
from typing import Iterator, NamedTuple, Optional, Sequence, Tuple

from estimator_train.data import ImageRecordSplit, file_pattern
from estimator_train.errors import UserError, join_items, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.settings.flags import are_distinct, normalize
from estimator_train.system import storage

_LOG = logging.getLogger('estimator_train')


class Labels(NamedTuple):
  """The class names of consecutive labels.

  Attributes:
    names: the class names, in the order of the labels; () if they are unknown.
    offset: the position of a name is its label plus this number.
    are_stated: whether the lines of the file have the labels.
  """
  names: Tuple[str, ...]
  offset: int
  are_stated: bool = False


def write(folder: str, class_names: Sequence[str]) -> None:
  """Writes the class names and their indices, so that `read` returns exactly these names."""
  # `read` takes a space after each colon for a part of the separator.
  separator = ': ' if all(name[:1].isspace() for name in class_names) else ':'
  storage.write_text(os.path.join(folder, LABELS_FILE), ''.join(
      '{}{}{}\n'.format(index, separator, name) for index, name in enumerate(class_names)))


def read(patterns: Optional[str], label_offset: int, ignores_invalid: bool = False) -> Labels:
  """Returns the class names in `labels.txt` next to the files that match patterns, if any.

  Args:
    patterns: the patterns.
    label_offset: `--label_offset`, if the file has no labels.
    ignores_invalid: whether an invalid file only causes a warning.

  Raises:
    UserError: the file is invalid, or the files are next to different ones.
  """
  paths = list(dict.fromkeys(path for pattern in file_pattern.split_patterns(patterns or '')
                             for path in _find(pattern)))
  found = []
  for path in paths:
    try:
      found.append(_parse(path, label_offset))
    except UserError as error:
      if not ignores_invalid:
        raise
      _LOG.warning('the file is ignored, because the class names are given: %s', error)
      return Labels((), label_offset)
  for path, labels in zip(paths, found):
    if labels[:2] != found[0][:2]:
      raise UserError('the files of a split must have the same class names',
                      '{} differs from {}'.format(printable(path), printable(paths[0])),
                      'write these files again, with the labels of the same class names')
  return found[0] if found else Labels((), label_offset)


def add_labels(split: ImageRecordSplit, patterns: str, class_names: Tuple[str, ...],
               train_patterns: Optional[str], are_given: bool) -> ImageRecordSplit:
  """Returns a split with the class names of its labels, of which some may not be in `class_names`.

  Without `labels.txt`, the labels are those of `class_names`, and the split does not change.

  Args:
    split: the split, with the value of `--label_offset`.
    patterns: the patterns of the files of the split.
    class_names: the class names of the data set, in the order of the model's outputs.
    train_patterns: the patterns of the training files.
    are_given: whether the user has given `class_names` with a flag or a function, and may have
      given all classes other names than `labels.txt`.

  Raises:
    UserError: a `labels.txt` is invalid, or has other classes.
  """
  names, offset, are_stated = read(patterns, split.label_offset, ignores_invalid=are_given)
  train_names: Tuple[str, ...] = ()
  if are_given:
    train_names = read(train_patterns, split.label_offset, ignores_invalid=True).names or names
  if len(train_names) == len(class_names) and not _have_common(train_names, class_names):
    new_names = dict(zip(train_names, class_names))
    names = tuple(new_names.get(name, name) for name in names)
  # The lines may be those of all labels, although the first labels are no classes.
  if not names or not are_stated and class_names in (names, names[max(-offset, 0):]):
    return split
  if not _have_common(names, class_names):
    if are_given:
      return split
    raise UserError(
        '{} next to the files must have class names of the model'.format(LABELS_FILE),
        '{} has {}, and the model has {}'.format(
            patterns, join_items(names), join_items(class_names)),
        'correct {}, or give other files'.format(LABELS_FILE))
  return split._replace(label_names=names, label_offset=offset)


def indices_of(names: Sequence[str], class_names: Sequence[str]) -> Tuple[int, ...]:
  """Returns the index of each name in `class_names`; -1 if it is none of them."""
  index_by_name = {normalize(name): index for index, name in enumerate(class_names)}
  return tuple(index_by_name.get(normalize(name), -1) for name in names)


def _have_common(names: Sequence[str], others: Sequence[str]) -> bool:
  return any(index >= 0 for index in indices_of(names, others))


def _find(pattern: str) -> Iterator[str]:
  """Yields the paths of `labels.txt` in the folders of files, or else in that of the pattern."""
  fixed_folder = pattern if os.path.isdir(pattern) else os.path.dirname(pattern)
  files = file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_records)
  for folder in dict.fromkeys(os.path.dirname(os.fsdecode(path)) for path in files) or [
      fixed_folder]:
    for path in (os.path.join(parent, LABELS_FILE) for parent in (folder, fixed_folder)):
      if os.path.isfile(path):
        yield path
        break


def _parse(path: str, label_offset: int) -> Labels:
  """Returns the class names in a file; `label_offset` is that of a file without labels.

  Raises:
    UserError: the file cannot be read, a name is missing or not unique, or the labels are not those
      of all classes.
  """
  try:
    with open(path, encoding='utf-8-sig') as file:  # With or without a byte order mark.
      lines = file.read().split('\n')
  except (OSError, UnicodeError) as error:
    raise UserError('{} cannot be read'.format(LABELS_FILE), '{} ({})'.format(
        printable(path), error), 'write it again as UTF-8 text, or give --labels') from error
  while lines and not lines[-1].strip():
    lines.pop()
  class_names, are_stated = lines, False
  matches = [re.fullmatch(r'\s*([0-9]+)\s*:(.*)', line) for line in lines]
  if lines and all(matches):
    pairs = sorted((int(match.group(1)), match.group(2)) for match in matches if match)
    start = int(all(name[:1].isspace() for _, name in pairs))
    class_names = [name[start:] for _, name in pairs]
    first, last = pairs[0][0], pairs[-1][0]
    if [label for label, _ in pairs] != list(range(first, first + len(lines))):
      raise UserError(
          'the labels in {} must be those of all classes'.format(LABELS_FILE),
          '{} has {} lines with labels from {} to {}'.format(
              printable(path), len(lines), first, last), 'write a line for each label')
    label_offset, are_stated = -first, True
  if not are_distinct(class_names) or any(name.splitlines() != [name] for name in class_names):
    raise UserError('{} must have a different name in each line'.format(LABELS_FILE),
                    printable(path), 'name each class once, in the order of the class indices')
  return Labels(tuple(class_names), label_offset, are_stated)
