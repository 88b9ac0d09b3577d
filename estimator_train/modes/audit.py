"""`--mode=audit`: decodes every image file as training does, and reports the files with issues."""

import contextlib
import hashlib
import itertools
import logging
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.inputs import bad_images, image_headers
from estimator_train.inputs.factory import make_source
from estimator_train.inputs.image_headers import Problem
from estimator_train.reports import audit
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')


class _InspectedFile(NamedTuple):
  """The results of inspecting one file.

  Attributes:
    size: size in bytes.
    digest: hash of the contents; None if the file is empty or cannot be read.
    shape: (height, width, channels); None if the file cannot be decoded.
    problems: problems in the contents of the file, or the reason why it cannot be read.
  """
  size: int
  digest: Optional[bytes]
  shape: Optional[Tuple[int, int, int]]
  problems: Tuple[Problem, ...]


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the number of files, and the number of issues of each kind."""
  image_headers.load_pillow()
  dataset = registry.describe(settings)
  splits = [_make_audited_split(name, split, dataset)
            for name, split in (('train', dataset.train), ('eval', dataset.test))
            if split is not None]
  RunDir(settings.model_dir).make()
  began = time.monotonic()
  issues = _inspect_files(splits)
  count, secs = sum(len(split.files) for split in splits), time.monotonic() - began
  _LOG.info('audited %d images in %.1f s, %.0f images/sec', count, secs, count / secs)
  return audit.write_audit_report(settings[groups.Run], settings[groups.Data], splits, issues)


def _make_audited_split(name: str, split: Any, dataset: DataSet) -> audit.AuditedSplit:
  """Makes an AuditedSplit; raises a UserError if the data set does not consist of image files."""
  source = make_source(dataset, split)
  if not source.is_auditable:
    raise UserError('--mode=audit requires a data set of image files', '--dataset=' + dataset.name,
                    'give --dataset=image_folder with --train_pattern, or --dataset=oct2017')
  return audit.AuditedSplit(name, split.files, source.class_indices(), dataset.labels)


def _inspect_files(splits: List[audit.AuditedSplit]) -> List[audit.ImageIssue]:
  """Inspects all files, updates the statistics of the splits, and returns all issues."""
  files = list(itertools.chain.from_iterable(split.files for split in splits))
  digests = np.zeros((len(files), 2), np.uint64)
  has_content = np.zeros(len(files), bool)
  issues: List[audit.ImageIssue] = []
  with contextlib.closing(bad_images.Decoder()) as decoder:
    for position, inspected in enumerate(bad_images.map_files(
        lambda path: _inspect_file(path, decoder), files, 'auditing')):
      split, index = audit.locate_file(splits, position)
      split.add_file(inspected.size, inspected.shape)
      issues.extend(split.make_issue(index, *problem) for problem in inspected.problems)
      if inspected.digest is not None:
        digests[position] = np.frombuffer(inspected.digest, np.uint64)
        has_content[position] = True
  issues.extend(audit.find_duplicates(splits, np.flatnonzero(has_content), digests[has_content]))
  return issues


def _inspect_file(path: bytes, decoder: bad_images.Decoder) -> _InspectedFile:
  """Reads and decodes a file, and finds its problems."""
  try:
    contents = bad_images.read_regular_file(path)
  except OSError as error:
    reason = error.strerror or str(error)
    if os.path.islink(path) and not os.path.exists(path):
      reason = 'a broken link'
    return _InspectedFile(0, None, None, (Problem('unreadable', reason),))
  shape, decode_error = None, None
  try:
    shape = decoder.decode_shape(contents)
  except ValueError as error:
    decode_error = str(error)
  # Empty files have no digest, so that they are not reported as duplicates of each other.
  digest = hashlib.blake2b(contents, digest_size=16).digest() if contents else None
  return _InspectedFile(len(contents), digest, shape,
                        tuple(image_headers.find_problems(path, contents, decode_error)))
