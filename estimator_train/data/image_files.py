"""Reads JPEG, PNG and GIF files, whatever the extensions of their names."""

import contextlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import List, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import image_folder, image_source, published
from estimator_train.data.batching import Batching
from estimator_train.data.description import ImageSplit
from estimator_train.data.source import BadImage, FilePath, InputFn
from estimator_train.settings import groups
from estimator_train.system import stored

_READAHEAD_THREADS = 4  # Several, because opening a file on a network file system is slow.


class ImageFileSource(image_source.ImageSource):
  """The source of an ImageSplit."""
  format_name = 'image_files'
  class_indices_are_known = True

  def __len__(self) -> int:
    return len(self.split.files)

  def look_up(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    threads = ThreadPoolExecutor(_READAHEAD_THREADS)
    files, class_indices = self.split.files, self.split.classes

    def look_up_paths(indices: np.ndarray) -> Tuple[List[bytes], np.ndarray]:
      paths = [files[index] for index in indices]
      threads.submit(_request_readahead, paths)
      return paths, class_indices[indices].astype(np.int64)

    return image_source.look_up_in_python(chunks, look_up_paths)

  @staticmethod
  def read(reference: tf.Tensor) -> tf.Tensor:
    return tf.read_file(reference)

  def read_content(self, index: int) -> bytes:
    return read_regular_file(self.split.files[index])

  def name_of(self, index: int) -> str:
    return os.fsdecode(self.split.files[index])

  def without(self, indices: List[int]) -> ImageSplit:
    if not indices:
      return self.split
    dropped = set(indices)
    return ImageSplit([file for index, file in enumerate(self.split.files) if index not in dropped],
                      np.delete(self.split.classes, indices))

  def make_published_input_fn(self, batching: Batching) -> InputFn:
    return lambda: published.make_file_batches(self.split, batching)

  def class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return stored.fingerprint_files(self.split.files)

  def files(self) -> List[FilePath]:
    return list(self.split.files)

  def skip_bad_examples(self, split_name: str, settings: groups.Input,
                        model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
    split, skipped = super().skip_bad_examples(split_name, settings, model_dir)
    if split_name == 'train':
      image_folder.check_no_class_missing(self.dataset.labels, split)
    return split, skipped


def read_regular_file(path: bytes) -> bytes:
  """Returns the content of a regular file.

  Raises:
    OSError: the file cannot be read or is not a regular file. Reading a named pipe would block,
      and reading a device might never end.
  """
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise OSError('not a regular file')
  with open(path, 'rb') as file:
    return file.read()


def _request_readahead(paths: Sequence[bytes]) -> None:
  """Asks the kernel to read files ahead, so that decoding does not wait for the disk."""
  for path in paths:
    with contextlib.suppress(OSError):  # The error is reported when the image is decoded.
      descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
      try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
      finally:
        os.close(descriptor)
