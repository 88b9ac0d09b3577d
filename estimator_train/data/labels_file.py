"""Reads and writes `labels.txt`, and maps the labels of TFRecord files to class indices by it.

The file has the class names of the labels in the TFRecord files next to it. A line is a class name
or, in all lines, a label and a class name, such as `0:daisy`.
"""

import logging
import os
import re
from typing import Counter, Dict, Iterator, NamedTuple, Optional, Sequence, Set, Tuple

from estimator_train.data import ImageRecordSplit, Role, file_pattern
from estimator_train.errors import UserError, join_items, printable
from estimator_train.run_dir import LABELS_FILE
from estimator_train.settings.flags import are_distinct, to_nfc
from estimator_train.system import storage

_LOG = logging.getLogger('estimator_train')
# The number of records of each (class index of the label, class name in the record or None).
NameCounts = Counter[Tuple[int, Optional[str]]]


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
  """Writes the class names and their indices, so that reading them returns exactly these names."""
  # Reading takes a space after each colon for a part of the separator.
  separator = ': ' if all(name[:1].isspace() for name in class_names) else ':'
  storage.write_text(os.path.join(folder, LABELS_FILE), ''.join(
      '{}{}{}\n'.format(index, separator, name) for index, name in enumerate(class_names)))


class LabelFiles:
  """The `labels.txt` next to the files that match patterns. Each of them is read once.

  Args:
    label_offset: `--label_offset`, if a file has no labels.
    are_given: whether the user has given the class names with a flag or a function. An invalid file
      then only causes a warning, and the user may have given all classes other names.
  """

  def __init__(self, label_offset: int, are_given: bool) -> None:
    self._label_offset, self._are_given = label_offset, are_given
    self._by_patterns: Dict[Optional[str], Labels] = {}

  def read(self, patterns: Optional[str]) -> Labels:
    """Returns the class names next to the files that match patterns, if there are any.

    Raises:
      UserError: a file is invalid, or the files are next to different ones.
    """
    if patterns not in self._by_patterns:
      self._by_patterns[patterns] = self._read(patterns or '')
    return self._by_patterns[patterns]

  def _read(self, patterns: str) -> Labels:
    paths = list(dict.fromkeys(path for pattern in file_pattern.split_patterns(patterns)
                               for path in _find(pattern)))
    found = []
    for path in paths:
      try:
        found.append(_parse(path, self._label_offset))
      except UserError as error:
        if not self._are_given:
          raise
        _LOG.warning('the file is ignored, because the class names are given: %s', error)
        return Labels((), self._label_offset)
    for path, labels in zip(paths, found):
      if labels[:2] != found[0][:2]:
        raise UserError('the files of a split must have the same class names',
                        '{} differs from {}'.format(printable(path), printable(paths[0])),
                        'write these files again, with the labels of the same class names')
    return found[0] if found else Labels((), self._label_offset)

  def add_to(self, split: ImageRecordSplit, patterns: Optional[str], class_names: Tuple[str, ...],
             train_patterns: Optional[str]) -> ImageRecordSplit:
    """Returns the split with the class names of its labels; some may not be in `class_names`.

    Without `labels.txt`, the labels are those of `class_names`, and the split does not change.

    Args:
      split: has the value of `--label_offset`.
      patterns: the patterns of the files of the split.
      class_names: the class names of the data set, in the order of the model's outputs.
      train_patterns: the patterns of the training files.

    Raises:
      UserError: a `labels.txt` is invalid, or has other classes.
    """
    names, offset, are_stated = self.read(patterns)
    train_names = (self.read(train_patterns).names or names) if self._are_given else ()
    if len(train_names) == len(class_names) and not _have_common(train_names, class_names):
      new_names = dict(zip(train_names, class_names))
      names = tuple(new_names.get(name, name) for name in names)
    # The lines may be those of all labels, although the first labels are no classes.
    if not names or not are_stated and class_names in (names, names[max(-offset, 0):]):
      return split
    if not _have_common(names, class_names):
      if self._are_given:
        return split
      raise UserError(
          '{} next to the files must have class names of the model'.format(LABELS_FILE),
          '{} has {}, and the model has {}'.format(
              patterns, join_items(names), join_items(class_names)),
          'correct {}, or give other files'.format(LABELS_FILE))
    return split._replace(label_names=names, label_offset=offset)


class LabelMap:
  """Maps the labels of records to class indices, and finds remedies for labels that do not fit.

  Args:
    split: the records.
    class_names: those of the data set.
    role: what the run does with the records.

  Attributes:
    offset: the position of a label in `class_indices` is the label plus this number.
    class_indices: the class index of each label; -1: no class of the data set.
    is_identity: whether the class index of each label is its position.
  """

  def __init__(self, split: ImageRecordSplit, class_names: Sequence[str], role: Role) -> None:
    self._class_names, self.offset, self._role = class_names, split.label_offset, role
    self._is_from_file = bool(split.label_names)
    self._names = split.label_names or class_names
    self.class_indices = indices_of(self._names, class_names)
    self.is_identity = self.class_indices == tuple(range(len(class_names)))
    # Whether another --label_offset, which is that of both splits, may fit the records.
    self._may_shift = not self._is_from_file and role is not Role.TEST

  def class_index(self, label: int) -> int:
    """Returns the class index of a label; raises a ValueError if it is invalid."""
    position = label + self.offset
    if not 0 <= position < len(self._names):
      raise ValueError('label {}{} for {} classes'.format(
          label, ' with --label_offset={}'.format(self.offset) if self.offset else '',
          len(self._names)))
    if self.class_indices[position] < 0:
      raise ValueError('label {} is {} in {}, which is not one of the {} class names'.format(
          label, printable(self._names[position]), LABELS_FILE, len(self._class_names)))
    return self.class_indices[position]

  def remedy(self, label: int, name: Optional[str]) -> str:
    """Returns what to give so that a record fits; `name` is the class name in the record, if any.
    """
    names, position = self._class_names, label + self.offset
    is_known = 0 <= position < len(self._names)
    shift = names.index(name) - position if name in names else -1
    return next(remedy for applies, remedy in (
        (is_known and self.class_indices[position] >= 0, '--image_key=KEY'),
        (is_known, '--labels with all classes, or files without this class'),
        (self._is_from_file, 'a {} with all labels'.format(LABELS_FILE)),
        (not self._may_shift, 'a {} next to these files, with the names of their labels'.format(
            LABELS_FILE)),
        (name in names or position == len(names), '--label_offset={} if the first label is {}'
         .format(self.offset + shift, -self.offset - shift)),
        (True, '--labels, --label_offset or --label_key that fit')) if applies)

  def check_names(self, counts: NameCounts, key: str) -> None:
    """Compares the class names in the records with the class names of the labels.

    Args:
      counts: the number of records of each class index and name.
      key: the key of the class name in the records.

    Raises:
      UserError: most records of a class have the name of another class.
    """
    names = self._class_names
    index_of = {name: index for index, name in enumerate(names)}
    other = [(class_index, name, count) for (class_index, name), count in counts.items()
             if name is not None and index_of.get(name) != class_index]
    for class_index, name, count in other:
      if name in index_of and count > counts[class_index, names[class_index]]:
        shifts = _find_shifts(counts, index_of)
        remedy = next(remedy for applies, remedy in (
            (self._is_from_file, 'correct {} next to them'.format(LABELS_FILE)),
            (len(shifts) == 1 and self._may_shift, 'give --label_offset={}'.format(
                self.offset + min(shifts))),
            (self._role is Role.TRAIN, 'give --labels in the order of the labels, or correct '
             + LABELS_FILE),
            (True, 'write {} with the names of their labels next to them'.format(LABELS_FILE)))
                      if applies)
        raise UserError(
            'the labels of the records are in another order than the class names',
            'label {} is the class {}, but {} of {} record(s) is {}'.format(
                self.class_indices.index(class_index) - self.offset, names[class_index], key,
                count, name), remedy)
    if other:
      class_index, name, _ = other[0]
      _LOG.warning('%s of %d records is not the class of their label, such as %s for %s', key,
                   sum(count for _, _, count in other), printable(str(name)),
                   printable(names[class_index]))

  def warn_about_empty_classes(self, counts: NameCounts) -> None:
    """Logs a warning if a class has no records; a class for the background may be meant so."""
    found = {class_index for class_index, _ in counts}
    empty = [name for index, name in enumerate(self._class_names) if index not in found]
    if empty:
      _LOG.warning(
          '%d class(es) have no training records: %s%s', len(empty), join_items(empty),
          '' if 0 in found or not self.is_identity else
          '; if the first label is {}, give --label_offset={}'.format(
              1 - self.offset, self.offset - 1))


def _find_shifts(counts: NameCounts, index_of: Dict[str, int]) -> Set[int]:
  """Returns the differences of the index of the most frequent name of each class and its index."""
  most_frequent: Dict[int, Tuple[int, str]] = {}
  for (class_index, name), count in counts.items():
    if name in index_of:
      most_frequent[class_index] = max((count, str(name)), most_frequent.get(class_index, (0, '')))
  return {index_of[name] - class_index for class_index, (_, name) in most_frequent.items()}


def indices_of(names: Sequence[str], class_names: Sequence[str]) -> Tuple[int, ...]:
  """Returns the index of each name in `class_names`; -1 if it is none of them."""
  index_by_name = {to_nfc(name): index for index, name in enumerate(class_names)}
  return tuple(index_by_name.get(to_nfc(name), -1) for name in names)


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
