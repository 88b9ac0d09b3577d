"""`--mode=audit`: decodes every image as training does, and reports the images with issues."""

import collections
import contextlib
import functools
import hashlib
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.data import bad_images, decoding
from estimator_train.data.image_source import ImageSource
from estimator_train.data.opening import make_image_sources
from estimator_train.errors import BadExample, join_items
from estimator_train.modes.audit import file_issues
from estimator_train.modes.audit.file_issues import KINDS, FileIssue
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.proposals import make_command
from estimator_train.system import storage
from estimator_train.system.formatting import (
  format_bytes,
  format_count,
  format_metric,
  format_percent,
  format_quantity,
  format_secs,
)
from estimator_train.system.summary import log_summary

AUDIT_FILE = 'audit.json'
# The maximum number of image sizes per split, and of files per kind of issue, in the table.
_MAX_ROWS = 20
_DIGEST_BYTES = 16


class ImageIssue(NamedTuple):
  """An issue of an image file. `file` is the first field, so that issues are sorted by file.

  Attributes:
    file: the path, in which bytes that cannot be decoded are surrogates, as in `os.fsdecode`.
    split: `train` or `eval`. A file that is in both splits has separate issues for each split.
    kind: one of KINDS.
    label: the class name; '' if it is unknown.
  """
  file: str
  split: str
  kind: str
  label: str
  reason: str


class InspectedImage(NamedTuple):
  """The results of inspecting one image.

  Attributes:
    digest: of the contents; b'' if the file is empty or cannot be read.
    shape: (height, width, channels); None if the image cannot be decoded.
  """
  num_bytes: int
  digest: bytes
  shape: Optional[Tuple[int, int, int]]
  issues: Tuple[FileIssue, ...]


class AuditedSplit:
  """The images of one split, and the statistics collected from them."""

  def __init__(self, name: str, source: ImageSource, class_names: Sequence[str]) -> None:
    self.name, self.source, self._class_names = name, source, class_names
    self._class_indices = source.read_class_indices_or_minus_one()
    self._num_bytes = self._num_undecodable = 0
    self._shape_counts: Dict[Tuple[int, int, int], int] = collections.Counter()

  def add_image(self, image: InspectedImage) -> None:
    self._num_bytes += image.num_bytes
    if image.shape is None:
      self._num_undecodable += 1
    else:
      self._shape_counts[image.shape] += 1

  def find_class_name(self, index: int) -> str:
    """Returns the class name of the image at `index`; '' if it is unknown."""
    class_index = self._class_indices[index]
    return self._class_names[class_index] if class_index >= 0 else ''

  def make_issue(self, index: int, kind: str, reason: str) -> ImageIssue:
    # Interning saves memory, because a million files may have an issue with the same reason.
    return ImageIssue(self.source.image_name(index), self.name, kind, self.find_class_name(index),
                      sys.intern(reason))

  def describe_file(self, index: int) -> str:
    """Returns the path of the file at `index`, and the name of the split."""
    return '{} ({})'.format(self.source.image_name(index), self.name)

  def compute_statistics(self) -> Dict[str, Any]:
    """Returns the statistics of the split, by their keys in audit.json."""
    known_indices = self._class_indices[self._class_indices >= 0]
    class_counts = np.bincount(known_indices, minlength=len(self._class_names)).tolist()
    num_grey = sum(count for shape, count in self._shape_counts.items() if shape[2] < 3)
    most_frequent_first = sorted(
        self._shape_counts.items(), key=lambda shape_and_count: (
            -shape_and_count[1], shape_and_count[0]))
    return {
        'files': len(self.source),
        'bytes': self._num_bytes,
        'undecodable': self._num_undecodable,
        'classes': dict(zip(self._class_names, class_counts)),
        'imbalance': max(class_counts) / min(class_counts) if min(class_counts) else None,
        'grey': num_grey,
        'color': sum(self._shape_counts.values()) - num_grey,
        'sizes': [{'height': height, 'width': width, 'channels': channels, 'files': count}
                  for (height, width, channels), count in most_frequent_first],
    }


def run(settings: Settings, run_dir: RunDir) -> Dict[str, Any]:
  """Returns the result of the mode: the number of files, and the number of issues of each kind."""
  file_issues.load_pillow()
  spec, sources = make_image_sources(settings, run_dir)
  run_dir.make()
  start_time = time.monotonic()
  splits = [AuditedSplit(name, source, spec.labels) for name, source in sources.items()]
  issues = _inspect_images(splits)
  num_images, secs = sum(map(len, sources.values())), time.monotonic() - start_time
  result = write_audit_report(settings, run_dir, splits, issues)
  changes = {'on_bad_image': 'skip'} if result['undecodable'] else {}
  log_summary('audited {} in {}, {}'.format(
      format_count(num_images, 'image'), format_secs(secs),
      format_quantity(num_images / secs, 'images/sec')), [
          ('issues', ', '.join('{} {}'.format(count, kind.replace('_', ' '))
                               for kind, count in result['findings'].items()) or 'none'),
          ('audit', result['audit'])],
              make_command(*to_training_arguments(settings, **changes)))
  return result


def _inspect_images(splits: Sequence[AuditedSplit]) -> List[ImageIssue]:
  """Inspects all images, updates the statistics of the splits, and returns all issues."""
  issues = [ImageIssue(name, split.name, 'bad_record', '', reason)
            for split in splits for name, reason in split.source.unreadable_file_parts()]
  # Without files that are empty or unreadable, because these have no digest.
  files_by_digest: Dict[bytes, List[Tuple[AuditedSplit, int]]] = {}
  with contextlib.closing(decoding.make_shape_function()) as read_shape:
    for split in splits:
      inspect_image = functools.partial(_inspect_image, split.source, read_shape)
      for index, image in enumerate(bad_images.map_in_parallel(
          inspect_image, len(split.source), 'auditing ' + split.name)):
        split.add_image(image)
        issues.extend(split.make_issue(index, *issue) for issue in image.issues)
        if image.digest:
          files_by_digest.setdefault(image.digest, []).append((split, index))
  for same_files in files_by_digest.values():
    if len(same_files) > 1:
      issues.extend(_make_duplicate_issues(same_files))
  return issues


def _inspect_image(source: ImageSource, read_shape: decoding.ImageFunction,
                   index: int) -> InspectedImage:
  name = source.image_name(index)
  try:
    contents = source.read_content(index)
  except OSError as error:
    is_broken_link = os.path.islink(name) and not os.path.exists(name)
    reason = 'a broken link' if is_broken_link else bad_images.error_reason(error)
    return InspectedImage(0, b'', None, (FileIssue('unreadable', reason),))
  except BadExample as error:
    return InspectedImage(0, b'', None, (FileIssue('bad_record', error.reason),))
  shape: Optional[Tuple[int, int, int]] = None
  decode_error = None
  try:
    height, width, channels = read_shape.call(contents).tolist()
    shape = height, width, channels
  except ValueError as error:
    decode_error = str(error)
  digest = hashlib.blake2b(contents, digest_size=_DIGEST_BYTES).digest() if contents else b''
  return InspectedImage(len(contents), digest, shape, tuple(file_issues.find_issues(
      os.fsencode(name), contents, decode_error)))


def _make_duplicate_issues(same_files: Sequence[Tuple[AuditedSplit, int]]) -> Iterator[ImageIssue]:
  """Yields the issues of files with the same contents.

  Args:
    same_files: (split, index in the split) of each file.
  """
  same_contents = 'the same contents as '
  first_index_by_split: Dict[AuditedSplit, int] = {}
  for split, index in same_files:
    first_index_by_split.setdefault(split, index)
  # Each of the issues has this text, which is therefore short even for thousands of classes.
  class_names = sorted({split.find_class_name(index) for split, index in same_files})
  text = 'the same contents are in the classes ' + join_items(class_names)
  for number, (split, index) in enumerate(same_files):
    if number > 0:
      first_split, first_index = same_files[0]
      yield split.make_issue(index, 'duplicate',
                             same_contents + first_split.describe_file(first_index))
    if len(class_names) > 1:
      yield split.make_issue(index, 'under_several_labels', text)
    for other_split, first_index in first_index_by_split.items():
      if other_split is not split:
        yield split.make_issue(index, 'in_train_and_eval',
                               same_contents + other_split.describe_file(first_index))


def write_audit_report(settings: Settings, run_dir: RunDir, splits: Sequence[AuditedSplit],
                       issues: Sequence[ImageIssue]) -> Dict[str, Any]:
  """Writes `audit.json`, prints its contents as a table, and returns the result of the mode."""
  path, data = run_dir.path_to(AUDIT_FILE), settings.data
  issues = sorted(issues)
  statistics = {split.name: split.compute_statistics() for split in splits}
  issue_counts = collections.Counter(issue.kind for issue in issues)
  totals: Dict[str, Any] = {key: sum(figures[key] for figures in statistics.values())
                            for key in ('files', 'bytes', 'undecodable')}
  totals['kinds'] = {kind: issue_counts[kind] for kind in KINDS if issue_counts[kind]}
  storage.write_json(path, {
      'dataset': data.dataset, 'train_pattern': data.train_pattern,
      'eval_pattern': data.eval_pattern, **totals, 'splits': statistics,
      'findings': [issue._asdict() for issue in issues]})
  encoding = sys.stdout.encoding or 'utf-8'
  for line in [*_format_statistics(statistics), '', *_format_issues(issues),
               'full report: ' + _printable(path)]:
    # Characters that standard output cannot encode are escaped.
    print(line.encode(encoding, 'backslashreplace').decode(encoding))
  return {'mode': settings.run.mode, 'model_dir': run_dir.path, 'files': totals['files'],
          'findings': totals['kinds'], 'undecodable': totals['undecodable'], 'audit': path}


def _format_statistics(statistics: Dict[str, Dict[str, Any]]) -> Iterator[str]:
  for name, figures in statistics.items():
    yield '{}: {:,} files, {}; {:,} grey, {:,} in color, {:,} undecodable'.format(
        name, figures['files'], format_bytes(figures['bytes']),
        *(figures[key] for key in ('grey', 'color', 'undecodable')))
    width = max(len(_printable(class_name)) for class_name in figures['classes'])
    for class_name, count in figures['classes'].items():
      yield '  {:{}}  {:>9,}  {:>6}'.format(
          _printable(class_name), width, count, format_percent(count / figures['files']))
    yield '  ratio of the largest to the smallest class: ' + (
        'undefined, a class is empty' if figures['imbalance'] is None
        else format_metric(figures['imbalance']))
    yield '  height x width x channels: files'
    for size in figures['sizes'][:_MAX_ROWS]:
      yield '  {height:>6} x {width} x {channels}: {files:,}'.format(**size)
    yield from _format_omitted(len(figures['sizes']), 'sizes')


def _format_issues(issues: Sequence[ImageIssue]) -> Iterator[str]:
  if not issues:
    yield 'no issues found'
  issues_by_kind: Dict[str, List[ImageIssue]] = {kind: [] for kind in KINDS}
  for issue in issues:
    issues_by_kind[issue.kind].append(issue)
  for kind, issues_of_kind in issues_by_kind.items():
    if issues_of_kind:
      yield '{}: {:,}'.format(kind, len(issues_of_kind))
    for issue in issues_of_kind[:_MAX_ROWS]:
      yield '  {} - {}'.format(_printable(issue.file), _printable(issue.reason))
    yield from _format_omitted(len(issues_of_kind), 'files')


def _format_omitted(count: int, noun: str) -> Iterator[str]:
  if count > _MAX_ROWS:
    yield '  and {:,} more {}'.format(count - _MAX_ROWS, noun)


def _printable(text: str) -> str:
  """Returns the text, or a JSON string if it has unprintable characters, such as line breaks."""
  return text if text.isprintable() else json.dumps(text)
