"""Keeps a checkpoint readable while another process may delete it.

A mode that only reads takes no lock on the folder, and must not write to it either, so it cannot
link the files as best_checkpoint.py does. It opens them instead: the kernel keeps an open file
until it is closed, also without a name.
"""

import contextlib
import errno
import glob
import os
import tempfile
from typing import Callable, Iterator, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.system import storage

_OPEN_FILES = '/proc/{}/fd/{}'  # Links to the open files of a process.


class SavedCheckpoint(NamedTuple):
  """A checkpoint to restore.

  Attributes:
    files: the path at which to read the files: `path`, or that of pinned_files.
  """
  path: str
  global_step: int
  files: str


@contextlib.contextmanager
def pinned_files(checkpoint: str) -> Iterator[str]:
  """Opens the files of a checkpoint, and keeps them readable within the `with` block.

  Yields:
    The path at which the files can be read, whatever happens to those at `checkpoint`. Without
    /proc, or a folder for temporary files, this is `checkpoint`.

  Raises:
    FileNotFoundError: the checkpoint has no index, or its files were deleted meanwhile.
    OSError: a file cannot be read, or is not a regular file.
  """
  index = checkpoint + '.index'
  with contextlib.ExitStack() as stack:
    files = [stack.enter_context(storage.open_regular(path))
             for path in [index] + glob.glob(glob.escape(checkpoint) + '.data-*-of-*')]
    if not os.path.exists(index):  # Deleted first: perhaps not all other files were found.
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), index)
    pinned = checkpoint
    with contextlib.suppress(OSError):  # A container may have a read-only file system.
      folder = stack.enter_context(tempfile.TemporaryDirectory(prefix='checkpoint-'))
      for file in files:
        os.symlink(_OPEN_FILES.format(os.getpid(), file.fileno()),
                   os.path.join(folder, os.path.basename(file.name)))
      pinned = os.path.join(folder, os.path.basename(checkpoint))
    yield pinned if os.path.exists(pinned + '.index') else checkpoint


def pin_found(find: Callable[[], Optional[str]],
              stack: contextlib.ExitStack) -> Optional[Tuple[str, str]]:
  """Keeps a checkpoint readable that another process may replace by another one.

  Args:
    find: returns the path of the current checkpoint; None if there is none.

  Returns:
    The path of the checkpoint, and the path at which to read its files; None if there is none, or
    if files are missing although the checkpoint has not been replaced.
  """
  path, previous = find(), None
  while path is not None and path != previous:
    with contextlib.suppress(FileNotFoundError):
      return path, stack.enter_context(pinned_files(path))
    path, previous = find(), path
  return None


def pin_if_intact(path: str, step: int, stack: contextlib.ExitStack) -> SavedCheckpoint:
  """Keeps a checkpoint readable until the stack is closed, if all its values can be read.

  Args:
    step: the global step, unless the checkpoint contains it.

  Raises:
    OSError, ValueError: a file cannot be read, or is damaged.
  """
  with contextlib.ExitStack() as files_stack:
    files = files_stack.enter_context(pinned_files(path))
    try:
      saved_step = _read_all_values(files)
    except tf.errors.OpError as error:
      raise ValueError(error.message.replace(files, path)) from error
    stack.enter_context(files_stack.pop_all())
  return SavedCheckpoint(path, step if saved_step is None else saved_step, files)


def _read_all_values(path: str) -> Optional[int]:
  """Reads all values of a checkpoint, and returns the stored global step; None if none is stored.

  The stored step may be higher than the step in the file name, because other workers may have
  incremented the global step before its value was saved.
  """
  reader = tf.train.NewCheckpointReader(path)
  for name in reader.get_variable_to_shape_map():
    reader.get_tensor(name)
  return (int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
          if reader.has_tensor(tf.GraphKeys.GLOBAL_STEP) else None)
