"""Saves one copy of each variable, even if every replica has a copy of the variable."""

import re
from typing import Any, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf

# Matches training/Adam/learning_rate; the names of slots contain more slashes.
_HYPERPARAMETER_NAME = re.compile(r'training(_\d+)?/[^/]+/[^/]+$')
# Matches the names of the copies on all replicas except the first.
_OTHER_REPLICA_NAME = re.compile(r'/replica_\d+(/|$)')


class SingleCopySaver(tf.train.SessionRunHook):
  """Saves and restores one copy of each variable, and resets hyperparameters to the flags' values.

  Defect: Estimator's default saver (tensorflow_estimator/python/estimator/estimator.py:1394) saves
  the copies of the optimizer's slots on all replicas, and restores the variables that contain
  hyperparameters. Symptom: a run on one replica cannot resume on two (`Key
  training/Adam/.../replica_1 not found in checkpoint`), and the learning rate of a resumed run is
  the rate in the checkpoint, not the rate that the flags give.

  Every worker needs this hook. In the list of hooks, this hook must precede the hook that saves
  checkpoints.

  Args:
    config: the configuration of the Estimator, with the number of checkpoints to keep. If None,
      another saver saves the variables, and this hook only resets hyperparameters.
    hyperparameters: the names of the optimizer's hyperparameters, such as `learning_rate`. Other
      variables of the optimizer are its state.
  """

  def __init__(self, config: Optional[tf.estimator.RunConfig], hyperparameters: Set[str]) -> None:
    self._config = config
    self._hyperparameters = hyperparameters

  def begin(self) -> None:
    # Replaces Estimator's own saver in time, because the session is created and restored after
    # `begin`.
    if self._config is not None:
      savers = tf.get_collection_ref(tf.GraphKeys.SAVERS)
      savers[:] = [_LateBuiltSaver(
          max_to_keep=self._config.keep_checkpoint_max, sharded=True, save_relative_paths=True,
          keep_checkpoint_every_n_hours=self._config.keep_checkpoint_every_n_hours,
          defer_build=True)]
    self._reset_hyperparameters = tf.group(*[
        variable.initializer for variable in tf.global_variables()
        if _HYPERPARAMETER_NAME.match(variable.op.name)
        and variable.op.name.rpartition('/')[2] in self._hyperparameters])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    session.run(self._reset_hyperparameters)


class _LateBuiltSaver(tf.train.Saver):
  """A saver that selects its variables when it is built, after the `begin` of all hooks."""

  def build(self) -> None:
    self._var_list = [*single_copy_variables(),
                      *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
    super().build()


def single_copy_variables() -> List[Any]:
  """Returns the variables to save; one object in the list represents all copies of a variable.

  See SingleCopySaver.
  """
  chosen: Dict[str, Any] = {}
  for variable in tf.global_variables():
    name = variable.op.name  # The same for a replicated variable and for its first copy.
    if _OTHER_REPLICA_NAME.search(name):
      continue
    if name not in chosen or hasattr(variable, 'values'):  # `values`: the variable is replicated.
      chosen[name] = variable
  return list(chosen.values())
