"""Reads and writes `labels.txt`, and maps the labels of TFRecord files to class indices.

`labels.txt` gives the class name of each label in the TFRecord files next to it. Either each line
is a class name, or each line is a label and a class name, such as `0:daisy`.
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
# The number of records by (class index of the label, class name in the record). The class name is
# None if the record has none.
NameCounts = Counter[Tuple[int, Optional[str]]]


class Labels(NamedTuple):
  """The class names of consecutive labels.

  Attributes:
    names: the class names, in the order of the labels; () if they are unknown.
    offset: the number that is added to a label. The sum is the position of its class name in
      `names`.
    file_has_labels: whether each line of the file has a label in front of the class name.
  """
  names: Tuple[str, ...]
  offset: int
  file_has_labels: bool = False


def write_class_names(folder: str, class_names: Sequence[str]) -> None:
  """Writes a `labels.txt`, from which exactly these class names are read."""
  # If a space follows the colon in all lines, _parse removes this space from the names.
  separator = ': ' if all(name[:1].isspace() for name in class_names) else ':'
  storage.write_text(os.path.join(folder, LABELS_FILE), ''.join(
      '{}{}{}\n'.format(index, separator, name) for index, name in enumerate(class_names)))


class LabelFiles:
  """Reads the `labels.txt` files next to the files that match patterns, each of them once.

  Args:
    label_offset: `--label_offset`, which applies to a file without labels.
    names_are_given: whether the user has given the class names with a flag or a function. If so, an
      invalid file causes a warning instead of an error. The given class names may then differ from
      those in the file.
  """

  def __init__(self, label_offset: int, names_are_given: bool) -> None:
    self._label_offset, self._names_are_given = label_offset, names_are_given
    self._by_patterns: Dict[Optional[str], Labels] = {}

  def read_labels(self, patterns: Optional[str]) -> Labels:
    """Returns the class names of the files that match patterns, or () if they have no `labels.txt`.

    Raises:
      UserError: a `labels.txt` is invalid, or the files have several that differ.
    """
    if patterns not in self._by_patterns:
      self._by_patterns[patterns] = self._read_labels(patterns or '')
    return self._by_patterns[patterns]

  def _read_labels(self, patterns: str) -> Labels:
    paths = list(dict.fromkeys(path for pattern in file_pattern.split_patterns(patterns)
                               for path in _find_label_files(pattern)))
    labels_by_file = []
    for path in paths:
      try:
        labels_by_file.append(_parse_labels(path, self._label_offset))
      except UserError as error:
        if not self._names_are_given:
          raise
        _LOG.warning('the file is ignored, because the class names are given: %s', error)
        return Labels((), self._label_offset)
    for path, labels in zip(paths, labels_by_file):
      if labels[:2] != labels_by_file[0][:2]:
        raise UserError('the files of a split must have the same class names',
                        '{} differs from {}'.format(printable(path), printable(paths[0])),
                        'write these files again, with the labels of the same class names')
    return labels_by_file[0] if labels_by_file else Labels((), self._label_offset)

  def add_class_names_to(self, split: ImageRecordSplit, patterns: Optional[str],
                         class_names: Tuple[str, ...],
                         train_patterns: Optional[str]) -> ImageRecordSplit:
    """Returns the split with the class names of its labels.

    Records whose label has a name that is not in `class_names` have no class in the model. Without
    `labels.txt`, the split is returned unchanged, because its labels refer to `class_names`.

    Args:
      split: the split, whose label offset is the value of `--label_offset`.
      patterns: the patterns of the files of the split.
      class_names: the class names of the data set.
      train_patterns: the patterns of the training files.

    Raises:
      UserError: a `labels.txt` is invalid, or has none of the class names.
    """
    names, offset, file_has_labels = self.read_labels(patterns)
    train_names = (self.read_labels(train_patterns).names or names) if self._names_are_given else ()
    if len(train_names) == len(class_names) and not _have_common_name(train_names, class_names):
      class_name_of = dict(zip(train_names, class_names))
      names = tuple(class_name_of.get(name, name) for name in names)
    # The first lines may be names of labels that are not classes, which --label_offset leaves out.
    lines_are_classes = not file_has_labels and class_names in (names, names[max(-offset, 0):])
    if not names or lines_are_classes:
      return split
    if not _have_common_name(names, class_names):
      if self._names_are_given:
        return split
      raise UserError(
          '{} next to the files must have class names of the model'.format(LABELS_FILE),
          '{} has {}, and the model has {}'.format(
              patterns, join_items(names), join_items(class_names)),
          'correct {}, or give other files'.format(LABELS_FILE))
    return split._replace(label_names=names, label_offset=offset)


class LabelMap:
  """Maps the labels of records to class indices, and proposes remedies for labels that do not fit.

  Args:
    class_names: the class names of the data set.

  Attributes:
    offset: the number that is added to a label. The sum is the position of the label in
      `class_indices`.
    class_indices: the class index of each label; -1 if its class is not in the data set.
    is_identity: whether the class index of each label is its position in `class_indices`.
  """

  def __init__(self, split: ImageRecordSplit, class_names: Sequence[str], role: Role) -> None:
    self._class_names, self.offset, self._role = class_names, split.label_offset, role
    self._is_from_file = bool(split.label_names)
    self._names = split.label_names or class_names
    self.class_indices = find_class_indices(self._names, class_names)
    self.is_identity = self.class_indices == tuple(range(len(class_names)))
    # Whether an error may propose a different --label_offset. If the run reads test and training
    # records, an error about test records may not, because the flag applies to both.
    self._may_propose_offset = not self._is_from_file and role is not Role.TEST

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

  def propose_remedy(self, label: int, name: Optional[str]) -> str:
    """Returns what the user should give so that the label of a record is valid.

    Args:
      name: the class name in the record; None if it has none.
    """
    class_names, position = self._class_names, label + self.offset
    if 0 <= position < len(self._names):
      return ('--image_key=KEY' if self.class_indices[position] >= 0
              else '--labels with all classes, or files without this class')
    if self._is_from_file:
      return 'a {} with all labels'.format(LABELS_FILE)
    if not self._may_propose_offset:
      return 'a {} next to these files, with the names of their labels'.format(LABELS_FILE)
    if name in class_names or position == len(class_names):
      change = class_names.index(name) - position if name in class_names else -1
      return '--label_offset={} if the first label is {}'.format(
          self.offset + change, -self.offset - change)
    return '--labels, --label_offset or --label_key that fit'

  def check_class_names(self, counts: NameCounts, key: str) -> None:
    """Compares the class names in the records with the class names of their labels.

    Logs a warning if some of them differ.

    Args:
      counts: the number of records by class index and class name.
      key: the key of the class name in the records.

    Raises:
      UserError: for some class, more of its records have the name of another class than its own.
    """
    names = self._class_names
    index_of = {name: index for index, name in enumerate(names)}
    mismatches = [(class_index, name, count) for (class_index, name), count in counts.items()
                  if name is not None and index_of.get(name) != class_index]
    for class_index, name, count in mismatches:
      if name in index_of and count > counts[class_index, names[class_index]]:
        offset_changes = _find_offset_changes(counts, index_of)
        remedy = next(remedy for applies, remedy in (
            (self._is_from_file, 'correct {} next to them'.format(LABELS_FILE)),
            (len(offset_changes) == 1 and self._may_propose_offset,
             'give --label_offset={}'.format(self.offset + min(offset_changes))),
            (self._role is Role.TRAIN, 'give --labels in the order of the labels, or correct '
             + LABELS_FILE),
            (True, 'write {} with the names of their labels next to them'.format(LABELS_FILE)))
                      if applies)
        raise UserError(
            'the labels of the records are in another order than the class names',
            'label {} is the class {}, but {} of {} record(s) is {}'.format(
                self.class_indices.index(class_index) - self.offset, names[class_index], key,
                count, name), remedy)
    if mismatches:
      class_index, name, _ = mismatches[0]
      _LOG.warning('%s of %d records is not the class of their label, such as %s for %s', key,
                   sum(count for _, _, count in mismatches), printable(str(name)),
                   printable(names[class_index]))

  def warn_about_empty_classes(self, counts: NameCounts) -> None:
    """Logs a warning if a class has no records, which may be intended for a background class."""
    found_classes = {class_index for class_index, _ in counts}
    empty = [name for index, name in enumerate(self._class_names) if index not in found_classes]
    if empty:
      _LOG.warning(
          '%d class(es) have no training records: %s%s', len(empty), join_items(empty),
          '' if 0 in found_classes or not self.is_identity else
          '; if the first label is {}, give --label_offset={}'.format(
              1 - self.offset, self.offset - 1))


def _find_offset_changes(counts: NameCounts, index_of: Dict[str, int]) -> Set[int]:
  """Returns the change of --label_offset that each class needs, so that its class name matches.

  The change is the index of the most frequent name in the records of the class, minus the index of
  the class.
  """
  most_frequent: Dict[int, Tuple[int, str]] = {}
  for (class_index, name), count in counts.items():
    if name in index_of:
      most_frequent[class_index] = max((count, str(name)), most_frequent.get(class_index, (0, '')))
  return {index_of[name] - class_index for class_index, (_, name) in most_frequent.items()}


def find_class_indices(names: Sequence[str], class_names: Sequence[str]) -> Tuple[int, ...]:
  """Returns the index of each name in `class_names`; -1 if `class_names` does not have the name."""
  index_by_name = {to_nfc(name): index for index, name in enumerate(class_names)}
  return tuple(index_by_name.get(to_nfc(name), -1) for name in names)


def _have_common_name(names: Sequence[str], others: Sequence[str]) -> bool:
  return any(index >= 0 for index in find_class_indices(names, others))


def _find_label_files(pattern: str) -> Iterator[str]:
  """Yields the paths of the `labels.txt` that apply to the files that match a pattern.

  The `labels.txt` in the folder of a file applies. If there is none, that in the folder of the
  pattern applies.
  """
  pattern_folder = pattern if os.path.isdir(pattern) else os.path.dirname(pattern)
  files = file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_records)
  for folder in dict.fromkeys(os.path.dirname(os.fsdecode(path)) for path in files) or [
      pattern_folder]:
    for path in (os.path.join(parent, LABELS_FILE) for parent in (folder, pattern_folder)):
      if os.path.isfile(path):
        yield path
        break


def _parse_labels(path: str, label_offset: int) -> Labels:
  """Returns the class names in a `labels.txt`.

  Args:
    label_offset: the offset to return if the file has no labels.

  Raises:
    UserError: the file cannot be read, a name is missing or not unique, or the labels are not
      consecutive.
  """
  try:
    with open(path, encoding='utf-8-sig') as file:  # With or without a byte order mark.
      lines = file.read().split('\n')
  except (OSError, UnicodeError) as error:
    raise UserError('{} cannot be read'.format(LABELS_FILE), '{} ({})'.format(
        printable(path), error), 'write it again as UTF-8 text, or give --labels') from error
  while lines and not lines[-1].strip():
    lines.pop()
  class_names, file_has_labels = lines, False
  matches = [re.fullmatch(r'\s*([0-9]+)\s*:(.*)', line) for line in lines]
  if lines and all(matches):
    pairs = sorted((int(match.group(1)), match.group(2)) for match in matches if match)
    num_spaces = int(all(name[:1].isspace() for _, name in pairs))
    class_names = [name[num_spaces:] for _, name in pairs]
    first, last = pairs[0][0], pairs[-1][0]
    if [label for label, _ in pairs] != list(range(first, first + len(lines))):
      raise UserError(
          'the labels in {} must be those of all classes'.format(LABELS_FILE),
          '{} has {} lines with labels from {} to {}'.format(
              printable(path), len(lines), first, last), 'write a line for each label')
    label_offset, file_has_labels = -first, True
  if not are_distinct(class_names) or any(name.splitlines() != [name] for name in class_names):
    raise UserError('{} must have a different name in each line'.format(LABELS_FILE),
                    printable(path), 'name each class once, in the order of the class indices')
  return Labels(tuple(class_names), label_offset, file_has_labels)
