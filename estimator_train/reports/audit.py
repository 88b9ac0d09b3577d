"""From what an audit saw of image files to `audit.json`, and to a table for people."""

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
# The kinds of findings, in the order of the table. Training fails on files of the first ones.
UNDECODABLE = ('unreadable', 'empty', 'not_an_image', 'truncated', 'cannot_be_decoded')
KINDS = UNDECODABLE + (
    'wrong_extension', 'cmyk', '16_bit', 'exif_rotated', 'animated', 'duplicate',
    'under_several_labels', 'in_train_and_eval')
_SHOWN = 20  # Files of a kind, and sizes, in the table; audit.json has all.


class Finding(NamedTuple):
  """Something found in a file; they sort by file.

  Attributes:
    file: its path; bytes that are no text are surrogates, as everywhere in Python.
    split: train or eval, as a file may be in both.
    kind: one of KINDS.
    label: the class that its folder says.
    reason: the kind in detail.
  """
  file: str
  split: str
  kind: str
  label: str
  reason: str


class Part:
  """The files of train or of eval, and what they add up to.

  Attributes:
    name: train or eval.
    files: their paths, as bytes.
  """

  def __init__(self, name: str, files: Sequence[bytes], classes: np.ndarray,
               labels: Sequence[str]) -> None:
    self.name, self.files = name, files
    self._classes, self._labels = classes, labels
    self._bytes = self._undecodable = 0
    self._shapes: Dict[Tuple[int, int, int], int] = collections.Counter()

  def add(self, size: int, shape: Optional[Tuple[int, int, int]]) -> None:
    """Counts a file of so many bytes; its shape is None when it cannot be decoded."""
    self._bytes += size
    if shape is None:
      self._undecodable += 1
    else:
      self._shapes[shape] += 1

  def label(self, index: int) -> str:
    """Returns the class of a file."""
    return self._labels[self._classes[index]]

  def finding(self, index: int, kind: str, reason: str) -> Finding:
    """Returns a finding in a file."""
    # Of a million files with the same problem, all have the same reason: it is kept once.
    return Finding(os.fsdecode(self.files[index]), self.name, kind, self.label(index),
                   sys.intern(reason))

  def figures(self) -> Dict[str, Any]:
    """Returns what the files add up to, by the names in audit.json."""
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


def place(parts: Sequence[Part], number: int) -> Tuple[Part, int]:
  """Returns the part that has this file, and its index there, of a number over all parts."""
  for part in parts:
    if number < len(part.files):
      return part, number
    number -= len(part.files)
  raise IndexError(number)


def same_contents(parts: Sequence[Part], numbers: np.ndarray,
                  digests: np.ndarray) -> Iterator[Finding]:
  """Yields the findings in files whose contents are those of another file too.

  Args:
    parts: the files.
    numbers: of the files that have contents, over all parts, rising.
    digests: of their contents, uint64 [len(numbers), 2].
  """
  order = np.lexsort(digests.T)  # Keeps the order of those that are equal.
  differs = np.any(digests[order][1:] != digests[order][:-1], axis=1)
  begins = np.flatnonzero(np.concatenate([[True], differs]))
  lengths = np.diff(np.append(begins, len(order)))
  for begin, length in zip(begins[lengths > 1], lengths[lengths > 1]):
    yield from _of_group([place(parts, number) for number in numbers[order[begin:begin + length]]])


def _of_group(group: Sequence[Tuple[Part, int]]) -> Iterator[Finding]:
  first_of_split: Dict[str, Tuple[Part, int]] = {}
  for part, index in group:
    first_of_split.setdefault(part.name, (part, index))
  labels = sorted({part.label(index) for part, index in group})
  for position, (part, index) in enumerate(group):
    if position:
      yield part.finding(index, 'duplicate', 'the same contents as ' + _in_words(*group[0]))
    if len(labels) > 1:
      yield part.finding(index, 'under_several_labels',
                         'the same contents are under ' + ', '.join(labels))
    for split, other in first_of_split.items():
      if split != part.name:
        yield part.finding(index, 'in_train_and_eval', 'the same contents as ' + _in_words(*other))


def _in_words(part: Part, index: int) -> str:
  return '{} ({})'.format(os.fsdecode(part.files[index]), part.name)


def write(run: groups.Run, data: groups.Data, parts: Sequence[Part],
          findings: Sequence[Finding]) -> Dict[str, Any]:
  """Writes `audit.json`, prints a table of it, and returns the headline figures.

  Args:
    run, data: flags of the run.
    parts: train and, where it was read, eval.
    findings: all there are, in any order.
  """
  path = RunDir(run.model_dir).file(FILE)
  findings = sorted(findings)
  splits = {part.name: part.figures() for part in parts}
  kinds = collections.Counter(finding.kind for finding in findings)
  counted = {
      'files': sum(figures['files'] for figures in splits.values()),
      'bytes': sum(figures['bytes'] for figures in splits.values()),
      'undecodable': sum(figures['undecodable'] for figures in splits.values()),
      'kinds': {kind: kinds[kind] for kind in KINDS if kinds[kind]},
  }
  atomic.write_json(path, {
      'dataset': data.dataset, 'train_pattern': data.train_pattern,
      'eval_pattern': data.eval_pattern, **counted, 'splits': splits,
      'findings': [dict(zip(Finding._fields, finding)) for finding in findings]})
  _print([*_table(splits), '', *_list(findings), 'All of it is in ' + _printable(path)])
  return {'mode': run.mode, 'model_dir': run.model_dir, 'files': counted['files'],
          'findings': counted['kinds'], 'undecodable': counted['undecodable'], 'audit': path}


def _table(splits: Dict[str, Dict[str, Any]]) -> Iterator[str]:
  for name, figures in splits.items():
    yield '{}: {:,} files, {:,} bytes; {:,} grey, {:,} in colour, {:,} undecodable'.format(
        name, *(figures[key] for key in ('files', 'bytes', 'grey', 'colour', 'undecodable')))
    width = max(len(_printable(label)) for label in figures['classes'])
    for label, count in figures['classes'].items():
      yield '  {:{}}  {:>9,}  {:6.2%}'.format(
          _printable(label), width, count, count / figures['files'])
    yield '  largest to smallest class: ' + (
        'one is empty' if figures['imbalance'] is None else '{:.2f}'.format(figures['imbalance']))
    yield '  height x width x channels:'
    for size in figures['sizes'][:_SHOWN]:
      yield '  {height:>6} x {width} x {channels}: {files:,}'.format(**size)
    yield from _and_more(len(figures['sizes']), 'sizes')


def _list(findings: Sequence[Finding]) -> Iterator[str]:
  if not findings:
    yield 'nothing found'
  of_kind: Dict[str, List[Finding]] = {kind: [] for kind in KINDS}
  for finding in findings:
    of_kind[finding.kind].append(finding)
  for kind, some in of_kind.items():
    if some:
      yield '{}: {:,}'.format(kind, len(some))
    for finding in some[:_SHOWN]:
      yield '  {} - {}'.format(_printable(finding.file), _printable(finding.reason))
    yield from _and_more(len(some), 'files')


def _and_more(count: int, what: str) -> Iterator[str]:
  if count > _SHOWN:
    yield '  and {:,} more {}'.format(count - _SHOWN, what)


def _printable(text: str) -> str:
  """Returns the text, or what audit.json has for it where it would break the table."""
  return text if text.isprintable() else json.dumps(text)


def _print(lines: Sequence[str]) -> None:
  encoding = sys.stdout.encoding or 'utf-8'
  for line in lines:
    print(line.encode(encoding, 'backslashreplace').decode(encoding))
