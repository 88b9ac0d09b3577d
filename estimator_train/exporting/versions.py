"""The versions in `--export_dir`, each a whole folder under a number, as TensorFlow Serving has it.

The number is the time in seconds since 1970, so that the latest export is the one that is served,
of whatever run and step it is. What is unfinished has a name that is no number, which Serving
passes by, and the next export removes; the lock of the folder tells that nobody writes it still.
"""

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import time
from typing import Callable, Iterator

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError


def write(export_dir: str, fill: Callable[[str], None]) -> str:
  """Makes the next version: aside, and renamed into place once it is whole.

  Args:
    export_dir: the folder of all versions, which is there.
    fill: writes the files of the version into the folder of this path.

  Returns:
    The path of the version.

  Raises:
    UserError: it cannot be written.
  """
  aside = os.path.join(export_dir, 'temp-{}-{}'.format(int(time.time()), os.getpid()))
  try:
    with _shared(export_dir):
      os.mkdir(aside)
      fill(aside)
      _flush(aside)
      return _rename(aside, export_dir)
  except (OSError, tf.errors.ResourceExhaustedError) as error:  # TensorFlow's own: a full disk.
    raise UserError('--export_dir cannot be written to', '{} ({})'.format(export_dir, error),
                    'give a folder that this user can write to, on a disk that has room'
                    ) from error
  finally:
    shutil.rmtree(aside, ignore_errors=True)  # It is there when something went wrong.


@contextlib.contextmanager
def _shared(export_dir: str) -> Iterator[None]:
  """Shares the folder with others that export, and removes what is unfinished if there are none."""
  folder = os.open(export_dir, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # Others are there, or the file system knows no such locks.
      fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
      for aside in glob.glob(os.path.join(glob.escape(export_dir), 'temp-[0-9]*-[0-9]*')):
        shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
      fcntl.flock(folder, fcntl.LOCK_SH)
    yield
  finally:
    os.close(folder)


def _flush(folder: str) -> None:
  """Has the files on the disk before their folder gets its final name."""
  for parent, _, names in os.walk(folder):
    for name in names:
      with open(os.path.join(parent, name), 'rb') as file:
        os.fsync(file.fileno())


def _rename(aside: str, export_dir: str) -> str:
  """Gives the folder the next number; another process may be a step ahead with the same."""
  there = [int(name) for name in os.listdir(export_dir) if name.isdigit()]
  version = max([int(time.time())] + [number + 1 for number in there])
  while True:
    path = os.path.join(export_dir, str(version))
    try:
      os.rename(aside, path)
      return path
    except OSError as error:
      if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
        raise
      version += 1
