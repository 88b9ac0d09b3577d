"""The hook that saves checkpoints."""

import os
from typing import Any, Optional

import tensorflow.compat.v1 as tf


class CheckpointHook(tf.train.CheckpointSaverHook):
  """`CheckpointSaverHook` that leaves to a subclass how a checkpoint is saved.

  Defect: tensorflow_core/python/training/basic_session_run_hooks.py:570 and 578 write the graph
  twice more than TensorBoard needs, once as text, and line 581 counts the steps to the next
  checkpoint from the step of the start. Its saver, writer and timer have private names only.
  Symptom: a tenth of the start goes into graph.pbtxt; a resumed run saves at other steps than one
  that was not interrupted.

  Args:
    model_dir: of the run.
    save_steps: between two.
    save_secs: or so long.
  """

  def __init__(self, model_dir: str, save_steps: Optional[int], save_secs: Optional[int]) -> None:
    super().__init__(model_dir, save_steps=save_steps, save_secs=save_secs)
    self._between = save_steps or 1

  def save(self, session: tf.Session, step: int) -> None:
    """Saves a checkpoint; to be overridden."""
    raise NotImplementedError

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    # For TensorBoard; a checkpoint's .meta has all of the graph.
    self.writer.add_graph(session.graph)
    step = self.global_step(session)
    self.save(session, step)
    self.count_from(step)

  @property
  def saver(self) -> tf.train.Saver:
    return self._get_saver()

  @property
  def writer(self) -> tf.summary.FileWriter:
    """The writer of the run's event file."""
    return self._summary_writer

  @property
  def prefix(self) -> str:
    """The path of a checkpoint without its step."""
    return os.fspath(self._save_path)

  def global_step(self, session: tf.Session) -> int:
    return int(session.run(self._global_step_tensor))

  def count_from(self, step: int) -> None:
    """Counts the steps to the next checkpoint from the last multiple of `save_steps`."""
    self._timer.update_last_triggered_step(step - step % self._between)

  def _save(self, session: tf.Session, step: int) -> None:
    self.save(session, step)
