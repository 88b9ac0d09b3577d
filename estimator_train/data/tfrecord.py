"""Describes data sets of images in TFRecord files, and finds the files of any TFRecord data set.

The records of a compressed file can be read only one after the other, from the beginning of the
file. Such a file is decompressed once into a folder, and the copy is read in any order.
"""

import contextlib
import functools
import hashlib
import logging
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterator, List

import numpy as np

from estimator_train.data import (
  DataSet,
  ImageRecordSplit,
  file_pattern,
  image_folder,
  labels_file,
  records,
)
from estimator_train.data.idx import GZIP_SIGNATURE
from estimator_train.data.records import PositionedFile, RecordIndex, is_remote
from estimator_train.errors import UserError, first_line, printable
from estimator_train.run_dir import LABELS_FILE, RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import CACHES
from estimator_train.system import record_framing, storage
from estimator_train.system.machine import available_cores

_LOG = logging.getLogger('estimator_train')
_WINDOW_BITS = 32 + zlib.MAX_WBITS  # Adding 32 detects the format, gzip or zlib.
# Small, because the rest of a block is copied at the end of each gzip member.
_READ_BYTES = 1 << 16
_COPY_VERSION = 2  # Version 1 lacked the gzip members after the first.


def describe(settings: Settings) -> DataSet:
  """Describes the records of `--train_pattern` and `--eval_pattern` that the mode reads.

  Raises:
    UserError: a pattern is not given or matches no file, a file is damaged, or the class names are
      unknown.
  """
  fraction = settings.data.validation_fraction
  reads_train, reads_eval = image_folder.splits_to_read(settings,
                                                        settings.data.eval_pattern or fraction)
  # labels.txt is next to the files, so a wrong pattern is reported first.
  train = _make_split('train_pattern', settings) if reads_train or fraction else None
  test = _make_split('eval_pattern', settings) if reads_eval and not fraction else None
  dataset = describe_classes(settings)
  train, test = (split and labels_file.add_labels(
      split, pattern or '', dataset.labels, settings.data.train_pattern, bool(settings.data.labels))
                 for split, pattern in ((train, settings.data.train_pattern),
                                        (test, settings.data.eval_pattern)))
  if train is not None and settings.data.label_offset not in (0, train.label_offset):
    raise UserError('--label_offset contradicts {}'.format(LABELS_FILE),
                    '--label_offset={}; the first label next to --train_pattern={} is {}'.format(
                        settings.data.label_offset, settings.data.train_pattern,
                        -train.label_offset), 'omit --label_offset, or correct ' + LABELS_FILE)
  return dataset._replace(train=train, test=test)


def describe_classes(settings: Settings) -> DataSet:
  """Describes the data set without reading records.

  Raises:
    UserError: the class names are unknown.
  """
  data = settings.data
  recorded = RunDir(settings.run.model_dir).class_names() if settings.run.model_dir else ()
  # The labels of other test files are translated to the classes of the trained model.
  class_names = data.labels or (() if settings.run.trains else recorded) or labels_file.read(
      data.train_pattern, data.label_offset).names or labels_file.read(
          data.eval_pattern, data.label_offset).names or recorded
  if len(class_names) < 2:
    raise UserError('the names of at least two classes are required',
                    '--dataset=tfrecord without --labels and without a {} next to the files'.format(
                        LABELS_FILE), 'give --labels=A,B, or write {}'.format(LABELS_FILE))
  height, width, channels = (*(data.image_size or image_folder.DEFAULT_IMAGE_SIZE), 3)[:3]
  return DataSet(data.dataset, class_names, (height, width, channels))


def load_index(pattern: str, given: str, compression: str, settings: Settings) -> RecordIndex:
  """Finds the files that match a pattern, and the positions of their records.

  Args:
    pattern: the pattern of the files, or a URL pattern such as `gs://bucket/train-*`.
    given: the text that gives the pattern, for messages, such as `--train_pattern=DATA/*`.
    compression: a value of `--compression`.
    settings: the settings of the run. Decompressed files are written to the folder of `--cache`,
      or to `--model_dir`.

  Raises:
    UserError: no file matches, a file cannot be read or has another format, or there is no space
      for the decompressed files.
  """
  files = _find_files(pattern, given)
  try:
    compressed = [path for path in files if _is_compressed(path, compression)]
    copies = _decompress(compressed, settings) if compressed else {}
    index = records.load_index(tuple(copies.get(path, path) for path in files))
  except OSError as error:
    raise UserError('a TFRecord file cannot be read',
                    '{} ({})'.format(given, error), 'correct the pattern or the file') from error
  index = index._replace(names=tuple(files))
  damaged = {damage.file_index for damage in index.damages}
  for file_index, (name, count) in enumerate(zip(files, np.diff(index.first_records))):
    if not count and file_index not in damaged:
      _LOG.warning('%s has no records', printable(os.fsdecode(name)))
  return index


def _make_split(pattern_flag: str, settings: Settings) -> ImageRecordSplit:
  example = 'DATA/{}-*-of-*'.format('train' if pattern_flag == 'train_pattern' else 'validation')
  pattern = image_folder.require_pattern(pattern_flag, getattr(settings.data, pattern_flag),
                                         example)
  index = load_index(pattern, '--{}={}'.format(pattern_flag, pattern), settings.data.compression,
                     settings)
  return ImageRecordSplit(index, settings.data.image_key, settings.data.label_key,
                          settings.data.label_offset)


def _find_files(patterns: str, given: str) -> List[bytes]:
  """Returns the files that match patterns; raises a UserError if there are none for a pattern."""
  files: Dict[bytes, None] = {}  # A file that matches several patterns is read once.
  for pattern in file_pattern.split_patterns(patterns):
    found = (_find_remote_files(pattern) if is_remote(os.fsencode(pattern)) else
             list(file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_records)))
    if not found:
      raise file_pattern.no_match_error('a pattern matches no file', given, pattern,
                                        'DATA/train-*-of-*')
    file_pattern.check_no_archives(given, found)
    files.update(dict.fromkeys(found))
  file_pattern.check_shards(given, list(files))
  return list(files)


def _find_remote_files(pattern: str) -> List[bytes]:
  import tensorflow.compat.v1 as tf
  try:
    return sorted(os.fsencode(path) for path in tf.gfile.Glob(pattern))
  except tf.errors.OpError as error:
    raise UserError('the files cannot be listed', '{} ({})'.format(
        pattern, first_line(error)), 'correct the pattern') from error


def _is_compressed(path: bytes, compression: str) -> bool:
  """Returns whether a file is compressed, by `--compression` or by its first bytes.

  Raises:
    UserError: the file is not a TFRecord file.
  """
  with contextlib.closing(PositionedFile(path)) as file:
    header = file.read(0, record_framing.HEADER_BYTES)
  if compression != 'auto':
    return compression != 'none'
  if not header or record_framing.is_header(header):
    return False
  if _starts_compressed(header):
    return True
  raise UserError('a file does not start with a TFRecord', printable(os.fsdecode(path)),
                  'exclude this file from the pattern, or write it again')


def _starts_compressed(header: bytes) -> bool:
  """Returns whether the first bytes of a file are those of a gzip or zlib file."""
  # The first byte of zlib has the number of the method, 8; the first two are a multiple of 31.
  return header.startswith(GZIP_SIGNATURE) or (
      len(header) > 1 and header[0] & 0x0f == 8 and int.from_bytes(header[:2], 'big') % 31 == 0)


def has_compressed_records(path: bytes) -> bool:
  """Returns whether a file has compressed records; raises an OSError if it cannot be read."""
  with contextlib.closing(PositionedFile(path)) as file:
    if not _starts_compressed(file.read(0, record_framing.HEADER_BYTES)):
      return False
  try:
    return record_framing.is_header(_make_read(path)(record_framing.HEADER_BYTES))
  except zlib.error:
    return False


def iter_compressed_records(path: bytes) -> Iterator[Callable[[], bytes]]:
  """Yields, for each record of a compressed file, a function that checks and returns its data.

  Raises:
    OSError, zlib.error, DamagedRecord: the file cannot be read further. The functions raise the
      DamagedRecord of their record.
  """
  read = _make_read(path)
  for header in iter(lambda: read(record_framing.HEADER_BYTES), b''):
    length = record_framing.parse_header(header)
    content = read(length + record_framing.FOOTER_BYTES)
    yield functools.partial(record_framing.parse_data, content, length)


def _make_read(path: bytes) -> Callable[[int], bytes]:
  """Returns a function that reads the next bytes of a compressed file, fewer at its end."""
  blocks, buffer = _iter_decompressed(path), bytearray()

  def read(count: int) -> bytes:
    while len(buffer) < count:
      block = next(blocks, None)
      if block is None:
        break
      buffer.extend(block)
    data = bytes(buffer[:count])
    del buffer[:count]
    return data

  return read


def _decompress(compressed: List[bytes], settings: Settings) -> Dict[bytes, bytes]:
  """Returns the paths of decompressed copies, by the path of the compressed file.

  Args:
    compressed: the paths of the files.
    settings: determine the folder of the copies.

  Raises:
    UserError: there is no folder for the copies, or a file is damaged.
  """
  folder = _make_folder(compressed[0], settings)
  copies = {path: _copy_path(folder, path) for path in compressed}
  missing = [path for path, copy in copies.items() if not os.path.exists(copy)]
  if missing:
    _LOG.info('decompressing %d TFRecord files into %s', len(missing), folder)
  with ThreadPoolExecutor(available_cores()) as threads:
    list(threads.map(lambda path: _decompress_file(path, copies[path]), missing))
  return copies


def _make_folder(compressed_file: bytes, settings: Settings) -> str:
  """Makes and returns the folder for decompressed files."""
  if settings.input.cache not in CACHES:  # The path of a folder.
    folder = settings.input.cache
  elif settings.run.model_dir:
    folder = os.path.join(settings.run.model_dir, 'decompressed')
  else:
    raise UserError('compressed TFRecord files are decompressed into a folder',
                    '{} without --model_dir'.format(printable(os.fsdecode(compressed_file))),
                    'give --model_dir, or --cache=FOLDER')
  os.makedirs(folder, exist_ok=True)
  return folder


def _copy_path(folder: str, path: bytes) -> bytes:
  """Returns the path of the decompressed copy; it changes if the file changes."""
  key = '{} {}'.format(_COPY_VERSION, storage.fingerprint_files([path]))
  digest = hashlib.md5(key.encode()).hexdigest()
  return os.path.join(os.fsencode(folder), os.path.basename(path) + b'-' + digest.encode())


def _decompress_file(source_path: bytes, copy_path: bytes) -> None:
  """Writes the decompressed copy of a file; raises a UserError if the file is damaged."""
  with storage.open_atomic(os.fsdecode(copy_path)) as copy:
    try:
      for data in _iter_decompressed(source_path):
        copy.write(data)
    except zlib.error as error:
      raise UserError('a compressed TFRecord file is damaged',
                      '{} ({})'.format(printable(os.fsdecode(source_path)), error),
                      'write the file again, or correct --compression') from error


def _iter_decompressed(path: bytes) -> Iterator[bytes]:
  """Yields the decompressed content of a file, block by block.

  As by gzip, concatenated streams are read as one, and zeros may follow.

  Raises:
    zlib.error: the file is damaged.
  """
  offset, block, decompressor = 0, b'', zlib.decompressobj(_WINDOW_BITS)
  with contextlib.closing(PositionedFile(path)) as file:
    while True:
      if not block:
        block = file.read(offset, _READ_BYTES)
        offset += len(block)
        if not block:
          break
      if decompressor.eof:
        block = block.lstrip(b'\0')
        if not block:
          continue
        decompressor = zlib.decompressobj(_WINDOW_BITS)
      yield decompressor.decompress(block)
      block = decompressor.unused_data
  if not decompressor.eof:
    raise zlib.error('truncated')
