"""`--mode=write_tfrecords`: writes the images of a data set to TFRecord files."""

import logging
import math
import os
import time
from typing import Any, Dict, List

from estimator_train.datasets import registry
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.files import atomic
from estimator_train.inputs import factory, record_writer
from estimator_train.inputs.image_source import ImageSource
from estimator_train.inputs.source import BadImage
from estimator_train.run_dir.run_files import LABELS_FILE, make_folder
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')
_BYTES_PER_SHARD = 128 << 20  # If --num_shards is not given.


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the numbers of examples, shards and bytes per split."""
  dataset, folder = registry.describe(settings), settings.output
  skipped: List[BadImage] = []
  make_folder(folder, 'output')
  if settings.on_bad_image == 'skip':
    dataset, skipped = factory.skip_bad_examples(dataset, settings[groups.Input], folder)
  sources = _make_sources(dataset)
  num_shards = {name: _count_shards(name, source, settings) for name, source in sources.items()}
  record_writer.check_plan(folder, sources, dataset.labels, num_shards, settings.seed)
  atomic.write_text(os.path.join(folder, LABELS_FILE), ''.join(
      '{}:{}\n'.format(index, name) for index, name in enumerate(dataset.labels)))
  began, splits = time.monotonic(), {}
  for name, source in sources.items():
    shards = record_writer.plan_shards(folder, name, len(source), num_shards[name], settings.seed)
    record_writer.write_shards(shards, source, dataset.labels)
    splits[name] = {'examples': len(source), 'shards': len(shards),
                    'bytes': sum(os.path.getsize(shard.path) for shard in shards)}
  secs = time.monotonic() - began
  count = sum(split['examples'] for split in splits.values())
  _LOG.info('wrote %d images to %s in %.1f s, %.0f images/sec', count, folder, secs, count / secs)
  return {'mode': settings.mode, 'output': folder, 'splits': splits,
          **_skipped_images(settings, skipped)}


def _make_sources(dataset: DataSet) -> Dict[str, ImageSource]:
  """Returns the sources of the splits, by the first part of the names of their files.

  Raises:
    UserError: the data set does not consist of images in files.
  """
  sources = {}
  for name, split in (('train', dataset.train), ('eval', dataset.test)):
    if split is not None:
      source = factory.make_source(dataset, split)
      if not isinstance(source, ImageSource):
        raise UserError('--mode=write_tfrecords requires a data set of image files',
                        '--dataset=' + dataset.name,
                        'give --dataset=image_folder with --train_pattern')
      source.check_and_count()
      sources[name] = source
  return sources


def _count_shards(name: str, source: ImageSource, settings: Settings) -> int:
  """Returns the number of files for a split.

  Raises:
    UserError: there are fewer training images than files.
  """
  if settings.num_shards is None:
    num_bytes = sum(map(os.path.getsize, filter(os.path.exists, source.files())))
    return min(len(source), max(1, math.ceil(num_bytes / _BYTES_PER_SHARD)))
  if name == 'eval':
    return min(settings.num_shards, len(source))
  if settings.num_shards > len(source):
    raise UserError('--num_shards must not exceed the number of images',
                    '--num_shards={} for {} training images'.format(
                        settings.num_shards, len(source)), 'give fewer shards')
  return int(settings.num_shards)


def _skipped_images(settings: Settings, skipped: List[BadImage]) -> Dict[str, Any]:
  if settings.on_bad_image != 'skip':
    return {}
  return {'skipped_images': [image._asdict() for image in skipped]}
