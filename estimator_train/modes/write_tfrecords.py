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
from estimator_train.settings import Settings, to_training_arguments
from estimator_train.settings.proposals import make_command
from estimator_train.system import json_values, record_framing, storage
from estimator_train.system.formatting import (
  format_bytes,
  format_count,
  format_quantity,
  format_secs,
)
from estimator_train.system.summary import log_summary

_LOG = logging.getLogger('estimator_train')
_DEFAULT_BYTES_PER_SHARD = 128 << 20  # The approximate size without --num_shards.
_MANIFEST_FILE = 'write_tfrecords.json'
_FORMAT_VERSION = 1
_MANIFEST_CHECK = json_values.fields({'digest': json_values.text},
                                     {'shards': json_values.mapping(json_values.text)})


class _Shard(NamedTuple):
  """A file to write.

  Attributes:
    image_indices: for each record, the index of its image in the source.
  """
  path: str
  image_indices: np.ndarray


def run(settings: Settings, run_dir: Optional[RunDir]) -> Dict[str, Any]:
  """Returns the result of the mode: the numbers of examples, shards and bytes per split."""
  folder = settings.export.output
  skipped: List[BadImage] = []
  spec, sources = opening.make_image_sources(settings, run_dir)
  make_folder(folder, 'output')
  if settings.input.on_bad_image == 'skip':
    sources, skipped = opening.exclude_bad_images(sources, settings.input, folder)
  for source in sources.values():
    source.check_and_count_examples()
  num_shards = {split_name: _choose_num_shards(split_name, source, settings)
                for split_name, source in sources.items()}
  # All values on which the contents of the shards depend.
  digested_text = json.dumps([
      _FORMAT_VERSION,
      {split_name: source.files_fingerprint() for split_name, source in sources.items()},
      list(spec.labels), num_shards, settings.optimizer.seed], sort_keys=True)
  manifest = _Manifest(folder, hashlib.md5(digested_text.encode()).hexdigest())
  labels_file.write_class_names(folder, spec.labels)
  start_time, splits = time.monotonic(), {}
  for split_name, source in sources.items():
    shards = _plan_shards(folder, split_name, len(source), num_shards[split_name],
                          settings.optimizer.seed)
    _write_shards(shards, source, spec.labels, manifest)
    splits[split_name] = {'examples': len(source), 'shards': len(shards),
                          'bytes': sum(os.path.getsize(shard.path) for shard in shards)}
  secs = time.monotonic() - start_time
  num_images = sum(split['examples'] for split in splits.values())
  log_summary('wrote {} in {}, {}'.format(
      format_count(num_images, 'image'), format_secs(secs),
      format_quantity(num_images / secs, 'images/sec')), [
          ('records', folder),
          *((name, '{} in {}, {}'.format(
              format_count(split['examples'], 'image'), format_count(split['shards'], 'file'),
              format_bytes(split['bytes']))) for name, split in splits.items()),
          ('skipped', format_count(len(skipped), 'bad image') if skipped else None)],
              make_command(*_make_training_arguments(settings, folder, splits)))
  result: Dict[str, Any] = {'mode': settings.run.mode, 'output': folder, 'splits': splits}
  if settings.input.on_bad_image == 'skip':
    result['skipped_images'] = [image._asdict() for image in skipped]
  return result


def _make_training_arguments(settings: Settings, folder: str,
                             splits: Dict[str, Any]) -> List[str]:
  """Returns arguments for training on the records."""
  patterns = {name + '_pattern': os.path.join(folder, name + '-*') if name in splits else None
              for name in ('train', 'eval')}
  return to_training_arguments(
      settings, dataset='tfrecord', data_dir=None, labels=(), **patterns)


def _choose_num_shards(split_name: str, source: ImageSource, settings: Settings) -> int:
  """Returns the number of shards; raises a UserError if it exceeds that of the training images."""
  if settings.export.num_shards is None:
    num_bytes = sum(map(os.path.getsize, filter(os.path.exists, source.list_files())))
    return min(len(source), max(1, math.ceil(num_bytes / _DEFAULT_BYTES_PER_SHARD)))
  if split_name == 'eval':
    return min(settings.export.num_shards, len(source))
  if settings.export.num_shards > len(source):
    raise UserError('--num_shards must not exceed the number of images',
                    '--num_shards={} for {} training images'.format(
                        settings.export.num_shards, len(source)), 'give fewer shards')
  return int(settings.export.num_shards)


def _plan_shards(folder: str, split_name: str, num_images: int, num_shards: int,
                 seed: int) -> List[_Shard]:
  """Shuffles the images of a split, and assigns an almost equal number of them to each shard."""
  order = np.random.RandomState(seed % 2 ** 32).permutation(num_images)
  return [_Shard(os.path.join(folder, '{}-{:05d}-of-{:05d}'.format(split_name, number, num_shards)),
                 image_indices)
          for number, image_indices in enumerate(np.array_split(order, num_shards))]


class _Manifest:
  """Records in `write_tfrecords.json` which shards of a folder are complete.

  Args:
    input_digest: the digest of all values on which the contents of the shards depend.

  Raises:
    UserError: the folder has shards with another input digest.
  """

  def __init__(self, folder: str, input_digest: str) -> None:
    self._path, self._input_digest = os.path.join(folder, _MANIFEST_FILE), input_digest
    self._shard_digests: Dict[str, str] = {}  # Of each complete shard, by its name.
    try:
      recorded = storage.load_json(self._path, _MANIFEST_CHECK)
    except storage.DamagedFile as damage:
      raise UserError('a file in --output is damaged', '{} ({})'.format(self._path, damage.reason),
                      'remove the TFRecord files and this file, or give another folder') from damage
    if recorded is None:
      can_continue = not any('-of-' in name for name in os.listdir(folder))
    else:
      can_continue = recorded['digest'] == input_digest
      self._shard_digests.update(recorded.get('shards', {}))
    if not can_continue:
      raise UserError('--output must not have TFRecord files of other images, class names, --seed '
                      'or --num_shards', '--output=' + folder,
                      'remove these files, or give another folder')
    self._write()

  def has_unchanged(self, shard: _Shard) -> bool:
    """Returns whether a shard is complete, and its file has not changed since it was recorded."""
    recorded_digest = self._shard_digests.get(os.path.basename(shard.path))
    return recorded_digest is not None and os.path.isfile(shard.path) and (
        storage.digest_file(shard.path) == recorded_digest)

  def record_complete(self, shard: _Shard, digest: str) -> None:
    self._shard_digests[os.path.basename(shard.path)] = digest
    self._write()

  def _write(self) -> None:
    storage.write_json(self._path, {'digest': self._input_digest, 'shards': self._shard_digests})


def _write_shards(shards: Sequence[_Shard], source: ImageSource,
                  class_names: Sequence[str], manifest: _Manifest) -> None:
  """Writes the shards that are missing or changed. A file has its name only when it is complete.

  Raises:
    UserError: an image cannot be read or decoded.
  """
  shards_to_write = [shard for shard in shards if not manifest.has_unchanged(shard)]
  if not shards_to_write:
    return
  if len(shards_to_write) < len(shards):
    _LOG.info('keeping %d complete files of an earlier run', len(shards) - len(shards_to_write))
  changed_paths = [shard.path for shard in shards_to_write if os.path.exists(shard.path)]
  if changed_paths:
    _LOG.warning('files of --output differ from their records in %s: %s: writing them again',
                 _MANIFEST_FILE, join_items(changed_paths))
  image_indices = np.concatenate([shard.image_indices for shard in shards_to_write])
  make_example = _make_example_function(source, class_names)
  examples = bad_images.map_in_parallel(lambda position: make_example(int(image_indices[position])),
                                     len(image_indices), 'writing images')
  for shard in shards_to_write:
    digest = hashlib.md5()
    with storage.open_atomic(shard.path) as file:
      for _ in shard.image_indices:
        record = record_framing.frame_record(next(examples))
        file.write(record)
        digest.update(record)
    manifest.record_complete(shard, digest.hexdigest())


def _make_example_function(source: ImageSource,
                           class_names: Sequence[str]) -> Callable[[int], bytes]:
  """Returns a function that returns the serialized example of the image at an index."""
  class_indices, read_shape = source.read_class_indices(), decoding.make_shape_function()

  def make_example(index: int) -> bytes:
    name = source.image_name(index)
    try:
      content = source.read_content(index)
      height, width, channels = map(int, read_shape.call(content))
    except (OSError, ValueError) as error:
      raise bad_images.make_undecodable_error(name, bad_images.error_reason(error)) from error
    class_index = int(class_indices[index])
    return _serialize({
        'image/encoded': content,
        'image/filename': os.path.basename(os.fsencode(name)),
        'image/class/text': class_names[class_index].encode('utf-8', 'surrogateescape'),
    }, {'image/class/label': class_index, 'image/height': height, 'image/width': width,
        'image/channels': channels})

  return make_example


def _serialize(byte_features: Dict[str, bytes], int_features: Dict[str, int]) -> bytes:
  """Serializes a tf.train.Example with these features; equal features give equal bytes."""
  example = tf.train.Example(features=tf.train.Features(feature={
      **{key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
         for key, value in byte_features.items()},
      **{key: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
         for key, value in int_features.items()}}))
  serialized: bytes = example.SerializeToString(deterministic=True)
  return serialized
