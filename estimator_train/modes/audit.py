"""`--mode=audit`: decodes every image as training does, and reports the images with issues."""

import contextlib
import hashlib
import logging
import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.inputs import bad_images, image_headers
from estimator_train.inputs.factory import make_source
from estimator_train.inputs.image_headers import FileIssue
from estimator_train.inputs.image_source import ImageNames, ImageSource
from estimator_train.inputs.source import BadExample
from estimator_train.reports import audit
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')


class _InspectedImage(NamedTuple):
  """The results of inspecting one image.

  Attributes:
    size: size in bytes.
    digest: hash of the contents; None if the file is empty or cannot be read.
    shape: (height, width, channels); None if the image cannot be decoded.
    issues: issues of the contents of the image, or the reason why it cannot be read.
  """
  size: int
  digest: Optional[bytes]
  shape: Optional[Tuple[int, int, int]]
  issues: Tuple[FileIssue, ...]


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the number of files, and the number of issues of each kind."""
  image_headers.load_pillow()
  dataset = registry.describe(settings)
  sources = {name: _make_auditable_source(split, dataset)
             for name, split in (('train', dataset.train), ('eval', dataset.test))
             if split is not None}
  RunDir(settings.model_dir).make()
  began = time.monotonic()
  splits = [audit.AuditedSplit(name, ImageNames(source), source.audited_class_indices(),
                               dataset.labels) for name, source in sources.items()]
  issues = _inspect_images(splits, list(sources.values()))
  count, secs = sum(map(len, sources.values())), time.monotonic() - began
  _LOG.info('audited %d images in %.1f s, %.0f images/sec', count, secs, count / secs)
  return audit.write_audit_report(settings[groups.Run], settings[groups.Data], splits, issues)


def _make_auditable_source(split: Any, dataset: DataSet) -> ImageSource:
  """Returns the source of a split; raises a UserError if it does not consist of encoded images."""
  source = make_source(dataset, split)
  if not isinstance(source, ImageSource):
    raise UserError('--mode=audit requires a data set of image files or of images in TFRecords',
                    '--dataset=' + dataset.name,
                    'give --dataset=image_folder or tfrecord with --train_pattern, or '
                    '--dataset=oct2017')
  return source


def _inspect_images(splits: Sequence[audit.AuditedSplit],
                    sources: Sequence[ImageSource]) -> List[audit.ImageIssue]:
  """Inspects all images, updates the statistics of the splits, and returns all issues."""
  count = sum(map(len, sources))
  digests = np.zeros((count, 2), np.uint64)
  has_content = np.zeros(count, bool)
  issues = [audit.ImageIssue(name, split.name, 'bad_record', '', reason)
            for split, source in zip(splits, sources) for name, reason in source.unreadable_parts()]
  source_of_split = dict(zip(splits, sources))
  with contextlib.closing(bad_images.Decoder()) as decoder:

    def inspect(position: int) -> _InspectedImage:
      split, index = audit.locate_file(splits, position)
      return _inspect_image(source_of_split[split], index, decoder)

    for position, inspected in enumerate(bad_images.map_examples(inspect, count, 'auditing')):
      split, index = audit.locate_file(splits, position)
      split.add_file(inspected.size, inspected.shape)
      issues.extend(split.make_issue(index, *issue) for issue in inspected.issues)
      if inspected.digest is not None:
        digests[position] = np.frombuffer(inspected.digest, np.uint64)
        has_content[position] = True
  issues.extend(audit.find_duplicates(splits, np.flatnonzero(has_content), digests[has_content]))
  return issues


def _inspect_image(source: ImageSource, index: int, decoder: bad_images.Decoder) -> _InspectedImage:
  """Reads and decodes an image, and finds its issues."""
  name = source.name_of(index)
  try:
    contents = source.read_content(index)
  except OSError as error:
    reason = error.strerror or str(error)
    if os.path.islink(name) and not os.path.exists(name):
      reason = 'a broken link'
    return _InspectedImage(0, None, None, (FileIssue('unreadable', reason),))
  except BadExample as error:
    return _InspectedImage(0, None, None, (FileIssue('bad_record', error.reason),))
  shape, decode_error = None, None
  try:
    shape = decoder.decode_shape(contents)
  except ValueError as error:
    decode_error = str(error)
  # Empty files have no digest, so that they are not reported as duplicates of each other.
  digest = hashlib.blake2b(contents, digest_size=16).digest() if contents else None
  return _InspectedImage(len(contents), digest, shape, tuple(image_headers.find_issues(
      os.fsencode(name), contents, decode_error)))
