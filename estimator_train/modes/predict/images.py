"""Reads the images to predict from image, idx and TFRecord files.

Images are decoded and resized as in an evaluation; see data/decoding.py.
"""

import collections
import functools
import itertools
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Generator, Iterable, Iterator, List, NamedTuple, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import (
  compressed_records,
  decoding,
  file_pattern,
  idx,
  image_records,
  record_index,
)
from estimator_train.data.record_index import RecordReader
from estimator_train.system import storage


class Entry(NamedTuple):
  """An example to predict, or a file, the rest of a file, or a record that cannot be read.

  Attributes:
    name: the path of the file. For a row, and for an image in an idx or TFRecord file, it is
      `PATH:INDEX`, with indices from 0.
    values: the arrays of one example for the inputs of the model; see row_inputs.py. An image is a
      single array, float32 [height, width, 1 or 3], from 0 to 255. If the example cannot be read,
      `values` is the reason why.
  """
  name: bytes
  values: Union[List[np.ndarray], str]


class _Image(NamedTuple):
  """The name of an entry, and the content of an encoded image."""
  name: bytes
  content: bytes


# Reads a file, or a record of a file. An idx file is read when its entries are iterated over.
_ReadFunction = Callable[[], Union[_Image, Iterable[Entry]]]
_MAX_DECODED_TOGETHER = 16


def find_files(patterns: str) -> Iterator[bytes]:
  """Returns the paths of the files that match `--input`, sorted for each of its patterns.

  If a pattern is a folder, its images of all formats match, also those that cannot be decoded. If
  the folder has no images, its TFRecord files match.

  Raises:
    UserError: no file matches a pattern, or a folder cannot be listed.
  """
  found: List[Iterator[bytes]] = []
  for pattern in file_pattern.split_patterns(patterns):
    files = file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_image)
    first = next(files, None)
    if first is None and os.path.isdir(pattern):
      files = filter(_has_records, file_pattern.iter_files(pattern, is_wanted=bool))
      first = next(files, None)
    if first is None:
      raise file_pattern.make_no_match_error('--input matches no file', '--input=' + pattern,
                                             pattern, 'DATA/**/*.jpeg')
    found += [iter([first]), files]
  return itertools.chain.from_iterable(found)


def _has_records(path: bytes) -> bool:
  try:
    return record_index.starts_with_record(path) or compressed_records.has_compressed_records(path)
  except OSError:
    return False


def read_batches(files: Iterator[bytes], image_key: str, image_shape: Tuple[int, int, int],
                 batch_size: int, num_parallel_calls: int) -> Generator[List[Entry], None, None]:
  """Yields lists of entries, in the order of the files, and reads one list ahead of the caller.

  Args:
    files: the paths of image files, idx files and TFRecord files, whose format and compression
      are recognized by their content.
    batch_size: the number of entries per list; the last list may be shorter.
    num_parallel_calls: the number of images that are decoded in parallel.
  """
  decoder = decoding.ImageFunction(
      lambda content: decoding.decode_and_resize(content, image_shape), tf.float32)
  reads = itertools.chain.from_iterable(
      _iter_reads(path, image_key, image_shape) for path in files)
  entries = _read_entries(reads, decoder, batch_size, num_parallel_calls)
  try:
    while True:
      batch = list(itertools.islice(entries, batch_size))
      if not batch:
        return
      yield batch
  finally:
    entries.close()  # Ends the threads that use the decoder.
    decoder.close()


def _iter_reads(path: bytes, image_key: str,
                image_shape: Tuple[int, int, int]) -> Iterator[_ReadFunction]:
  """Yields a function per record of a TFRecord file, or one function for any other file."""
  try:
    index = (record_index.load_or_scan_index((path,)) if record_index.starts_with_record(path)
             else None)
    is_compressed = index is None and compressed_records.has_compressed_records(path)
  except OSError as error:
    yield functools.partial(_make_entries, path, error)
    return
  if index is not None:
    reader = RecordReader(index)
    for record in range(index.num_records):
      yield functools.partial(
          _read_record, b'%s:%d' % (path, record),
          lambda record=record: next(iter(reader.read(np.array([record])))), image_key)
    for damage in index.damages:
      yield functools.partial(_make_entries, b'%s:%d' % (path, damage.record), damage.reason)
  elif is_compressed:
    yield from _iter_compressed_reads(path, image_key)
  else:
    yield functools.partial(_read_image_file, path, image_shape)


def _iter_compressed_reads(path: bytes, image_key: str) -> Iterator[_ReadFunction]:
  """Yields a function per record of a compressed file, and decompresses the file step by step."""
  names = (b'%s:%d' % (path, record) for record in itertools.count())
  try:
    for read in compressed_records.iter_compressed_records(path):
      yield functools.partial(_read_record, next(names), read, image_key)
  except (OSError, ValueError, zlib.error) as error:
    yield functools.partial(_make_entries, next(names), error)


def _read_entries(reads: Iterator[_ReadFunction], decoder: decoding.ImageFunction, num_ahead: int,
                  num_threads: int) -> Generator[Entry, None, None]:
  """Yields the entries in order. Threads read and decode up to `num_ahead` entries ahead."""
  def read_group(functions: List[_ReadFunction]) -> List[Iterable[Entry]]:
    """Calls the functions, and decodes the images that they return."""
    read_results = [read() for read in functions]
    decoded = iter(decoder.call_all(
        [each.content for each in read_results if isinstance(each, _Image)]))
    return [_make_entries(each.name, next(decoded)) if isinstance(each, _Image) else each
            for each in read_results]

  futures: Any = collections.deque()
  size = max(1, min(_MAX_DECODED_TOGETHER, num_ahead // num_threads))
  # The first groups have one image each, so that a few images are spread over all threads.
  group_sizes = itertools.chain(itertools.repeat(1, num_threads), itertools.repeat(size))
  groups = iter(lambda: list(itertools.islice(reads, next(group_sizes))), [])
  with ThreadPoolExecutor(num_threads) as threads:
    try:
      while True:
        for group in itertools.islice(groups, max(1, num_ahead // size) - len(futures)):
          futures.append(threads.submit(read_group, group))
        if not futures:
          return
        yield from itertools.chain.from_iterable(futures.popleft().result())
    finally:
      for future in futures:
        future.cancel()


def _make_entries(name: bytes, pixels: Union[np.ndarray, str, Exception]) -> List[Entry]:
  """Returns a list with the entry of an image, or of the reason why there are no pixels."""
  return [Entry(name, [pixels] if isinstance(pixels, np.ndarray)
                else getattr(pixels, 'strerror', None) or str(pixels))]


def _read_record(name: bytes, read: Callable[[], bytes],
                 image_key: str) -> Union[_Image, List[Entry]]:
  try:
    features = image_records.parse_features(read())
    return _Image(name, image_records.extract_image(features, image_key))
  except (OSError, ValueError) as error:
    return _make_entries(name, error)


def _read_image_file(path: bytes,
                     image_shape: Tuple[int, int, int]) -> Union[_Image, Iterable[Entry]]:
  """Reads an image file, or begins to read an idx file."""
  try:
    with storage.open_regular_file(path) as file:
      if idx.is_idx_or_gzip(file.read(4)):
        return _read_idx_file(path, image_shape)
      file.seek(0)
      return _Image(path, file.read())
  except (OSError, ValueError) as error:
    return _make_entries(path, error)


def _read_idx_file(path: bytes, image_shape: Tuple[int, int, int]) -> Iterator[Entry]:
  """Yields an entry per image of an idx file. If it is damaged, the last entry has the reason."""
  try:
    for index, pixels in enumerate(idx.iter_images(path, *image_shape[:2])):
      yield Entry(path + b':%d' % index, [pixels.astype(np.float32)])
  except ValueError as error:
    yield from _make_entries(path, error)
