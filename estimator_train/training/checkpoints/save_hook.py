"""Saves checkpoints during training, and compares the variables of a checkpoint with a model."""

import contextlib
import logging
import re
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Pause
from estimator_train.tf_patches import checkpoints as checkpoint_patches
from estimator_train.training.checkpoints.retrying_saver import RetryingSaver
from estimator_train.training.hooks import finite

_LOG = logging.getLogger('estimator_train')
# A checkpoint of a converted Keras model contains the variables of the model under their own names.
# Names of optimizer variables begin with `training` and the name of the optimizer. Examples are the
# hyperparameter training/Adam/learning_rate and the slot training/Adam/conv2d/kernel/m.
_OPTIMIZER_VARIABLE = re.compile(r'training(_\d+)?/([^/]+)/')
_LOSS_SCALE_VARIABLE = re.compile(r'training(_\d+)?/current_loss_scale$')


def latest_checkpoint_and_step(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint; (None, 0) if there is none."""
  path = tf.train.latest_checkpoint(model_dir)
  if path is None:
    return None, 0
  return path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))


def model_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns the first difference between a checkpoint's and a model's variables; None if equal."""
  expected = {weight.op.name: weight.shape.as_list() for weight in model.weights}
  # Ignores the optimizer's variables. A `tf.train` optimizer has scalars, and slots whose names are
  # the name of a weight and a suffix, such as conv2d/kernel/Adam.
  stored: Dict[str, List[int]] = {
      name: shape for name, shape in tf.train.list_variables(checkpoint)
      if name in expected or (
          shape and not _OPTIMIZER_VARIABLE.match(name)
          and name.rpartition('/')[0] not in expected)}
  for name in sorted(set(stored) | set(expected)):
    if stored.get(name) != expected.get(name):
      return '{} is {} in the checkpoint and {} in the model'.format(
          name, stored.get(name, 'missing'), expected.get(name, 'missing'))
  return None


def optimizer_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns the difference between a checkpoint's and a model's optimizer; None if equal."""
  stored = {match.group(2) for match in (
      _OPTIMIZER_VARIABLE.match(name) for name, _ in tf.train.list_variables(checkpoint)) if match}
  try:
    name = model.optimizer.get_config()['name']
  except NotImplementedError:  # An optimizer of `tf.train` cannot be compared by name.
    return None
  if stored and name not in stored:
    return '{} in the checkpoint and {} in the model'.format(', '.join(sorted(stored)), name)
  return None


def lacks_loss_scale(checkpoint: str) -> bool:
  """Returns whether the checkpoint was saved by a training run without loss scaling."""
  return not any(_LOSS_SCALE_VARIABLE.match(name)
                 for name, _ in tf.train.list_variables(checkpoint))


class SaveCheckpoints(checkpoint_patches.CheckpointHook):
  """Saves checkpoints, the first one before the first step.

  If saving fails, the hook retries after a later step. After the last step, the hook waits and
  retries, until saving succeeds or the time for retries is over.

  Args:
    model_dir: the directory of the run.
    save_steps: the number of steps between two checkpoints; None: `save_secs` is used.
    save_secs: the number of seconds between two checkpoints; None: `save_steps` is used.
    retrying_saver: saves the checkpoints.
    listeners: called after each checkpoint.

  Attributes:
    pauses: one pause for each attempt to save, and one for each call of a listener's function.
  """

  def __init__(self, model_dir: str, save_steps: Optional[int], save_secs: Optional[int],
               retrying_saver: RetryingSaver,
               listeners: Sequence['CallEveryNSteps'] = ()) -> None:
    super().__init__(model_dir, save_steps, save_secs)
    self._retrying_saver = retrying_saver
    self._finite_check = finite.CheckWeightsFinite(checkpoint_patches.single_copy_variables)
    self._listeners = listeners
    self._save_pauses: List[Pause] = []
    self._write_graph: Optional[Callable[[], None]] = None  # Until it is called, in a thread.
    self._graph_thread: Optional[threading.Thread] = None

  def begin(self) -> None:
    super().begin()
    self._finite_check.begin()

  @property
  def pauses(self) -> List[Pause]:
    return self._save_pauses + [
        pause for listener in self._listeners for pause in listener.pauses]

  def after_run(self, run_context: Any, run_values: Any) -> None:
    self._start_to_write_graph()
    if not self._retrying_saver.is_failing:
      super().after_run(run_context, run_values)
    elif self._retrying_saver.is_due:
      step = self.global_step(run_context.session)
      self.reset_timer(step)
      self.save(run_context.session, step)

  def end(self, session: tf.Session) -> None:
    self.close()
    step = self.global_step(session)
    if step != self._retrying_saver.saved_step:
      with self._record_pause():
        self._finite_check.before_save(session, step)
        self._retrying_saver.save_final(self.saver, session, step)
      self._notify_listeners(session, step)

  def save_now(self, session: tf.Session) -> Optional[str]:
    """Saves a checkpoint of the current step, unless this checkpoint is saved already.

    Returns:
      The path of the checkpoint; None: saving failed, and will be retried.
    """
    step = self.global_step(session)
    if self._retrying_saver.saved_step != step:
      self.save(session, step)
    return '{}-{}'.format(self.prefix, step) if self._retrying_saver.saved_step == step else None

  def close(self) -> None:
    """Waits until the graph is written; must be called after a failure, too."""
    self._start_to_write_graph()
    if self._graph_thread is not None:
      self._graph_thread.join()
      self._graph_thread = None

  def _start_to_write_graph(self) -> None:
    """Starts the thread that writes the graph, if the graph is not written yet."""
    if self._write_graph is not None:
      self._graph_thread = threading.Thread(target=self._write_graph)
      self._graph_thread.start()
      self._write_graph = None

  def save_first(self, session: tf.Session, step: int) -> None:
    """Saves the checkpoint before the first step; the graph is written after that step."""
    self._save_and_notify(session, step, writes_graph=False)
    is_saved = self._retrying_saver.saved_step == step

    def write_graph() -> None:
      # TensorBoard needs this copy. Other programs can read the graph from a .meta file.
      self.writer.add_graph(session.graph)
      self.writer.flush()
      if is_saved:
        self._retrying_saver.save_graph(self.saver, session, step)

    # No step depends on the graph's files, and to write them would delay the first step.
    self._write_graph = write_graph

  def save(self, session: tf.Session, step: int) -> None:
    """Tries once to save a checkpoint; calls the listeners if the attempt succeeds."""
    self._save_and_notify(session, step, writes_graph=True)

  def _save_and_notify(self, session: tf.Session, step: int, writes_graph: bool) -> None:
    """Tries once to save a checkpoint; calls the listeners if the attempt succeeds."""
    self.close()
    was_failing = self._retrying_saver.is_failing
    with self._record_pause():
      self._finite_check.before_save(session, step)
      checkpoint_patches.delete_surplus_checkpoints(self.saver)
      is_saved = self._retrying_saver.save(self.saver, session, step, writes_graph)
    if is_saved and was_failing:
      # Begins a new event file. The full disk may have truncated a record in the current file, and
      # no reader can read the records after a truncated record.
      self.writer.close()
      self.writer.reopen()
    if is_saved:
      self._notify_listeners(session, step)

  def _notify_listeners(self, session: tf.Session, step: int) -> None:
    """Records the saved checkpoint in the event file, and calls the listeners."""
    self.writer.add_session_log(tf.SessionLog(
        status=tf.SessionLog.CHECKPOINT, checkpoint_path=self.prefix), step)
    for listener in self._listeners:
      listener.after_save(session, step)

  @contextlib.contextmanager
  def _record_pause(self) -> Iterator[None]:
    """Records the time of the `with` block as a pause of the kind `checkpoint`."""
    began = time.perf_counter()
    yield
    self._save_pauses.append(Pause('checkpoint', began, time.perf_counter() - began))


class CallEveryNSteps(tf.train.CheckpointSaverListener):
  """Calls a function after the first checkpoint in each interval of N steps.

  Args:
    every_steps: N, a multiple of the number of steps between checkpoints.
    due_after_step: the global step after which calls are due.
    last_step: the global step at which training ends; the function is not called at this step.
    function: the function to call, which evaluates the latest checkpoint.

  Attributes:
    pauses: one pause of the kind `evaluation` for each call.
  """

  def __init__(self, every_steps: int, due_after_step: int, last_step: int,
               function: Callable[[], Any]) -> None:
    self._every_steps = every_steps
    self._last_interval = due_after_step // every_steps
    self._last_step = last_step
    self._function = function
    self.pauses: List[Pause] = []

  def after_save(self, session: tf.Session, global_step_value: int) -> None:
    # With parameter servers, other workers increment the global step too. There may be no
    # checkpoint at a multiple of N, so the intervals are compared instead.
    interval = global_step_value // self._every_steps
    if interval > self._last_interval and global_step_value < self._last_step:
      self._last_interval = interval
      began = time.perf_counter()
      self._function()
      self.pauses.append(Pause('evaluation', began, time.perf_counter() - began))
