"""Writes the report of `--mode=audit`: `audit.json`, and a table on standard output."""

import collections
import json
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

AUDIT_FILE = 'audit.json'
# A file with an issue of one of these kinds cannot be decoded. By default, training fails when the
# input pipeline reads such a file.
UNDECODABLE_KINDS = ('unreadable', 'bad_record', 'empty', 'not_an_image', 'truncated',
                     'cannot_be_decoded')
# All kinds of issues, in the order in which the table lists them.
ISSUE_KINDS = UNDECODABLE_KINDS + (
    'wrong_extension', 'cmyk', '16_bit', 'exif_rotated', 'animated', 'duplicate',
    'under_several_labels', 'in_train_and_eval')
# The table shows at most this many image sizes per split, and at most this many files per kind of
# issue. audit.json lists all image sizes and all files with issues.
_MAX_SHOWN = 20


class ImageIssue(NamedTuple):
  """An issue of an image file. `file` is the first field, so that issues are sorted by file.

  Attributes:
    file: the path. Bytes of the path that cannot be decoded become surrogate escapes, as in
      `os.fsdecode`.
    split: `train` or `eval`. A file that is in both splits has separate issues for each split.
    kind: one of ISSUE_KINDS.
    label: the class name of the file.
    reason: a description of the issue.
  """
  file: str
  split: str
  kind: str
  label: str
  reason: str


class AuditedSplit:
  """The images of one split, and the statistics collected from them.

  Args:
    name: `train` or `eval`.
    files: the paths of the files, or the names of the records.
    class_indices: the class index of each image; -1: unknown.
    class_names: the class names, by class index.

  Attributes:
    name, files: as in Args.
  """

  def __init__(self, name: str, files: Sequence[Union[str, bytes]], class_indices: np.ndarray,
               class_names: Sequence[str]) -> None:
    self.name, self.files = name, files
    self._class_indices, self._class_names = class_indices, class_names
    self._bytes = self._undecodable = 0
    self._shapes: Dict[Tuple[int, int, int], int] = collections.Counter()

  def add_file(self, size: int, shape: Optional[Tuple[int, int, int]]) -> None:
    """Adds a file to the statistics.

    Args:
      size: size of the file in bytes.
      shape: (height, width, channels); None if the file cannot be decoded.
    """
    self._bytes += size
    if shape is None:
      self._undecodable += 1
    else:
      self._shapes[shape] += 1

  def class_name(self, index: int) -> str:
    """Returns the class name of the image at `index`; '' if it is unknown."""
    class_index = self._class_indices[index]
    return self._class_names[class_index] if class_index >= 0 else ''

  def make_issue(self, index: int, kind: str, reason: str) -> ImageIssue:
    """Returns an issue of the file at `index`; see ImageIssue for `kind` and `reason`."""
    # Interning saves memory, because a million files may have an issue with the same reason.
    return ImageIssue(os.fsdecode(self.files[index]), self.name, kind, self.class_name(index),
                      sys.intern(reason))

  def statistics(self) -> Dict[str, Any]:
    """Returns the statistics of the split, by their keys in audit.json."""
    known = self._class_indices[self._class_indices >= 0]
    counts = np.bincount(known, minlength=len(self._class_names)).tolist()
    num_grey = sum(count for shape, count in self._shapes.items() if shape[2] < 3)
    shapes = sorted(self._shapes.items(), key=lambda item: (-item[1], item[0]))
    return {
        'files': len(self.files),
        'bytes': self._bytes,
        'undecodable': self._undecodable,
        'classes': dict(zip(self._class_names, counts)),
        'imbalance': max(counts) / min(counts) if min(counts) else None,
        'grey': num_grey,
        'colour': sum(self._shapes.values()) - num_grey,
        'sizes': [{'height': height, 'width': width, 'channels': channels, 'files': count}
                  for (height, width, channels), count in shapes],
    }


def locate_file(splits: Sequence[AuditedSplit], position: int) -> Tuple[AuditedSplit, int]:
  """Returns the split that contains a file, and the index of the file in this split.

  Args:
    splits: all splits.
    position: the index of the file in the concatenation of all splits.
  """
  for split in splits:
    if position < len(split.files):
      return split, position
    position -= len(split.files)
  raise IndexError(position)


def find_duplicates(splits: Sequence[AuditedSplit], positions: np.ndarray,
                    digests: np.ndarray) -> Iterator[ImageIssue]:
  """Yields the issues of files that have the same contents as another file.

  Args:
    splits: all splits.
    positions: the files to compare, as ascending indices into the concatenation of all splits.
      Empty files must be left out.
    digests: the digests of the contents of these files, uint64 [len(positions), 2].
  """
  # lexsort is stable, so files with equal contents stay in the order of `positions`.
  order = np.lexsort(digests.T)
  differs_from_previous = np.any(digests[order][1:] != digests[order][:-1], axis=1)
  starts = np.flatnonzero(np.concatenate([[True], differs_from_previous]))
  lengths = np.diff(np.append(starts, len(order)))
  for start, length in zip(starts[lengths > 1], lengths[lengths > 1]):
    yield from _make_duplicate_issues(
        [locate_file(splits, position) for position in positions[order[start:start + length]]])


def _make_duplicate_issues(group: Sequence[Tuple[AuditedSplit, int]]) -> Iterator[ImageIssue]:
  """Yields the issues of a group of files that all have the same contents.

  Args:
    group: for each file, its split and its index in this split.
  """
  first_file_of_split: Dict[str, Tuple[AuditedSplit, int]] = {}
  for split, index in group:
    first_file_of_split.setdefault(split.name, (split, index))
  class_names = sorted({split.class_name(index) for split, index in group})
  for number, (split, index) in enumerate(group):
    if number > 0:
      yield split.make_issue(index, 'duplicate',
                             'the same contents as ' + _format_path_and_split(*group[0]))
    if len(class_names) > 1:
      yield split.make_issue(index, 'under_several_labels',
                             'the same contents are in the classes ' + ', '.join(class_names))
    for split_name, first_file in first_file_of_split.items():
      if split_name != split.name:
        yield split.make_issue(index, 'in_train_and_eval',
                               'the same contents as ' + _format_path_and_split(*first_file))


def _format_path_and_split(split: AuditedSplit, index: int) -> str:
  return '{} ({})'.format(os.fsdecode(split.files[index]), split.name)


def write_audit_report(run: groups.Run, data: groups.Data, splits: Sequence[AuditedSplit],
                       issues: Sequence[ImageIssue]) -> Dict[str, Any]:
  """Writes `audit.json`, prints its contents as a table, and returns the result of `--mode=audit`.

  Args:
    run: `--mode` and `--model_dir`.
    data: the flags of the data set.
    splits: all audited splits.
    issues: all issues, in any order.
  """
  path = RunDir(run.model_dir).path_to(AUDIT_FILE)
  issues = sorted(issues)
  statistics = {split.name: split.statistics() for split in splits}
  issue_counts = collections.Counter(issue.kind for issue in issues)
  totals = {
      'files': sum(figures['files'] for figures in statistics.values()),
      'bytes': sum(figures['bytes'] for figures in statistics.values()),
      'undecodable': sum(figures['undecodable'] for figures in statistics.values()),
      'kinds': {kind: issue_counts[kind] for kind in ISSUE_KINDS if issue_counts[kind]},
  }
  atomic.write_json(path, {
      'dataset': data.dataset, 'train_pattern': data.train_pattern,
      'eval_pattern': data.eval_pattern, **totals, 'splits': statistics,
      'findings': [dict(zip(ImageIssue._fields, issue)) for issue in issues]})
  _print_lines([*_format_statistics(statistics), '', *_format_issues(issues),
                'full report: ' + _printable(path)])
  return {'mode': run.mode, 'model_dir': run.model_dir, 'files': totals['files'],
          'findings': totals['kinds'], 'undecodable': totals['undecodable'], 'audit': path}


def _format_statistics(statistics: Dict[str, Dict[str, Any]]) -> Iterator[str]:
  for name, figures in statistics.items():
    yield '{}: {:,} files, {:,} bytes; {:,} grey, {:,} in colour, {:,} undecodable'.format(
        name, *(figures[key] for key in ('files', 'bytes', 'grey', 'colour', 'undecodable')))
    width = max(len(_printable(class_name)) for class_name in figures['classes'])
    for class_name, count in figures['classes'].items():
      yield '  {:{}}  {:>9,}  {:6.2%}'.format(
          _printable(class_name), width, count, count / figures['files'])
    yield '  ratio of the largest to the smallest class: ' + (
        'undefined, a class is empty' if figures['imbalance'] is None
        else '{:.2f}'.format(figures['imbalance']))
    yield '  height x width x channels: files'
    for size in figures['sizes'][:_MAX_SHOWN]:
      yield '  {height:>6} x {width} x {channels}: {files:,}'.format(**size)
    yield from _format_omitted(len(figures['sizes']), 'sizes')


def _format_issues(issues: Sequence[ImageIssue]) -> Iterator[str]:
  if not issues:
    yield 'no issues found'
  by_kind: Dict[str, List[ImageIssue]] = {kind: [] for kind in ISSUE_KINDS}
  for issue in issues:
    by_kind[issue.kind].append(issue)
  for kind, issues_of_kind in by_kind.items():
    if issues_of_kind:
      yield '{}: {:,}'.format(kind, len(issues_of_kind))
    for issue in issues_of_kind[:_MAX_SHOWN]:
      yield '  {} - {}'.format(_printable(issue.file), _printable(issue.reason))
    yield from _format_omitted(len(issues_of_kind), 'files')


def _format_omitted(count: int, noun: str) -> Iterator[str]:
  """Yields a line with the number of omitted items if the table does not show all items."""
  if count > _MAX_SHOWN:
    yield '  and {:,} more {}'.format(count - _MAX_SHOWN, noun)


def _printable(text: str) -> str:
  """Returns the text, or its JSON string if characters such as line breaks are unprintable."""
  return text if text.isprintable() else json.dumps(text)


def _print_lines(lines: Sequence[str]) -> None:
  """Prints the lines. Characters that standard output cannot encode are escaped."""
  encoding = sys.stdout.encoding or 'utf-8'
  for line in lines:
    print(line.encode(encoding, 'backslashreplace').decode(encoding))
