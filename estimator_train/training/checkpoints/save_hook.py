"""What a checkpoint holds, whether it fits a model, and the hook that saves it."""

import contextlib
import logging
import re
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.reports.step_times import Pause
from estimator_train.tf_patches import replicated_variables, saver as saver_patches
from estimator_train.tf_patches.checkpoint_hook import CheckpointHook
from estimator_train.training.checkpoints.retrying_saver import RetryingSaver
from estimator_train.training.hooks import finite

_LOG = logging.getLogger('estimator_train')
# Names in a checkpoint of an Estimator that was made from a Keras model: the model's variables
# under their own names, the optimizer's under `training`, its hyperparameters one level below its
# name (training/Adam/learning_rate), its slots further down (training/Adam/conv2d/kernel/m).
_TRAINING = re.compile(r'training(_\d+)?/([^/]+)/')
_LOSS_SCALE = re.compile(r'training(_\d+)?/current_loss_scale$')


def latest(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint; (None, 0) without one."""
  path = tf.train.latest_checkpoint(model_dir)
  if path is None:
    return None, 0
  return path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))


def model_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns how the checkpoint's model differs from this one; None when they are alike."""
  wanted = {weight.op.name: weight.shape.as_list() for weight in model.weights}
  # A `tf.train` optimizer's slots are below the weights' names, and its other variables scalars.
  stored: Dict[str, List[int]] = {
      name: shape for name, shape in tf.train.list_variables(checkpoint)
      if name in wanted or (
          shape and not _TRAINING.match(name) and name.rpartition('/')[0] not in wanted)}
  for name in sorted(set(stored) | set(wanted)):
    if stored.get(name) != wanted.get(name):
      return '{} is {} there and {} here'.format(
          name, stored.get(name, 'missing'), wanted.get(name, 'missing'))
  return None


def optimizer_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns how the optimizer that wrote the checkpoint differs; None when they are alike."""
  stored = {match.group(2) for match in (
      _TRAINING.match(name) for name, _ in tf.train.list_variables(checkpoint)) if match}
  try:
    name = model.optimizer.get_config()['name']
  except NotImplementedError:  # A `tf.train` optimizer, which leaves no such names.
    return None
  if stored and name not in stored:
    return '{} there and {} here'.format(', '.join(sorted(stored)), name)
  return None


def lacks_loss_scale(checkpoint: str) -> bool:
  """Whether the checkpoint is of a training in fp32 alone."""
  return not any(_LOSS_SCALE.match(name) for name, _ in tf.train.list_variables(checkpoint))


class SaveCheckpoints(CheckpointHook):
  """Saves checkpoints, the first of the weights that the run finds.

  One that cannot be saved is tried again after later steps; after the last step it is waited for.

  Args:
    model_dir: of the run.
    save_steps: between two.
    save_secs: or so long.
    saving: saves one.
    listeners: to call after each.

  Attributes:
    pauses: what saving took each time, and what its listeners took.
  """

  def __init__(self, model_dir: str, save_steps: Optional[int], save_secs: Optional[int],
               saving: RetryingSaver, listeners: Sequence['AtEverySteps'] = ()) -> None:
    super().__init__(model_dir, save_steps, save_secs)
    self._saving = saving
    self._keep_finite = finite.KeepFinite(replicated_variables.one_copy_of_each)
    self._calls = listeners
    self._saves: List[Pause] = []

  def begin(self) -> None:
    super().begin()
    self._keep_finite.begin()

  @property
  def pauses(self) -> List[Pause]:
    return self._saves + [pause for call in self._calls for pause in call.pauses]

  def after_run(self, run_context: Any, run_values: Any) -> None:
    if not self._saving.is_failing:
      super().after_run(run_context, run_values)
    elif self._saving.is_due:
      step = self.global_step(run_context.session)
      self.count_from(step)
      self.save(run_context.session, step)

  def end(self, session: tf.Session) -> None:
    step = self.global_step(session)
    if step != self._saving.step:
      with self._timed():
        self._keep_finite.before_save(session, step)
        self._saving.save_at_last(self.saver, session, step)
      self._tell(session, step)

  def save_now(self, session: tf.Session) -> Optional[str]:
    """Saves one out of turn, unless this step's is there.

    Returns:
      Its path; None: it cannot be saved yet, and is tried again.
    """
    step = self.global_step(session)
    if self._saving.step != step:
      self.save(session, step)
    return '{}-{}'.format(self.prefix, step) if self._saving.step == step else None

  def save(self, session: tf.Session, step: int) -> None:
    was_failing = self._saving.is_failing
    with self._timed():
      self._keep_finite.before_save(session, step)
      saver_patches.delete_surplus(self.saver)
      is_saved = self._saving.save(self.saver, session, step)
    if is_saved and was_failing:
      # A disk that was full has cut a record of events short, and none after it could be read.
      self.writer.close()
      self.writer.reopen()
    if is_saved:
      self._tell(session, step)

  def _tell(self, session: tf.Session, step: int) -> None:
    self.writer.add_session_log(tf.SessionLog(
        status=tf.SessionLog.CHECKPOINT, checkpoint_path=self.prefix), step)
    for call in self._calls:
      call.after_save(session, step)

  @contextlib.contextmanager
  def _timed(self) -> Iterator[None]:
    began = time.perf_counter()
    yield
    self._saves.append(Pause('checkpoint', began, time.perf_counter() - began))


class AtEverySteps(tf.train.CheckpointSaverListener):
  """Calls a function after the first checkpoint of every so many steps, but for the last step's.

  Args:
    every_steps: a multiple of the steps between checkpoints.
    called_at: the global step up to which that has been done.
    last_step: where the training ends.
    call: what to call, an evaluation; the checkpoint is the latest then.

  Attributes:
    pauses: what the calls took.
  """

  def __init__(self, every_steps: int, called_at: int, last_step: int,
               call: Callable[[], Any]) -> None:
    self._every_steps = every_steps
    self._count = called_at // every_steps
    self._last_step = last_step
    self._call = call
    self.pauses: List[Pause] = []

  def after_save(self, session: tf.Session, global_step_value: int) -> None:
    # With parameter servers the steps of others count too, and some are passed by.
    count = global_step_value // self._every_steps
    if count > self._count and global_step_value < self._last_step:
      self._count = count
      began = time.perf_counter()
      self._call()
      self.pauses.append(Pause('evaluation', began, time.perf_counter() - began))
