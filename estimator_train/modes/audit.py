"""`--mode=audit`: reads every image file as training would, and tells what is wrong or odd."""

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


class _Inspected(NamedTuple):
  """What is kept of a file: its size and digest (None: not read), image shape and problems."""
  size: int
  digest: Optional[bytes]
  shape: Optional[Tuple[int, int, int]]
  problems: Tuple[Problem, ...]


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: how many files there are, and how many findings of each kind."""
  image_headers.load_pillow()
  dataset = registry.describe(settings)
  parts = [_part(name, split, dataset)
           for name, split in (('train', dataset.train), ('eval', dataset.test))
           if split is not None]
  RunDir(settings.model_dir).make()
  began = time.monotonic()
  findings = _inspect(parts)
  count, secs = sum(len(part.files) for part in parts), time.monotonic() - began
  _LOG.info('%d images in %.1f s, %.0f images/sec', count, secs, count / secs)
  return audit.write(settings[groups.Run], settings[groups.Data], parts, findings)


def _part(name: str, split: Any, dataset: DataSet) -> audit.Part:
  source = make_source(dataset, split)
  if not source.is_auditable:
    raise UserError('--mode=audit is for image files', '--dataset=' + dataset.name,
                    'give --dataset=image_folder with --train_pattern, or --dataset=oct2017')
  return audit.Part(name, split.files, source.classes(), dataset.labels)


def _inspect(parts: List[audit.Part]) -> List[audit.Finding]:
  """Reads all files, adds them up in their parts, and returns what was found."""
  files = list(itertools.chain.from_iterable(part.files for part in parts))
  digests = np.zeros((len(files), 2), np.uint64)
  has_content = np.zeros(len(files), bool)
  findings: List[audit.Finding] = []
  with contextlib.closing(bad_images.Decoder()) as decoder:
    for number, seen in enumerate(bad_images.each_in_threads(
        lambda path: _inspect_file(path, decoder), files, 'auditing')):
      part, index = audit.place(parts, number)
      part.add(seen.size, seen.shape)
      findings.extend(part.finding(index, *problem) for problem in seen.problems)
      if seen.digest is not None:
        digests[number] = np.frombuffer(seen.digest, np.uint64)
        has_content[number] = True
  findings.extend(audit.same_contents(parts, np.flatnonzero(has_content), digests[has_content]))
  return findings


def _inspect_file(path: bytes, decoder: bad_images.Decoder) -> _Inspected:
  try:
    contents = bad_images.read(path)
  except OSError as error:
    reason = error.strerror or str(error)
    if os.path.islink(path) and not os.path.exists(path):
      reason = 'a link to nowhere'
    return _Inspected(0, None, None, (Problem('unreadable', reason),))
  shape, refusal = None, None
  try:
    shape = decoder.shape(contents)
  except ValueError as error:
    refusal = str(error)
  # Empty files are all alike, which is not worth a finding.
  digest = hashlib.blake2b(contents, digest_size=16).digest() if contents else None
  return _Inspected(len(contents), digest, shape,
                    tuple(image_headers.problems(path, contents, refusal)))
