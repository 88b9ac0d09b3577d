"""Reads the images to predict from image, idx and TFRecord files.

Images are decoded and resized as in an evaluation; see data/decoding.py.
"""

import collections
import functools
import itertools
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import (
  Any,
  Callable,
  Generator,
  Iterable,
  Iterator,
  List,
  NamedTuple,
  Sequence,
  Tuple,
  Union,
)

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


class ExampleOrError(NamedTuple):
  """An example to predict, or the reason why a file, the rest of a file, or a record is unreadable.

  Attributes:
    name: the path of the file. For a row, and for an image in an idx or TFRecord file, it is
      `PATH:INDEX`, with indices from 0. For an example in memory, it is the index.
    arrays_or_error: the arrays of one example for the inputs of the model (see row_inputs.py), or
      the reason why the example cannot be read. An image is a single array, float32
      [height, width, 1 or 3], from 0 to 255.
  """
  name: Union[bytes, int]
  arrays_or_error: Union[List[np.ndarray], str]


class _EncodedImage(NamedTuple):
  """An image to decode, whose name is that of its ExampleOrError."""
  name: bytes
  content: bytes


# A function that reads a file, or a record of a file. The examples of an idx file are read later,
# when they are iterated over.
_ReadFunction = Callable[[], Union[_EncodedImage, Iterable[ExampleOrError]]]
_MAX_DECODED_TOGETHER = 16


def find_files(patterns: Sequence[str]) -> Iterator[bytes]:
  """Returns the paths of the files that match the patterns, sorted for each pattern.

  If a pattern is a folder, its images of all formats match, also those that cannot be decoded. If
  the folder has no images, its TFRecord files match.

  Raises:
    UserError: no file matches a pattern, or a folder cannot be listed.
  """
  file_iterators: List[Iterator[bytes]] = []
  for pattern in patterns:
    files = file_pattern.iter_files(pattern, is_wanted=file_pattern.may_be_image)
    first_file = next(files, None)
    if first_file is None and os.path.isdir(pattern):
      files = filter(_has_records, file_pattern.iter_files(pattern, is_wanted=bool))
      first_file = next(files, None)
    if first_file is None:
      raise file_pattern.make_no_match_error('--input matches no file', '--input=' + pattern,
                                             pattern, 'DATA/**/*.jpeg')
    file_iterators += [iter([first_file]), files]
  return itertools.chain.from_iterable(file_iterators)


def _has_records(path: bytes) -> bool:
  try:
    return record_index.starts_with_record(path) or compressed_records.has_compressed_records(path)
  except OSError:
    return False


def read_batches(files: Iterator[bytes], image_key: str, image_shape: Tuple[int, int, int],
                 batch_size: int,
                 num_parallel_calls: int) -> Generator[List[ExampleOrError], None, None]:
  """Yields lists of examples, in the order of the files, and reads one list ahead of the caller.

  Args:
    files: the paths of image files, idx files and TFRecord files, whose format and compression
      are recognized by their content.
    batch_size: the number of examples per list; the last list may be shorter.
  """
  decoder = decoding.ImageFunction(
      lambda content: decoding.decode_and_resize(content, image_shape), tf.float32)
  read_functions = itertools.chain.from_iterable(
      _make_read_functions(path, image_key, image_shape) for path in files)
  examples = _read_examples(read_functions, decoder, batch_size, num_parallel_calls)
  try:
    while True:
      batch = list(itertools.islice(examples, batch_size))
      if not batch:
        return
      yield batch
  finally:
    examples.close()  # Ends the threads that use the decoder.
    decoder.close()


def _make_read_functions(path: bytes, image_key: str,
                         image_shape: Tuple[int, int, int]) -> Iterator[_ReadFunction]:
  """Yields a function per record of a TFRecord file, or one function for any other file."""
  try:
    index = (record_index.load_or_scan_index((path,)) if record_index.starts_with_record(path)
             else None)
    is_compressed = index is None and compressed_records.has_compressed_records(path)
  except OSError as error:
    yield functools.partial(_make_example, path, error)
    return
  if index is not None:
    reader = RecordReader(index)
    for record in range(index.num_records):
      yield functools.partial(
          _read_record, b'%s:%d' % (path, record),
          lambda record=record: next(iter(reader.read(np.array([record])))), image_key)
    for damage in index.damages:
      yield functools.partial(_make_example, b'%s:%d' % (path, damage.record), damage.reason)
  elif is_compressed:
    # The file is decompressed while the caller iterates over the functions.
    names = (b'%s:%d' % (path, record) for record in itertools.count())
    try:
      for read_content in compressed_records.iter_compressed_records(path):
        yield functools.partial(_read_record, next(names), read_content, image_key)
    except (OSError, ValueError, zlib.error) as error:
      yield functools.partial(_make_example, next(names), error)
  else:
    yield functools.partial(_read_image_file, path, image_shape)


def _read_examples(read_functions: Iterator[_ReadFunction], decoder: decoding.ImageFunction,
                   num_ahead: int, num_threads: int) -> Generator[ExampleOrError, None, None]:
  """Yields the examples in order. Threads read and decode up to `num_ahead` examples ahead."""
  def read_and_decode(group: List[_ReadFunction]) -> List[Iterable[ExampleOrError]]:
    results = [read() for read in group]
    decoded_images = iter(decoder.call_all(
        [result.content for result in results if isinstance(result, _EncodedImage)]))
    return [_make_example(result.name, next(decoded_images))
            if isinstance(result, _EncodedImage) else result for result in results]

  futures: Any = collections.deque()
  group_size = max(1, min(_MAX_DECODED_TOGETHER, num_ahead // num_threads))
  # The first groups have one image each, so that a few images are spread over all threads.
  group_sizes = itertools.chain(itertools.repeat(1, num_threads), itertools.repeat(group_size))
  groups = iter(lambda: list(itertools.islice(read_functions, next(group_sizes))), [])
  with ThreadPoolExecutor(num_threads) as threads:
    try:
      while True:
        for group in itertools.islice(groups, max(1, num_ahead // group_size) - len(futures)):
          futures.append(threads.submit(read_and_decode, group))
        if not futures:
          return
        yield from itertools.chain.from_iterable(futures.popleft().result())
    finally:
      for future in futures:
        future.cancel()


def _make_example(name: bytes,
                  pixels_or_error: Union[np.ndarray, str, Exception]) -> List[ExampleOrError]:
  """Returns a list with one item, because a function that reads a file returns an iterable."""
  return [ExampleOrError(
      name, [pixels_or_error] if isinstance(pixels_or_error, np.ndarray)
      else getattr(pixels_or_error, 'strerror', None) or str(pixels_or_error))]


def _read_record(name: bytes, read_content: Callable[[], bytes],
                 image_key: str) -> Union[_EncodedImage, List[ExampleOrError]]:
  try:
    features = image_records.parse_features(read_content())
    return _EncodedImage(name, image_records.extract_image(features, image_key))
  except (OSError, ValueError) as error:
    return _make_example(name, error)


def _read_image_file(
    path: bytes,
    image_shape: Tuple[int, int, int]) -> Union[_EncodedImage, Iterable[ExampleOrError]]:
  """Reads an image file, or begins to read an idx file."""
  try:
    with storage.open_regular_file(path) as file:
      if idx.is_idx_or_gzip(file.read(4)):
        return _read_idx_file(path, image_shape)
      file.seek(0)
      return _EncodedImage(path, file.read())
  except (OSError, ValueError) as error:
    return _make_example(path, error)


def _read_idx_file(path: bytes, image_shape: Tuple[int, int, int]) -> Iterator[ExampleOrError]:
  """Yields the images of an idx file and, if the file is damaged, an error."""
  try:
    for index, pixels in enumerate(idx.iter_images(path, *image_shape[:2])):
      yield ExampleOrError(path + b':%d' % index, [pixels.astype(np.float32)])
  except ValueError as error:
    yield from _make_example(path, error)
