"""The report of `--mode=audit`: writes `audit.json` and prints a table of it."""

import collections
import json
import os
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

FILE = 'audit.json'
# The kinds of issues, in the order of the table. Training fails on files of the UNDECODABLE kinds.
UNDECODABLE = ('unreadable', 'empty', 'not_an_image', 'truncated', 'cannot_be_decoded')
KINDS = UNDECODABLE + (
    'wrong_extension', 'cmyk', '16_bit', 'exif_rotated', 'animated', 'duplicate',
    'under_several_labels', 'in_train_and_eval')
_MAX_SHOWN = 20  # Files per kind, and image sizes, in the table; audit.json has all of them.


class ImageIssue(NamedTuple):
  """An issue of an image file. Issues sort by file.

  Attributes:
    file: the path; bytes that are not valid text are surrogate escapes, as in `os.fsdecode`.
    split: `train` or `eval`, because a file may be in both.
    kind: one of KINDS.
    label: the class name, which is the name of the file's folder.
    reason: a description of the issue.
  """
  file: str
  split: str
  kind: str
  label: str
  reason: str


class AuditedSplit:
  """The image files of one split, and the statistics collected from them.

  Attributes:
    name: `train` or `eval`.
    files: paths, as bytes.
  """

  def __init__(self, name: str, files: Sequence[bytes], classes: np.ndarray,
               labels: Sequence[str]) -> None:
    self.name, self.files = name, files
    self._classes, self._labels = classes, labels
    self._bytes = self._undecodable = 0
    self._shapes: Dict[Tuple[int, int, int], int] = collections.Counter()

  def add(self, size: int, shape: Optional[Tuple[int, int, int]]) -> None:
    """Counts a file by its size in bytes and its image shape, None if it cannot be decoded."""
    self._bytes += size
    if shape is None:
      self._undecodable += 1
    else:
      self._shapes[shape] += 1

  def label(self, index: int) -> str:
    """Returns the class name of a file."""
    return self._labels[self._classes[index]]

  def make_issue(self, index: int, kind: str, reason: str) -> ImageIssue:
    """Returns an issue of the file at `index`."""
    # Interned because a million files with the same issue have the same reason.
    return ImageIssue(os.fsdecode(self.files[index]), self.name, kind, self.label(index),
                      sys.intern(reason))

  def statistics(self) -> Dict[str, Any]:
    """Returns the statistics of the split, by their keys in audit.json."""
    counts = np.bincount(self._classes, minlength=len(self._labels)).tolist()
    grey = sum(count for shape, count in self._shapes.items() if shape[2] < 3)
    shapes = sorted(self._shapes.items(), key=lambda item: (-item[1], item[0]))
    return {
        'files': len(self.files),
        'bytes': self._bytes,
        'undecodable': self._undecodable,
        'classes': dict(zip(self._labels, counts)),
        'imbalance': max(counts) / min(counts) if min(counts) else None,
        'grey': grey,
        'colour': sum(self._shapes.values()) - grey,
        'sizes': [{'height': height, 'width': width, 'channels': channels, 'files': count}
                  for (height, width, channels), count in shapes],
    }


def locate_file(splits: Sequence[AuditedSplit], number: int) -> Tuple[AuditedSplit, int]:
  """Returns the split of a file and its index there.

  Args:
    splits: all splits.
    number: the index of the file in the concatenation of the splits.
  """
  for split in splits:
    if number < len(split.files):
      return split, number
    number -= len(split.files)
  raise IndexError(number)


def find_duplicates(splits: Sequence[AuditedSplit], numbers: np.ndarray,
                    digests: np.ndarray) -> Iterator[ImageIssue]:
  """Yields the issues of files that have the same contents as another file.

  Args:
    splits: all splits.
    numbers: indices of the files that are not empty, in the concatenation of the splits,
      ascending.
    digests: digests of their contents, uint64 [len(numbers), 2].
  """
  order = np.lexsort(digests.T)  # A stable sort.
  differs = np.any(digests[order][1:] != digests[order][:-1], axis=1)
  begins = np.flatnonzero(np.concatenate([[True], differs]))
  lengths = np.diff(np.append(begins, len(order)))
  for begin, length in zip(begins[lengths > 1], lengths[lengths > 1]):
    yield from _duplicate_issues(
        [locate_file(splits, number) for number in numbers[order[begin:begin + length]]])


def _duplicate_issues(group: Sequence[Tuple[AuditedSplit, int]]) -> Iterator[ImageIssue]:
  """Yields the issues of a group of files that all have the same contents."""
  first_of_split: Dict[str, Tuple[AuditedSplit, int]] = {}
  for split, index in group:
    first_of_split.setdefault(split.name, (split, index))
  labels = sorted({split.label(index) for split, index in group})
  for position, (split, index) in enumerate(group):
    if position:
      yield split.make_issue(index, 'duplicate',
                             'the same contents as ' + _path_and_split(*group[0]))
    if len(labels) > 1:
      yield split.make_issue(index, 'under_several_labels',
                             'the same contents have the labels ' + ', '.join(labels))
    for name, other in first_of_split.items():
      if name != split.name:
        yield split.make_issue(index, 'in_train_and_eval',
                               'the same contents as ' + _path_and_split(*other))


def _path_and_split(split: AuditedSplit, index: int) -> str:
  return '{} ({})'.format(os.fsdecode(split.files[index]), split.name)


def write_audit_report(run: groups.Run, data: groups.Data, splits: Sequence[AuditedSplit],
                       issues: Sequence[ImageIssue]) -> Dict[str, Any]:
  """Writes `audit.json`, prints a table of it, and returns the result of the mode.

  Args:
    run, data: flag groups of the run.
    splits: `train` and, if it was audited, `eval`.
    issues: all issues, in any order.
  """
  path = RunDir(run.model_dir).file(FILE)
  issues = sorted(issues)
  statistics = {split.name: split.statistics() for split in splits}
  kinds = collections.Counter(issue.kind for issue in issues)
  totals = {
      'files': sum(figures['files'] for figures in statistics.values()),
      'bytes': sum(figures['bytes'] for figures in statistics.values()),
      'undecodable': sum(figures['undecodable'] for figures in statistics.values()),
      'kinds': {kind: kinds[kind] for kind in KINDS if kinds[kind]},
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
    width = max(len(_printable(label)) for label in figures['classes'])
    for label, count in figures['classes'].items():
      yield '  {:{}}  {:>9,}  {:6.2%}'.format(
          _printable(label), width, count, count / figures['files'])
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
  by_kind: Dict[str, List[ImageIssue]] = {kind: [] for kind in KINDS}
  for issue in issues:
    by_kind[issue.kind].append(issue)
  for kind, of_kind in by_kind.items():
    if of_kind:
      yield '{}: {:,}'.format(kind, len(of_kind))
    for issue in of_kind[:_MAX_SHOWN]:
      yield '  {} - {}'.format(_printable(issue.file), _printable(issue.reason))
    yield from _format_omitted(len(of_kind), 'files')


def _format_omitted(count: int, noun: str) -> Iterator[str]:
  if count > _MAX_SHOWN:
    yield '  and {:,} more {}'.format(count - _MAX_SHOWN, noun)


def _printable(text: str) -> str:
  """Returns the text, escaped as in JSON if it has characters that would break the table."""
  return text if text.isprintable() else json.dumps(text)


def _print_lines(lines: Sequence[str]) -> None:
  encoding = sys.stdout.encoding or 'utf-8'
  for line in lines:
    print(line.encode(encoding, 'backslashreplace').decode(encoding))
