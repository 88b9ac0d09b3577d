"""Computes digests that identify the examples of a data set independently of its folder.

A digest of many examples covers the names, sizes and class indices of all examples, but only the
content of a sample.
"""

import contextlib
import hashlib
import os
from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data.order import evenly_spaced_indices
from estimator_train.data.record_index import FOOTER_BYTES, PositionedFile, RecordIndex, is_remote
from estimator_train.distribution import devices
from estimator_train.system import storage

# The maximum numbers of examples in a sample. Only the last bytes of an image file are hashed. The
# last bytes of different JPEG or PNG files differ.
_MAX_IMAGES, _MAX_IMAGE_BYTES = 1024, 1 << 16
_MAX_ARRAYS, _MAX_CHECKSUMS, _MAX_REMOTE_CHECKSUMS = 4096, 1 << 14, 16
_NUM_FIRST_EXAMPLES = 64


def digest_image_files(files: Sequence[bytes], class_indices: np.ndarray) -> str:
  """Returns a digest of image files and their class indices.

  It depends neither on the folders nor on the order of the files.
  """
  digest = hashlib.md5()
  images = sorted((os.path.basename(path), int(class_index), _file_size(path), path)
                  for path, class_index in zip(files, class_indices))
  for name, class_index, size, _ in images:
    digest.update(b'%s\0%d\0%d\0' % (name, class_index, size))
  for index in evenly_spaced_indices(len(images), _MAX_IMAGES):
    # An error is reported when the image is evaluated.
    with contextlib.suppress(OSError), storage.open_regular_file(images[index][-1]) as file:
      file.seek(max(os.fstat(file.fileno()).st_size - _MAX_IMAGE_BYTES, 0))
      digest.update(file.read())
  return digest.hexdigest()


def digest_records(index: RecordIndex, record_indices: Optional[np.ndarray] = None) -> str:
  """Returns a digest of the lengths of records, and of the stored checksums of a sample of them.

  Args:
    record_indices: the indices of the records of the data set, int64 [n]; None for all records.

  Raises:
    OSError: a file cannot be read.
  """
  used_indices = np.arange(index.num_records) if record_indices is None else record_indices
  digest = hashlib.md5(index.lengths[used_indices].astype(np.int64).tobytes())
  # The sample of remote records is small, because reading a remote checksum takes as long as
  # reading the complete record.
  sample = used_indices[evenly_spaced_indices(len(used_indices), _MAX_REMOTE_CHECKSUMS if any(
      map(is_remote, index.files)) else _MAX_CHECKSUMS)]
  ends = (index.compute_offsets() + index.lengths)[sample]
  file_indices = np.searchsorted(index.first_records, sample, 'right') - 1
  for file_index in np.unique(file_indices):
    with contextlib.closing(PositionedFile(index.files[file_index])) as file:
      for end in ends[file_indices == file_index].tolist():
        digest.update(file.read(end, FOOTER_BYTES))
  return digest.hexdigest()


def digest_arrays(examples: np.ndarray, class_indices: np.ndarray) -> str:
  """Returns a digest of the class indices, and of a sample of the examples."""
  sample = evenly_spaced_indices(len(examples), _MAX_ARRAYS)
  return storage.fingerprint_arrays([class_indices.astype(np.int64), examples[sample]])


def digest_first_examples(make_dataset: Callable[[], tf.data.Dataset]) -> str:
  """Returns a digest of the first examples; '' if two passes read different examples.

  Args:
    make_dataset: returns a dataset of batches of one example.
  """
  digest, second_digest = (_hash_first_examples(make_dataset) for _ in range(2))
  return digest if digest == second_digest else ''


def _hash_first_examples(make_dataset: Callable[[], tf.data.Dataset]) -> str:
  arrays: List[Any] = []
  with devices.cpu_session() as session:
    iterator = tf.data.make_initializable_iterator(make_dataset())
    example = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    session.run(tf.tables_initializer())
    session.run(iterator.initializer)
    with contextlib.suppress(tf.errors.OutOfRangeError):
      for _ in range(_NUM_FIRST_EXAMPLES):
        arrays += session.run(example)
  # Arrays of text have the dtype object, whose buffers contain addresses.
  return storage.fingerprint_arrays([
      array.astype('S') if array.dtype == object else array for array in arrays])


def _file_size(path: bytes) -> int:
  """Returns the size of a file in bytes; -1 if it does not exist, such as for a broken link."""
  try:
    return os.stat(path).st_size
  except OSError:
    return -1
