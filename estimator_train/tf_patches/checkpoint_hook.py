"""Provides the base class of the hook that saves checkpoints."""

import os
import time
from typing import Any, Optional

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches import session_start


class MonotonicTimer(tf.train.SecondOrStepTimer):
  """A timer of a hook that is not affected when the clock of the machine is set.

  Defect: line 132 of tensorflow_core/python/training/basic_session_run_hooks.py compares times of
  the system clock. Symptom: after the clock was set back by an hour, no checkpoint is saved for an
  hour.
  """

  def should_trigger_for_step(self, step: int) -> bool:
    if self._every_secs is None or self._last_triggered_step in (None, step):
      return bool(super().should_trigger_for_step(step))
    return time.monotonic() >= self._triggered_at + self._every_secs

  def update_last_triggered_step(self, step: int) -> Any:
    self._triggered_at = time.monotonic()
    return super().update_last_triggered_step(step)


class CheckpointHook(tf.train.CheckpointSaverHook):
  """A `CheckpointSaverHook` whose subclasses implement how a checkpoint is saved.

  Defect: lines 570 and 578 of tensorflow_core/python/training/basic_session_run_hooks.py write the
  graph twice, once as text, in addition to the copy that TensorBoard needs. Line 581 counts the
  steps to the next checkpoint from the first step of the run. The saver, the writer and the timer
  of the hook have only private names. Symptom: a tenth of the start-up time is spent on
  graph.pbtxt; a resumed run saves at other steps than an uninterrupted run.

  Args:
    model_dir: the path of the folder of the run.
    save_steps: the steps from one checkpoint to the next, or None to use `save_secs`.
    save_secs: the seconds from one checkpoint to the next, or None to use `save_steps`.
  """

  def __init__(self, model_dir: str, save_steps: Optional[int], save_secs: Optional[int]) -> None:
    super().__init__(model_dir, save_steps=save_steps, save_secs=save_secs)
    self._timer = MonotonicTimer(save_secs, save_steps)
    self._save_interval_steps = save_steps or 1

  def save(self, session: tf.Session, step: int) -> None:
    """Saves a checkpoint of this global step; subclasses must override this method."""
    raise NotImplementedError

  def save_first(self, session: tf.Session, step: int) -> None:
    """Saves the checkpoint before the first step, and writes the graph to the event file.

    Subclasses must override this method.
    """
    raise NotImplementedError

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    step = self.global_step(session)
    self.save_first(session, step)
    self.reset_timer(step)

  @property
  def saver(self) -> tf.train.Saver:
    return self._get_saver()

  @property
  def writer(self) -> tf.summary.FileWriter:
    """The writer of the run's event file."""
    return self._summary_writer

  @property
  def prefix(self) -> str:
    """The path of a checkpoint up to the `-` before its step."""
    return os.fspath(self._save_path)

  def global_step(self, session: tf.Session) -> int:
    return session_start.read_global_step(session)

  def reset_timer(self, step: int) -> None:
    """Counts the steps to the next checkpoint from the last multiple of `save_steps`."""
    self._timer.update_last_triggered_step(step - step % self._save_interval_steps)

  def _save(self, session: tf.Session, step: int) -> None:
    """Overrides the private method by which the base class saves a checkpoint."""
    self.save(session, step)
