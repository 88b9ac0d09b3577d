"""Reads parts of files, on local disks and on the remote file systems of TensorFlow."""

import os
import threading
from typing import Any, Callable


class PositionedFile:
  """A file that is read at given positions. Several threads can share it.

  The file is closed when the object is garbage-collected, so that one thread can drop a file from
  a cache while another thread reads the file.

  Args:
    path: the path of a local file, or a URL such as `gs://bucket/file`.

  Attributes:
    size: the size of the file in bytes when it was opened.

  Raises:
    OSError: the file cannot be opened.
  """

  def __init__(self, path: bytes) -> None:
    self._descriptor, self._remote_file = -1, None
    if is_remote(path):
      self._remote_file, self._lock = _open_remote(path), threading.Lock()
      self.size = self._remote_file.size()
    else:
      self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
      self.size = os.fstat(self._descriptor).st_size

  def read(self, offset: int, count: int) -> bytes:
    """Returns up to `count` bytes from a position on; fewer at the end of the file."""
    if self._remote_file is None:
      return os.pread(self._descriptor, count, offset)
    with self._lock:
      self._remote_file.seek(offset)
      content: bytes = self._remote_file.read(count)
    return content

  def request_readahead(self, offset: int, count: int) -> None:
    """Asks the kernel to read a part of a local file ahead."""
    if self._remote_file is None:
      os.posix_fadvise(self._descriptor, offset, count, os.POSIX_FADV_WILLNEED)

  # When the interpreter exits, it may delete `os.close` before a file that is still open.
  def close(self, close_descriptor: Callable[[int], None] = os.close) -> None:
    if self._descriptor >= 0:
      close_descriptor(self._descriptor)
    self._descriptor = -1

  def __enter__(self) -> 'PositionedFile':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def __del__(self) -> None:
    self.close()


def is_remote(path: bytes) -> bool:
  """Returns whether a path is a URL, such as `gs://bucket/file`."""
  return b'://' in path


def _open_remote(path: bytes) -> Any:
  """Opens a file at a URL; raises an OSError if that fails."""
  import tensorflow.compat.v1 as tf
  file = tf.gfile.GFile(path, 'rb')
  try:
    file.size()
  except tf.errors.OpError as error:
    raise OSError(error.message) from error
  return file
