"""Saves checkpoints to a disk that may be full, read-only or unmounted for a while."""

import contextlib
import glob
import logging
import os
import re
import time
from typing import Callable, FrozenSet, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import CheckpointNotSaved
from estimator_train.run_dir import RunDir, disk_errors
from estimator_train.tf_patches import checkpoints as checkpoint_patches
from estimator_train.training.checkpoints import recovery

_LOG = logging.getLogger('estimator_train')
# The delay between two attempts doubles each time, up to the longest delay.
_FIRST_DELAY_SECS, _LONGEST_DELAY_SECS = 1., 30.
_POLL_INTERVAL_SECS = 0.2
# Saving is not retried after these errors, because the cluster causes them, not the disk.
_NOT_DISK_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.CancelledError)


class RetryingSaver:
  """Saves checkpoints, and retries for some time if saving fails.

  Args:
    run_dir: the directory of the run.
    retry_secs: how long to retry after the first failed attempt, in seconds.
    is_stopping: returns whether a signal has requested the end of the run.
    clock: returns the time in seconds.
    sleep: sleeps for the given number of seconds.

  Attributes:
    saved_step: the global step of the last saved checkpoint; None before the first checkpoint.
  """

  def __init__(self, run_dir: RunDir, retry_secs: float, is_stopping: Callable[[], bool],
               clock: Callable[[], float] = time.monotonic,
               sleep: Callable[[float], None] = time.sleep) -> None:
    self._run_dir = run_dir
    self._retry_secs = retry_secs
    self._is_stopping = is_stopping
    self._clock = clock
    self._sleep = sleep
    # The device number of the folder changes when its file system is unmounted; see _check_folder.
    self._device_number = os.stat(run_dir.path).st_dev
    # Times of `clock`. `_first_failure_at` is None unless the last attempt failed.
    self._first_failure_at: Optional[float] = None
    self._retry_at = 0.
    self._delay_secs = _FIRST_DELAY_SECS
    self.saved_step: Optional[int] = None

  @property
  def is_failing(self) -> bool:
    """Whether the last attempt failed."""
    return self._first_failure_at is not None

  @property
  def is_due(self) -> bool:
    """Whether it is time to retry after a failed attempt."""
    return self.is_failing and self._clock() >= self._retry_at

  def save(self, saver: tf.train.Saver, session: tf.Session, step: int,
           writes_graph: bool = True) -> bool:
    """Tries once to save a checkpoint, and returns whether the attempt succeeded.

    Args:
      saver: the saver of the variables.
      session: the session with the values of the variables.
      step: the global step.
      writes_graph: whether to call save_graph after a successful attempt.

    Raises:
      CheckpointNotSaved: saving has failed for `retry_secs`, or failed while the run is stopping.
    """
    files_before = self._list_files()
    restore_checkpoint_list = checkpoint_patches.checkpoint_list_restorer(saver)
    try:
      self._check_folder()
      saver.save(session, os.path.join(self._run_dir.path, 'model.ckpt'), global_step=step,
                 write_meta_graph=False)
    except (tf.errors.OpError, OSError, ValueError) as error:
      if isinstance(error, _NOT_DISK_ERRORS) or (
          # The saver raises a ValueError if the folder is missing; no other ValueError is retried.
          isinstance(error, ValueError) and os.path.isdir(self._run_dir.path)):
        raise
      if self._remove_partial_checkpoint(step, files_before):
        # Otherwise the saver would list, and later delete, a checkpoint that does not exist.
        restore_checkpoint_list()
      self._handle_failure(error, step, session)
      return False
    if self._first_failure_at is not None:
      _LOG.warning('saved the checkpoint of step %d, %.0f s after the first failed attempt',
                   step, self._clock() - self._first_failure_at)
    self.saved_step, self._first_failure_at, self._delay_secs = step, None, _FIRST_DELAY_SECS
    if writes_graph:
      self.save_graph(saver, session, step)
    return True

  def save_final(self, saver: tf.train.Saver, session: tf.Session, step: int) -> None:
    """Saves the checkpoint of the last step; waits and retries until an attempt succeeds.

    Raises:
      CheckpointNotSaved: saving has failed for `retry_secs`, or failed while the run is stopping.
    """
    while not self.save(saver, session, step):
      while not self.is_due and not self._is_stopping():
        self._sleep(_POLL_INTERVAL_SECS)

  def save_graph(self, saver: tf.train.Saver, session: tf.Session, step: int) -> None:
    """Writes the `.meta` file, which only other programs need; logs a warning on failure.

    Can be called in another thread, but not while a checkpoint is saved.
    """
    name = 'model.ckpt-{}.meta'.format(step)
    try:
      with session.graph.as_default():
        saver.export_meta_graph(os.path.join(self._run_dir.path, name))
    except (tf.errors.OpError, OSError) as error:
      recovery.remove_unfinished_files(self._run_dir.path)
      _LOG.warning('%s could not be written (%s); the checkpoint is complete without it', name,
                   disk_errors.error_reason(error))

  def _check_folder(self) -> None:
    """Raises an OSError if the folder is missing or unmounted, because saving may not fail then."""
    # A missing folder is not created again, because the new folder might be on the wrong disk.
    device_number = os.stat(self._run_dir.path).st_dev
    if device_number != self._device_number and self._run_dir.last_checkpoint() is None:
      raise OSError('another file system, without the checkpoints, is mounted')

  def _handle_failure(self, error: Exception, step: int, session: tf.Session) -> None:
    """Logs a failed attempt and schedules the next one, or raises CheckpointNotSaved."""
    now = self._clock()
    if self._first_failure_at is None:
      self._first_failure_at = now
    secs_left = self._first_failure_at + self._retry_secs - now
    folder = self._run_dir.path
    reason = '{} in {}'.format(
        disk_errors.error_reason_with_space(error, self._checkpoint_bytes(session), folder), folder)
    text = 'the checkpoint of step {} could not be saved'.format(step)
    if secs_left <= 0:
      raise CheckpointNotSaved('{} for {:.0f} s (--save_retry_secs={}): {}'.format(
          text, now - self._first_failure_at, self._retry_secs, reason)) from error
    if self._is_stopping():
      raise CheckpointNotSaved('{}, and a signal has requested the end of the run: {}'.format(
          text, reason)) from error
    delay_secs = min(self._delay_secs, secs_left)
    _LOG.warning('%s: %s; retrying in %.0f s, for at most %.0f s more (--save_retry_secs); '
                 'the last good checkpoint is %s', text, reason, delay_secs, secs_left,
                 self._run_dir.last_checkpoint())
    self._retry_at = now + delay_secs
    self._delay_secs = min(2 * self._delay_secs, _LONGEST_DELAY_SECS)

  def _checkpoint_bytes(self, session: tf.Session) -> int:
    """Returns the size in bytes of the last checkpoint, or of the variables if there is none."""
    last = self._run_dir.last_checkpoint()
    with contextlib.suppress(OSError):
      if last is not None:
        return sum(os.path.getsize(path) for path in glob.glob(glob.escape(last) + '.*'))
    return sum(variable.shape.num_elements() * variable.dtype.size
               for variable in session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES))

  def _list_files(self) -> Optional[FrozenSet[str]]:
    """Returns the names of the files in the folder; None if the folder cannot be read."""
    try:
      return frozenset(os.listdir(self._run_dir.path))
    except OSError:
      return None

  def _remove_partial_checkpoint(self, step: int, files_before: Optional[FrozenSet[str]]) -> bool:
    """Removes the files of a failed attempt, so that the next attempt can use the disk space.

    Args:
      step: the global step of the failed checkpoint.
      files_before: the return value of `_list_files` before the attempt.

    Returns:
      Whether it is certain that the folder has no checkpoint of this step.
    """
    recovery.remove_unfinished_files(self._run_dir.path)
    last = self._run_dir.last_checkpoint()
    files = self._list_files()
    if files is None or files_before is None or (
        last is not None and last.endswith('model.ckpt-{}'.format(step))):
      return False
    checkpoint_file = re.compile(r'model\.ckpt-{}\.(index|meta|data-\d+-of-\d+)$'.format(step))
    for name in filter(checkpoint_file.match, files - files_before):
      with contextlib.suppress(OSError):
        os.remove(os.path.join(self._run_dir.path, name))
    return True
