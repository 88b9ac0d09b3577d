"""Saves one copy of each variable in checkpoints, and corrects the lists of checkpoints."""

import re
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import tensorflow.compat.v1 as tf
from tensorflow.python.training import checkpoint_management, saver as saver_lib

from estimator_train.tf_patches import sessions

# Matches training/Adam/learning_rate, but no slot, because names of slots contain more slashes.
_HYPERPARAMETER_NAME = re.compile(r'training(_\d+)?/[^/]+/[^/]+$')
# Matches the names of the copies on all replicas except the first.
_OTHER_REPLICA_NAME = re.compile(r'/replica_\d+(/|$)')


class MonotonicTimer(tf.train.SecondOrStepTimer):
  """A timer for hooks that is independent of changes of the system clock.

  Defect: line 132 of tensorflow_core/python/training/basic_session_run_hooks.py compares times of
  the system clock. Symptom: after the clock is set back by an hour, no checkpoint is saved for an
  hour.
  """

  def should_trigger_for_step(self, step: int) -> bool:
    if self._every_secs is None or self._last_triggered_step in (None, step):
      return bool(super().should_trigger_for_step(step))
    return time.monotonic() >= self._triggered_at + self._every_secs

  def update_last_triggered_step(self, step: int) -> Any:
    self._triggered_at = time.monotonic()
    return super().update_last_triggered_step(step)


class SaverSetupHook(tf.train.SessionRunHook):
  """Replaces the saver, and resets hyperparameters to the values of the flags after restoring.

  Defect 1: Estimator's default saver (tensorflow_estimator/python/estimator/estimator.py:1394)
  saves the copies of the optimizer's slots on all replicas. Symptom: a run on one replica cannot
  resume on two (`Key training/Adam/.../replica_1 not found in checkpoint`).

  Defect 2: the default saver restores variables that contain hyperparameters. Symptom: a resumed
  run has the learning rate in the checkpoint, not the one that the flags give.

  Every worker needs this hook. In the list of hooks, it must precede the hook that saves
  checkpoints.

  Args:
    config: the configuration of the Estimator. With None, another saver saves the variables, and
      this hook only resets hyperparameters.
    hyperparameters: the names of the optimizer's hyperparameters, such as `learning_rate`.
  """

  def __init__(self, config: Optional[tf.estimator.RunConfig], hyperparameters: Set[str]) -> None:
    self._config = config
    self._hyperparameters = hyperparameters

  def begin(self) -> None:
    # The session is created and restored after `begin`, so the saver can still be replaced here.
    if self._config is not None:
      savers = tf.get_collection_ref(tf.GraphKeys.SAVERS)
      savers[:] = [_LateBuiltSaver(
          max_to_keep=self._config.keep_checkpoint_max, sharded=True, save_relative_paths=True,
          keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
          builder=SingleReadSaverBuilder(), defer_build=True)]
    reset_hyperparameters = tf.group(*[
        variable.initializer for variable in tf.global_variables()
        if _HYPERPARAMETER_NAME.match(variable_name(variable))
        and variable_name(variable).rpartition('/')[2] in self._hyperparameters])
    sessions.add_local_init_op(reset_hyperparameters)
    sessions.share_ready_op()


class _LateBuiltSaver(tf.train.Saver):
  """A saver that is built, and selects its variables, after the `begin` of all hooks."""

  def build(self) -> None:
    self._var_list = [*single_copy_variables(),
                      *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
    super().build()


def variable_name(variable: Any) -> str:
  """Returns the name that a variable has in checkpoints: the name of its operation.

  Defect: `variable.op` of a replicated variable also converts the stack trace of the operation
  (tensorflow_core/python/distribute/values.py:761). Symptom: `variable.op.name` takes half a
  millisecond.
  """
  name, _, _ = variable.name.partition(':')
  return str(name)


def single_copy_variables() -> List[Any]:
  """Returns the variables that SaverSetupHook saves: one object for all copies of a variable."""
  by_name: Dict[str, Any] = {}
  for variable in tf.global_variables():
    name = variable_name(variable)  # A replicated variable has the same name as its first copy.
    if _OTHER_REPLICA_NAME.search(name):
      continue
    if name not in by_name or hasattr(variable, 'values'):  # Only replicated variables have it.
      by_name[name] = variable
  return list(by_name.values())


class SingleReadSaverBuilder(saver_lib.BulkSaverBuilder):
  """Makes the operations of a sharded Saver, which read each variable only once.

  Defect: to find the device of a variable, line 404 of tensorflow_core/python/training/saver.py
  makes an operation that reads the variable. Symptom: a fifth of a Saver's operations are never
  run, but slow down the start.
  """

  def _GroupByDevices(self, saveables: Sequence[Any]) -> Any:  # noqa: N802 (TensorFlow's name.)
    for saveable in saveables:
      for spec in saveable.specs:
        spec._tensor = spec.tensor  # `spec.tensor` may make new operations at each access.
    return super()._GroupByDevices(saveables)


def make_checkpoint_list_restorer(saver: tf.train.Saver) -> Callable[[], None]:
  """Returns a function that restores the present contents of the saver's lists of checkpoints.

  Defect: `Saver.save` first updates its list of kept checkpoints (line 930 of
  tensorflow_core/python/training/saver.py) and its list of checkpoints to delete (line 934). It
  then writes the `checkpoint` file (line 1181), and keeps the updated lists even if this fails.
  Symptom: after the disk was full for a while, the `checkpoint` file lists a checkpoint that does
  not exist, and a good checkpoint is deleted too early.
  """
  last, to_be_deleted = list(saver._last_checkpoints), list(saver._checkpoints_to_be_deleted)

  def restore_lists() -> None:
    saver.set_last_checkpoints_with_time(last)
    saver._checkpoints_to_be_deleted = to_be_deleted

  return restore_lists


def delete_surplus_checkpoints(saver: tf.train.Saver) -> None:
  """Deletes the oldest checkpoints beyond the saver's `max_to_keep`.

  Defect: after each save, a Saver deletes at most one checkpoint
  (tensorflow_core/python/training/saver.py:933), however many checkpoints there are. Symptom: a run
  that resumes after a kill, or with a smaller `--keep_checkpoint_max`, keeps too many checkpoints
  until it ends.
  """
  max_to_keep, paths = saver.saver_def.max_to_keep, saver.last_checkpoints
  if max_to_keep and len(paths) > max_to_keep:
    for path in paths[:-max_to_keep]:
      checkpoint_management.remove_checkpoint(path)
    saver.set_last_checkpoints_with_time(saver._last_checkpoints[-max_to_keep:])


def write_checkpoint_state(model_dir: str, latest: str, paths: Sequence[str]) -> None:
  """Writes the `checkpoint` file, with relative paths.

  Private API: `update_checkpoint_state_internal`, because the public
  `tf.train.update_checkpoint_state` (tensorflow_core/python/training/checkpoint_management.py:129)
  has no argument `save_relative_paths`. Absolute paths in the `checkpoint` file would be wrong
  after the folder is moved, or mounted elsewhere.

  Args:
    latest: the path of the checkpoint from which the next run resumes.
    paths: the paths of all checkpoints, the oldest first.
  """
  checkpoint_management.update_checkpoint_state_internal(model_dir, latest, paths,
                                                         save_relative_paths=True)
