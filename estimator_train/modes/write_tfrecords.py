"""`--mode=write_tfrecords`: writes the images of a data set to TFRecord files.

The order and the contents of the records depend only on the images and the flags.
"""

import hashlib
import json
import logging
import math
import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import bad_images, decoding, labels_file, opening
from estimator_train.data.bad_images import BadImage
from estimator_train.data.image_source import ImageSource
from estimator_train.errors import UserError, join_items
from estimator_train.run_dir import RunDir, make_folder
from estimator_train.settings import Settings
from estimator_train.system import json_values, record_framing, storage

_LOG = logging.getLogger('estimator_train')
_BYTES_PER_SHARD = 128 << 20  # If --num_shards is not given.
_PLAN_FILE = 'write_tfrecords.json'
_FORMAT_VERSION = 1
_PLAN = json_values.fields({'digest': json_values.text},
                           {'shards': json_values.mapping(json_values.text)})


class _Shard(NamedTuple):
  """A file to write.

  Attributes:
    indices: the indices of its images in the source, in the order of the records.
  """
  path: str
  indices: np.ndarray


def run(settings: Settings, run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Returns the result: the numbers of examples, shards and bytes per split."""
  folder = settings.export.output
  skipped: List[BadImage] = []
  spec, sources = opening.make_image_sources(settings, run_dir)
  make_folder(folder, 'output')
  if settings.input.on_bad_image == 'skip':
    sources, skipped = opening.skip_bad_images(sources, settings.input, folder)
  for source in sources.values():
    source.check_and_count()
  num_shards = {name: _count_shards(name, source, settings) for name, source in sources.items()}
  # All that determines the contents of the shards.
  key = json.dumps([
      _FORMAT_VERSION, {name: source.files_fingerprint() for name, source in sources.items()},
      list(spec.labels), num_shards, settings.optimizer.seed], sort_keys=True)
  plan = _Plan(folder, hashlib.md5(key.encode()).hexdigest())
  labels_file.write(folder, spec.labels)
  began, splits = time.monotonic(), {}
  for name, source in sources.items():
    shards = _plan_shards(folder, name, len(source), num_shards[name], settings.optimizer.seed)
    _write_shards(shards, source, spec.labels, plan)
    splits[name] = {'examples': len(source), 'shards': len(shards),
                    'bytes': sum(os.path.getsize(shard.path) for shard in shards)}
  secs = time.monotonic() - began
  count = sum(split['examples'] for split in splits.values())
  _LOG.info('wrote %d images to %s in %.1f s, %.0f images/sec', count, folder, secs, count / secs)
  result: Dict[str, Any] = {'mode': settings.run.mode, 'output': folder, 'splits': splits}
  if settings.input.on_bad_image == 'skip':
    result['skipped_images'] = [image._asdict() for image in skipped]
  return result


def _count_shards(name: str, source: ImageSource, settings: Settings) -> int:
  """Returns the number of files for a split.

  Raises:
    UserError: there are fewer training images than files.
  """
  if settings.export.num_shards is None:
    num_bytes = sum(map(os.path.getsize, filter(os.path.exists, source.files())))
    return min(len(source), max(1, math.ceil(num_bytes / _BYTES_PER_SHARD)))
  if name == 'eval':
    return min(settings.export.num_shards, len(source))
  if settings.export.num_shards > len(source):
    raise UserError('--num_shards must not exceed the number of images',
                    '--num_shards={} for {} training images'.format(
                        settings.export.num_shards, len(source)), 'give fewer shards')
  return int(settings.export.num_shards)


def _plan_shards(folder: str, name: str, num_images: int, num_shards: int,
                 seed: int) -> List[_Shard]:
  """Distributes shuffled images over shards whose sizes differ by at most one image.

  Args:
    name: the first part of their names, such as `train`.
  """
  order = np.random.RandomState(seed % 2 ** 32).permutation(num_images)
  return [_Shard(os.path.join(folder, '{}-{:05d}-of-{:05d}'.format(name, number, num_shards)), part)
          for number, part in enumerate(np.array_split(order, num_shards))]


class _Plan:
  """What a folder contains, in `write_tfrecords.json`.

  Args:
    digest: a digest of what determines their contents.

  Raises:
    UserError: the folder has shards of other images, class names, seeds or numbers of shards.
  """

  def __init__(self, folder: str, digest: str) -> None:
    self._path, self._digest = os.path.join(folder, _PLAN_FILE), digest
    self._written: Dict[str, str] = {}  # The MD5 digest of each complete shard, by its name.
    try:
      recorded = storage.load_json(self._path, _PLAN)
    except storage.DamagedFile as damage:
      raise UserError('a file in --output is damaged', '{} ({})'.format(self._path, damage.reason),
                      'remove the TFRecord files and this file, or give another folder') from damage
    if recorded is None:
      is_same = not any('-of-' in name for name in os.listdir(folder))
    else:
      is_same = recorded['digest'] == digest
      self._written.update(recorded.get('shards', {}))
    if not is_same:
      raise UserError('--output has TFRecord files of other images, classes, seeds or shards',
                      '--output=' + folder, 'remove these files, or give another folder')
    self._write()

  def has(self, shard: _Shard) -> bool:
    """Returns whether a shard has been written, and its content has not changed since then."""
    recorded = self._written.get(os.path.basename(shard.path))
    return recorded is not None and os.path.isfile(shard.path) and (
        storage.digest_file(shard.path) == recorded)

  def add(self, shard: _Shard, digest: str) -> None:
    """Records the MD5 digest of a shard that has been written."""
    self._written[os.path.basename(shard.path)] = digest
    self._write()

  def _write(self) -> None:
    storage.write_json(self._path, {'digest': self._digest, 'shards': self._written})


def _write_shards(shards: Sequence[_Shard], source: ImageSource,
                  class_names: Sequence[str], plan: _Plan) -> None:
  """Writes the shards that are not complete yet. A shard gets its name when it is complete.

  Raises:
    UserError: an image cannot be read or decoded.
  """
  missing = [shard for shard in shards if not plan.has(shard)]
  if not missing:
    return
  if len(missing) < len(shards):
    _LOG.info('keeping %d complete files of an earlier run', len(shards) - len(missing))
  damaged = [shard.path for shard in missing if os.path.exists(shard.path)]
  if damaged:
    _LOG.warning('writing %s again: not as an earlier run has written them', join_items(damaged))
  indices = np.concatenate([shard.indices for shard in missing])
  make_example = _make_example_function(source, class_names)
  examples = bad_images.map_examples(lambda position: make_example(int(indices[position])),
                                       len(indices), 'writing images')
  for shard in missing:
    digest = hashlib.md5()
    with storage.open_atomic(shard.path) as file:
      for _ in shard.indices:
        record = record_framing.frame(next(examples))
        file.write(record)
        digest.update(record)
    plan.add(shard, digest.hexdigest())


def _make_example_function(source: ImageSource,
                           class_names: Sequence[str]) -> Callable[[int], bytes]:
  """Returns a function that takes the index of an image, and returns a serialized example."""
  class_indices, shape_of = source.class_indices(), decoding.make_shape_function()

  def make_example(index: int) -> bytes:
    name = source.name_of(index)
    try:
      content = source.read_content(index)
      height, width, channels = map(int, shape_of.call(content))
    except (OSError, ValueError) as error:
      raise bad_images.undecodable_error(name, bad_images.reason_of(error)) from error
    class_index = int(class_indices[index])
    return _serialize({
        'image/encoded': content,
        'image/filename': os.path.basename(os.fsencode(name)),
        'image/class/text': class_names[class_index].encode('utf-8', 'surrogateescape'),
    }, {'image/class/label': class_index, 'image/height': height, 'image/width': width,
        'image/channels': channels})

  return make_example


def _serialize(contents: Dict[str, bytes], numbers: Dict[str, int]) -> bytes:
  """Returns a tf.train.Example with these features; equal features give equal bytes."""
  features: Dict[str, Any] = {
      key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
      for key, value in contents.items()}
  features.update({key: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                   for key, value in numbers.items()})
  example = tf.train.Example(features=tf.train.Features(feature=features))
  serialized: bytes = example.SerializeToString(deterministic=True)
  return serialized
