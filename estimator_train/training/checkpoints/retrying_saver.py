"""Saving a checkpoint where the disk may be full, read-only or gone for a while."""

import contextlib
import glob
import logging
import os
import re
import time
from typing import Callable, FrozenSet, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import NotSaved
from estimator_train.run_dir import disk_errors
from estimator_train.run_dir.run_files import RunDir
from estimator_train.tf_patches import saver as saver_patches
from estimator_train.training.checkpoints import recovery

_LOG = logging.getLogger('estimator_train')
# Between two attempts: twice as long each time, up to the last of these.
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 1., 30.
_TURN_SECS = 0.2
_NOT_OF_THE_DISK = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.CancelledError)


class RetryingSaver:
  """Saves checkpoints into a folder, and bears that it cannot for some time.

  Args:
    run_dir: of the run.
    retry_secs: how long to go on trying after the first attempt that failed.
    is_stopping: whether a signal has asked the run to end.
    clock: in seconds.
    sleep: waits for so many seconds.

  Attributes:
    step: the global step of the last checkpoint that was saved; None before the first.
  """

  def __init__(self, run_dir: RunDir, retry_secs: float, is_stopping: Callable[[], bool],
               clock: Callable[[], float] = time.monotonic,
               sleep: Callable[[float], None] = time.sleep) -> None:
    self._run_dir = run_dir
    self._retry_secs = retry_secs
    self._is_stopping = is_stopping
    self._clock = clock
    self._sleep = sleep
    # Another one there later is what lies under the file system that was mounted.
    self._device = os.stat(run_dir.path).st_dev
    self._failed_at: Optional[float] = None
    self._pause = _FIRST_PAUSE_SECS
    self._next_at = 0.
    self.step: Optional[int] = None

  @property
  def is_failing(self) -> bool:
    """Whether the last attempt failed."""
    return self._failed_at is not None

  @property
  def is_due(self) -> bool:
    """Whether it is time for another attempt after one that failed."""
    return self.is_failing and self._clock() >= self._next_at

  def save(self, saver: tf.train.Saver, session: tf.Session, step: int) -> bool:
    """Saves a checkpoint, and returns whether that could be done.

    Args:
      saver: of the variables.
      session: that has them.
      step: the global step.

    Raises:
      NotSaved: it could not, for as long as that is borne.
    """
    files_before = self._files()
    restore_retention = saver_patches.retention(saver)
    try:
      self._check_folder()
      saver.save(session, os.path.join(self._run_dir.path, 'model.ckpt'), global_step=step,
                 write_meta_graph=False)
    except (tf.errors.OpError, OSError, ValueError) as error:
      if isinstance(error, _NOT_OF_THE_DISK) or (
          # What the saver makes of a folder that is gone.
          isinstance(error, ValueError) and os.path.isdir(self._run_dir.path)):
        raise
      if self._clear(step, files_before):
        # It must not name, and later delete, what is not there.
        restore_retention()
      self._bear(error, step, session)
      return False
    if self._failed_at is not None:
      _LOG.warning('the checkpoint of step %d is saved, %.0f s after the first attempt that failed',
                   step, self._clock() - self._failed_at)
    self.step, self._failed_at, self._pause = step, None, _FIRST_PAUSE_SECS
    self._save_graph(saver, session, 'model.ckpt-{}.meta'.format(step))
    return True

  def save_at_last(self, saver: tf.train.Saver, session: tf.Session, step: int) -> None:
    """Saves the checkpoint that no step follows, waiting for as long as that is borne.

    Raises:
      NotSaved: it could not, or was asked to end by a signal meanwhile.
    """
    while not self.save(saver, session, step):
      while not self.is_due and not self._is_stopping():
        self._sleep(_TURN_SECS)

  def _save_graph(self, saver: tf.train.Saver, session: tf.Session, name: str) -> None:
    """Writes what other programs can rebuild the graph from; the checkpoint is whole without."""
    try:
      with session.graph.as_default():
        saver.export_meta_graph(os.path.join(self._run_dir.path, name))
    except (tf.errors.OpError, OSError) as error:
      recovery.clear_unfinished(self._run_dir.path)
      _LOG.warning('%s could not be written (%s); the checkpoint is whole without it', name,
                   disk_errors.why(error))

  def _check_folder(self) -> None:
    """Raises an OSError when the folder is gone, which saving would not always notice."""
    # Made again, it might be on another disk than the one that was to be mounted.
    device = os.stat(self._run_dir.path).st_dev
    if device != self._device and self._run_dir.last_checkpoint() is None:
      raise OSError('another file system is there, without the checkpoints')

  def _bear(self, error: Exception, step: int, session: tf.Session) -> None:
    """Tells of an attempt that failed, and raises NotSaved when that is enough of them."""
    now = self._clock()
    if self._failed_at is None:
      self._failed_at = now
    left = self._failed_at + self._retry_secs - now
    why = '{} in {}'.format(disk_errors.with_room(error, self._bytes(session), self._run_dir.path),
                            self._run_dir.path)
    text = 'the checkpoint of step {} could not be saved'.format(step)
    if left <= 0:
      raise NotSaved('{} for {:.0f} s (--save_retry_secs={}): {}'.format(
          text, now - self._failed_at, self._retry_secs, why)) from error
    if self._is_stopping():
      raise NotSaved('{}, and the run was asked to end: {}'.format(text, why)) from error
    pause = min(self._pause, left)
    _LOG.warning('%s: %s; trying again in %.0f s, and for %.0f s in all (--save_retry_secs); '
                 'the last good checkpoint is %s', text, why, pause, left,
                 self._run_dir.last_checkpoint())
    self._next_at = now + pause
    self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECS)

  def _bytes(self, session: tf.Session) -> int:
    """Returns how large a checkpoint is: the last one, or else its variables."""
    last = self._run_dir.last_checkpoint()
    with contextlib.suppress(OSError):
      if last is not None:
        return sum(os.path.getsize(path) for path in glob.glob(glob.escape(last) + '.*'))
    return sum(variable.shape.num_elements() * variable.dtype.size
               for variable in session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES))

  def _files(self) -> Optional[FrozenSet[str]]:
    try:
      return frozenset(os.listdir(self._run_dir.path))
    except OSError:
      return None

  def _clear(self, step: int, files_before: Optional[FrozenSet[str]]) -> bool:
    """Removes what an attempt left, so that the next one has its room.

    Returns:
      Whether this step's checkpoint is surely none of the folder's.
    """
    recovery.clear_unfinished(self._run_dir.path)
    last = self._run_dir.last_checkpoint()
    files = self._files()
    if files is None or files_before is None or (
        last is not None and last.endswith('model.ckpt-{}'.format(step))):
      return False
    part = re.compile(r'model\.ckpt-{}\.(index|meta|data-\d+-of-\d+)$'.format(step))
    for name in filter(part.match, files - files_before):
      with contextlib.suppress(OSError):
        os.remove(os.path.join(self._run_dir.path, name))
    return True
