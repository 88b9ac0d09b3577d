"""Saves checkpoints to a disk that may be full, read-only or unmounted for a while."""

import abc
import contextlib
import glob
import logging
import math
import os
import re
import threading
import time
from typing import Any, Callable, ContextManager, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import repairing
from estimator_train.errors import CheckpointNotSaved, TrainingFailed
from estimator_train.run_dir import CHECKPOINTS_FILE, RunDir, resource_errors
from estimator_train.system import storage
from estimator_train.tf_patches import checkpoints as checkpoint_patches, sessions

_LOG = logging.getLogger('estimator_train')
# The delay between two attempts doubles each time, up to the longest delay.
_FIRST_DELAY_SECS, _LONGEST_DELAY_SECS = 1., 30.
_POLL_INTERVAL_SECS = 0.2
# Saving is not retried after these errors, because the cluster causes them, not the disk.
_NOT_DISK_ERRORS = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.CancelledError)


class RetryingSaver:
  """Saves checkpoints, and retries for some time if saving fails.

  Args:
    retry_secs: how long to retry after the first failed attempt.
    is_stopping: returns whether a signal has requested the end of the run.
    clock: returns a time in seconds.

  Attributes:
    prefix: the path of a checkpoint up to the `-` before its step.
    saved_step: the global step of the last saved checkpoint; None if none was saved yet.
    on_recovery: is called after each checkpoint that was saved only after failed attempts.
  """

  def __init__(self, run_dir: RunDir, retry_secs: float, is_stopping: Callable[[], bool],
               clock: Callable[[], float] = time.monotonic,
               sleep: Callable[[float], None] = time.sleep) -> None:
    self._run_dir, self._retry_secs, self._is_stopping = run_dir, retry_secs, is_stopping
    self._clock, self._sleep = clock, sleep
    self.prefix = os.path.join(run_dir.path, 'model.ckpt')
    # Times of `clock`. The time of the first failure is None unless the last attempt failed.
    self._first_failure_at: Optional[float] = None
    self._retry_at = 0.
    self._delay_secs = _FIRST_DELAY_SECS
    self.saved_step: Optional[int] = None
    self.on_recovery: Callable[[], None] = lambda: None

  @property
  def is_failing(self) -> bool:
    """Whether the last attempt failed."""
    return self._first_failure_at is not None

  @property
  def is_due(self) -> bool:
    """Whether the last attempt failed and the delay before the next one is over."""
    return self.is_failing and self._clock() >= self._retry_at

  def save(self, saver: tf.train.Saver, session: tf.Session, step: int,
           writes_graph: bool = True) -> bool:
    """Tries once to save a checkpoint and its graph. Returns whether the checkpoint is saved.

    Raises:
      CheckpointNotSaved: saving has failed for `retry_secs`, or failed while the run is stopping.
    """
    names_before: Optional[Set[str]] = None
    restore_checkpoint_list = checkpoint_patches.make_checkpoint_list_restorer(saver)
    try:
      self._check_folder()
      checkpoint_patches.delete_surplus_checkpoints(saver)
      names_before = set(os.listdir(self._run_dir.path))
      saver.save(session, self.prefix, global_step=step, write_meta_graph=False)
    except (tf.errors.OpError, OSError, ValueError) as error:
      if isinstance(error, _NOT_DISK_ERRORS) or (
          # The saver raises a ValueError if the folder is missing. Only this case is retried.
          isinstance(error, ValueError) and os.path.isdir(self._run_dir.path)):
        raise
      if self._remove_partial_checkpoint(step, names_before):
        # The saver must not list, and later delete, a checkpoint that does not exist.
        restore_checkpoint_list()
      self._handle_failure(error, step, session)
      return False
    if self._first_failure_at is not None:
      _LOG.warning('saved the checkpoint of step %d, %.0f s after the first failed attempt',
                   step, self._clock() - self._first_failure_at)
      self.on_recovery()
    self.saved_step, self._first_failure_at, self._delay_secs = step, None, _FIRST_DELAY_SECS
    if writes_graph:
      self.save_graph(saver, session, step)
    return True

  def save_with_retries(self, saver: tf.train.Saver, session: tf.Session, step: int) -> None:
    """Saves the checkpoint of the last step; retries until saving succeeds or `save` raises."""
    while not self.save(saver, session, step):
      while not self.is_due and not self._is_stopping():
        self._sleep(_POLL_INTERVAL_SECS)

  def save_graph(self, saver: tf.train.Saver, session: tf.Session, step: int) -> None:
    """Writes the `.meta` file, which only other programs need. Logs a warning if this fails.

    May be called in another thread, but not while a checkpoint is being saved.
    """
    path = '{}-{}.meta'.format(self.prefix, step)
    try:
      self._check_folder()
      with session.graph.as_default():
        saver.export_meta_graph(path)
    except (tf.errors.OpError, OSError) as error:
      with contextlib.suppress(OSError):
        self._check_folder()
        repairing.remove_unfinished_files(self._run_dir.path)
      _LOG.warning('%s could not be written (%s); the checkpoint is complete without it',
                   os.path.basename(path), resource_errors.error_reason(error))

  def _check_folder(self) -> None:
    """Raises an OSError if the folder is missing, or is not the one that this process has locked.

    A missing folder is not created again, because it may be on a disk that is unmounted.
    """
    os.stat(self._run_dir.path)
    storage.check_guards(self._run_dir.path_to(CHECKPOINTS_FILE))

  def _handle_failure(self, error: Exception, step: int, session: tf.Session) -> None:
    """Logs a failed attempt and schedules the next one, or raises CheckpointNotSaved."""
    now, folder = self._clock(), self._run_dir.path
    if self._first_failure_at is None:
      self._first_failure_at = now
    secs_left = self._first_failure_at + self._retry_secs - now
    text = 'the checkpoint of step {} could not be saved'.format(step)
    reason = '{} in {}'.format(resource_errors.error_reason_with_free_space(
        error, self._checkpoint_bytes(session), folder), folder)
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
    if last is not None:
      with contextlib.suppress(OSError):
        return sum(os.path.getsize(path) for path in glob.glob(glob.escape(last) + '.*'))
    return sum(variable.shape.num_elements() * variable.dtype.size
               for variable in session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES))

  def _remove_partial_checkpoint(self, step: int, names_before: Optional[Set[str]]) -> bool:
    """Removes the files of a failed attempt, so that the next attempt can use the disk space.

    Args:
      names_before: the names of the files before the attempt; None if the folder was missing.

    Returns:
      True if the folder certainly contains no checkpoint of this step.
    """
    try:
      self._check_folder()
      repairing.remove_unfinished_files(self._run_dir.path)
      names = set(os.listdir(self._run_dir.path))
    except OSError:  # Another run may have locked the folder by now.
      return False
    checkpoint_name = 'model.ckpt-{}'.format(step)
    if names_before is None or (
        os.path.basename(self._run_dir.last_checkpoint() or '') == checkpoint_name):
      return False
    pattern = re.compile(re.escape(checkpoint_name) + r'\.(index|meta|data-\d+-of-\d+)$')
    for name in filter(pattern.match, names - names_before):
      with contextlib.suppress(OSError):
        os.remove(os.path.join(self._run_dir.path, name))
    return True


class FiniteWeightsCheck:
  """Raises TrainingFailed instead of saving a checkpoint whose weights are not finite.

  StopAtNonFiniteLoss would notice such weights one step too late, because a step computes the loss
  before it updates the weights.
  """

  def __init__(self) -> None:
    self._finite_at_start: Optional[List[str]] = None
    self._is_finite: Dict[str, tf.Tensor] = {}
    axes: Dict[Optional[int], tf.Tensor] = {}  # By rank.
    for variable in checkpoint_patches.single_copy_variables():
      # If a variable has a copy on each replica, only the first copy is checked.
      copy = variable.values[0] if hasattr(variable, 'values') else variable
      if copy.dtype.base_dtype.is_floating:
        is_finite = tf.raw_ops.IsFinite(x=tf.convert_to_tensor(copy))
        # tf.reduce_all is slower to build, because it adds a range for each variable.
        rank = is_finite.shape.ndims
        if rank not in axes:
          axes[rank] = tf.range(tf.rank(is_finite))
        self._is_finite[checkpoint_patches.variable_name(variable)] = tf.raw_ops.All(
            input=is_finite, axis=axes[rank])

  def check(self, session: tf.Session, step: int) -> None:
    """Raises TrainingFailed if a variable that was finite at the first check no longer is."""
    is_finite = session.run(self._is_finite)
    # A variable that is not finite at the first check, such as a mask of -inf, is ignored later.
    if self._finite_at_start is None:
      self._finite_at_start = [name for name, finite in is_finite.items() if finite]
    not_finite = sorted(name for name in self._finite_at_start if not is_finite[name])
    if not_finite:
      raise TrainingFailed('the weights are not finite after step {} ({}{})'.format(
          step, not_finite[0],
          ' and {} others'.format(len(not_finite) - 1) if len(not_finite) > 1 else ''))


class SaveListener(abc.ABC):
  """Is called after each saved checkpoint, and requires checkpoints of some steps."""

  @abc.abstractmethod
  def next_step_after(self, step: int) -> float:
    """Returns the first step after a global step whose checkpoint it requires, or infinity."""

  @abc.abstractmethod
  def after_save(self, step: int) -> bool:
    """Is called after the checkpoint of a global step; returns whether to stop the training."""


class SaveCheckpoints(tf.train.SessionRunHook):
  """Saves checkpoints, the first one before the first step.

  If saving fails, the hook retries after a later step. After the last step, the hook waits and
  retries until saving succeeds or the time for retries is over.

  TensorFlow's CheckpointSaverHook has two disadvantages. It also writes the graph as text, which
  takes a tenth of the start-up time. And it counts the steps to the next checkpoint from the first
  step of the run, so that a resumed run saves at other steps than an uninterrupted run.

  Args:
    save_steps: the number of steps between two checkpoints; None if `save_secs` is given.
    save_secs: the number of seconds between two checkpoints; None if `save_steps` is given.
    record_pause: makes a context that records a pause of the given kind.
    listener: checkpoints of the steps that it requires are saved in addition to the others.

  Attributes:
    is_stop_requested: whether `after_save` of the listener has returned True. This hook does not
      stop the training, because workers that train together must stop at the same step.
  """

  def __init__(self, retrying_saver: RetryingSaver, save_steps: Optional[int],
               save_secs: Optional[int], record_pause: Callable[[str], ContextManager[None]],
               listener: Optional[SaveListener] = None) -> None:
    self._retrying_saver, self._record_pause = retrying_saver, record_pause
    self._listener, self.is_stop_requested = listener, False
    self._timer = checkpoint_patches.MonotonicTimer(save_secs, save_steps)
    self._save_steps = save_steps or 1
    self._next_required_step = math.inf  # The next step that the listener requires.
    self._graph_thread: Optional[threading.Thread] = None  # Started after the first step.

  def begin(self) -> None:
    self._writer = tf.summary.FileWriterCache.get(os.path.dirname(self._retrying_saver.prefix))
    self._step_fetch = tf.train.SessionRunArgs(
        sessions.global_step_tensor(tf.get_default_graph()))
    self._finite_check = FiniteWeightsCheck()
    self._retrying_saver.on_recovery = self._begin_new_event_file

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    step = sessions.read_global_step(session)
    self._saver, = session.graph.get_collection(tf.GraphKeys.SAVERS)
    self._try_to_save(session, step, writes_graph=False)
    is_saved = self._retrying_saver.saved_step == step

    def write_graph() -> None:
      # TensorBoard needs the graph in the event file. Other programs can read a .meta file.
      self._writer.add_graph(session.graph)
      self._writer.flush()
      if is_saved:
        self._retrying_saver.save_graph(self._saver, session, step)

    # A thread writes the graph, because no step needs it, and writing would delay the first step.
    self._graph_thread = threading.Thread(target=write_graph)
    self._reset_timer(step)

  def before_run(self, run_context: Any) -> tf.train.SessionRunArgs:
    return self._step_fetch

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._start_graph_thread()
    session = run_context.session
    if self._retrying_saver.is_failing:
      if self._retrying_saver.is_due:
        step = sessions.read_global_step(session)
        self._reset_timer(step)
        self._try_to_save(session, step)
    # The fetched step is inexact: it was read before or after its increment, and other workers
    # increment it, too. The exact step is therefore read before a checkpoint is saved.
    elif self._is_due(run_values.results + 1):
      step = sessions.read_global_step(session)
      if self._is_due(step):
        self._reset_timer(step)
        self._try_to_save(session, step)

  def end(self, session: tf.Session) -> None:
    self.wait_for_graph_file()
    step = sessions.read_global_step(session)
    if step != self._retrying_saver.saved_step:
      with self._record_pause('checkpoint'):
        self._finite_check.check(session, step)
        self._retrying_saver.save_with_retries(self._saver, session, step)
      self._report_checkpoint(session, step)

  def wait_for_graph_file(self) -> None:
    """Waits until the graph is written. Must also be called if the training fails."""
    self._start_graph_thread()
    if self._graph_thread is not None:
      self._graph_thread.join()
      self._graph_thread = None

  def save_now(self, session: tf.Session) -> Optional[str]:
    """Saves a checkpoint of the current step unless it has already been saved.

    Returns:
      The path of the checkpoint; None if saving has failed and will be retried.
    """
    step = sessions.read_global_step(session)
    if self._retrying_saver.saved_step != step:
      self._try_to_save(session, step)
    if self._retrying_saver.saved_step != step:
      return None
    return '{}-{}'.format(self._retrying_saver.prefix, step)

  def _try_to_save(self, session: tf.Session, step: int, writes_graph: bool = True) -> None:
    self.wait_for_graph_file()
    with self._record_pause('checkpoint'):
      self._finite_check.check(session, step)
      is_saved = self._retrying_saver.save(self._saver, session, step, writes_graph)
    if is_saved:
      self._report_checkpoint(session, step)

  def _report_checkpoint(self, session: tf.Session, step: int) -> None:
    """Records the saved checkpoint in the event file, and calls the listeners."""
    self._writer.add_session_log(tf.SessionLog(
        status=tf.SessionLog.CHECKPOINT, checkpoint_path=self._retrying_saver.prefix), step)
    if self._listener is not None and self._listener.after_save(step):
      self.is_stop_requested = True

  def _begin_new_event_file(self) -> None:
    # A full disk may have truncated a record of the current file, and readers cannot read the
    # records after a truncated record.
    self._writer.close()
    self._writer.reopen()

  def _is_due(self, step: int) -> bool:
    return step >= self._next_required_step or self._timer.should_trigger_for_step(step)

  def _reset_timer(self, step: int) -> None:
    """Counts the steps to the next checkpoint from the last multiple of `save_steps`."""
    self._timer.update_last_triggered_step(step - step % self._save_steps)
    if self._listener is not None:
      self._next_required_step = self._listener.next_step_after(step)

  def _start_graph_thread(self) -> None:
    if self._graph_thread is not None and self._graph_thread.ident is None:
      self._graph_thread.start()
