"""Keeps a checkpoint readable while another process may delete it.

Modes that only read must not write to the folder of a run. This module therefore opens the files,
and does not link them into another folder as best_checkpoint.py does. The kernel keeps the contents
of a deleted file until all processes have closed it.
"""

import contextlib
import errno
import glob
import os
import tempfile
from typing import Callable, Iterator, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.system import storage

_OPEN_FILES = '/proc/{}/fd/{}'  # The link to an open file, by process id and descriptor.


class ReadableCheckpoint(NamedTuple):
  """A checkpoint whose files can be read, even if another process deletes it.

  Attributes:
    path: the path at which it was saved.
    readable_path: the path at which to read the files; see pin_files.
  """
  path: str
  global_step: int
  readable_path: str


@contextlib.contextmanager
def pin_files(checkpoint: str) -> Iterator[str]:
  """Opens the files of a checkpoint, and keeps them readable within the `with` block.

  Yields:
    The path of links to the open files, which stay readable if the checkpoint is deleted. If there
    is no /proc, or no writable folder for temporary files: `checkpoint` itself.

  Raises:
    FileNotFoundError: the index is missing, or a file was deleted meanwhile.
    OSError: a file cannot be read, or is not a regular file.
  """
  index = checkpoint + '.index'
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(storage.open_regular_file(path))
             for path in [index] + glob.glob(glob.escape(checkpoint) + '.data-*-of-*')]
    # TensorFlow deletes the index first. Other files may then have been missing from the listing.
    if not os.path.exists(index):
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), index)
    pinned = checkpoint
    with contextlib.suppress(OSError):  # A container may have a read-only file system.
      folder = stack.enter_context(tempfile.TemporaryDirectory(prefix='checkpoint-'))
      for file in files:
        os.symlink(_OPEN_FILES.format(os.getpid(), file.fileno()),
                   os.path.join(folder, os.path.basename(file.name)))
      pinned = os.path.join(folder, os.path.basename(checkpoint))
    yield pinned if os.path.exists(pinned + '.index') else checkpoint


def pin_current_checkpoint(find_checkpoint: Callable[[], Optional[str]],
                           stack: contextlib.ExitStack) -> Optional[Tuple[str, str]]:
  """Keeps the current checkpoint readable, although another process may replace it.

  Args:
    find_checkpoint: returns the path of the current checkpoint; None if there is none.
    stack: keeps the checkpoint readable until it is closed.

  Returns:
    The path of the checkpoint, and the path at which to read its files. None if there is no
    checkpoint, or if its files are missing although `find_checkpoint` still returns it.
  """
  path, previous = find_checkpoint(), None
  while path is not None and path != previous:
    with contextlib.suppress(FileNotFoundError):
      return path, stack.enter_context(pin_files(path))
    path, previous = find_checkpoint(), path
  return None


def pin_verified_checkpoint(path: str, step: int,
                            stack: contextlib.ExitStack) -> ReadableCheckpoint:
  """Verifies that all values of a checkpoint can be read, and keeps it readable.

  Args:
    step: the global step to return if the checkpoint does not contain it.
    stack: keeps the checkpoint readable until it is closed.

  Raises:
    OSError, ValueError: a file cannot be read, or is damaged.
  """
  with contextlib.ExitStack() as files_stack:
    readable_path = files_stack.enter_context(pin_files(path))
    try:
      saved_step = _read_all_values(readable_path)
    except tf.errors.OpError as error:
      raise ValueError(error.message.replace(readable_path, path)) from error
    stack.enter_context(files_stack.pop_all())
  return ReadableCheckpoint(path, step if saved_step is None else saved_step, readable_path)


def _read_all_values(path: str) -> Optional[int]:
  """Reads all values of a checkpoint. Returns the global step in it; None if it has none.

  This step may be higher than the step in the name of the file, because other workers may have
  incremented the global step before its value was saved.
  """
  reader = tf.train.NewCheckpointReader(path)
  for name in reader.get_variable_to_shape_map():
    reader.get_tensor(name)
  return (int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
          if reader.has_tensor(tf.GraphKeys.GLOBAL_STEP) else None)
