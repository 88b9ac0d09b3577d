"""Reads and writes `labels.txt`: the class names of the labels in the TFRecord files next to it.

A line is a class name or, in all lines, a label and a class name, such as `0:daisy`.
"""

import logging
import os
import re
from typing import Iterator, Optional, Sequence, Tuple

from estimator_train.data import file_pattern
from estimator_train.errors import UserError, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.settings.flags import are_distinct, normalize
from estimator_train.system import storage

_LOG = logging.getLogger('estimator_train')


def write(folder: str, class_names: Sequence[str]) -> None:
  """Writes the class names and their indices, so that `read` returns exactly these names."""
  # `read` takes a space after each colon for a part of the separator.
  separator = ': ' if all(name[:1].isspace() for name in class_names) else ':'
  storage.write_text(os.path.join(folder, LABELS_FILE), ''.join(
      '{}{}{}\n'.format(index, separator, name) for index, name in enumerate(class_names)))


def read(patterns: Optional[str], label_offset: int,
         ignores_invalid: bool = False) -> Tuple[str, ...]:
  """Returns the class names in `labels.txt` next to the files that match patterns.

  Their order is that of the labels, the first of which is `-label_offset`. There are no names if
  there is no such file. If `ignores_invalid` is set, an invalid file only causes a warning.

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
      return ()
  for path, class_names in zip(paths, found):
    if class_names != found[0]:
      raise UserError('the files of a split must have the same class names',
                      '{} differs from {}'.format(printable(path), printable(paths[0])),
                      'write these files again, with the labels of the same class names')
  return found[0] if found else ()


def names_of_labels(patterns: str, class_names: Tuple[str, ...], label_offset: int,
                    train_patterns: Optional[str], are_given: bool) -> Tuple[str, ...]:
  """Returns the class names of the labels of a split, in the order of the labels.

  Args:
    patterns: the patterns of the files of the split.
    class_names: the class names of the data set, in the order of the model's outputs.
    label_offset: see `read`.
    train_patterns: the patterns of the training files.
    are_given: whether the user has given `class_names` with a flag or a function, and may have
      given all classes other names than `labels.txt`.

  Returns:
    The class names, of which some may not be in `class_names`; () if the labels are those of
    `class_names`.

  Raises:
    UserError: a `labels.txt` is invalid, or has other classes.
  """
  names = read(patterns, label_offset, ignores_invalid=are_given)
  train_names: Tuple[str, ...] = ()
  if are_given:
    train_names = read(train_patterns, label_offset, ignores_invalid=True) or names
  if len(train_names) == len(class_names) and not _have_common(train_names, class_names):
    new_names = dict(zip(train_names, class_names))
    names = tuple(new_names.get(name, name) for name in names)
  # The lines may be those of all labels, although the first labels are no classes.
  if not names or label_offset < 0 and names[-label_offset:] == class_names:
    return ()
  if not _have_common(names, class_names):
    if are_given:
      return ()
    raise UserError(
        '{} next to the files must have class names of the model'.format(LABELS_FILE),
        '{} has {}, and the model has {}'.format(patterns, ','.join(names), ','.join(class_names)),
        'correct {}, or give other files'.format(LABELS_FILE))
  return names


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


def _parse(path: str, label_offset: int) -> Tuple[str, ...]:
  """Returns the class names in a file.

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
  class_names = lines
  matches = [re.fullmatch(r'\s*([0-9]+)\s*:(.*)', line) for line in lines]
  if lines and all(matches):
    pairs = sorted((int(match.group(1)), match.group(2)) for match in matches if match)
    start = int(all(name[:1].isspace() for _, name in pairs))
    class_names = [name[start:] for _, name in pairs]
    first, last = pairs[0][0], pairs[-1][0]
    if [label for label, _ in pairs] != list(range(-label_offset, len(lines) - label_offset)):
      raise UserError(
          'the labels in {} must be those of all classes'.format(LABELS_FILE),
          '{} has {} lines with labels from {} to {}{}'.format(
              printable(path), len(lines), first, last,
              ' with --label_offset={}'.format(label_offset) if label_offset else ''),
          'give --label_offset={}'.format(-first) if last - first == len(lines) - 1
          else 'write a line for each label')
  if not are_distinct(class_names) or any(name.splitlines() != [name] for name in class_names):
    raise UserError('{} must have a different name in each line'.format(LABELS_FILE),
                    printable(path), 'name each class once, in the order of the class indices')
  return tuple(class_names)
