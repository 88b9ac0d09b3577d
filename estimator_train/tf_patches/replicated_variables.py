"""Variables with a copy on each replica, in checkpoints."""

import re
from typing import Any, Dict, List

import tensorflow.compat.v1 as tf

_HYPERPARAMETER = re.compile(r'training(_\d+)?/[^/]+/[^/]+$')
_FURTHER_REPLICA = re.compile(r'/replica_\d+(/|$)')


class SingleCopySaver(tf.train.SessionRunHook):
  """Saves and restores one copy of each variable, and resets the hyperparameters to the flags.

  Defect: Estimator's default saver (tensorflow_estimator/python/estimator/estimator.py:1394) saves
  the copies of the optimizer's slots on all replicas, and restores the variables that contain
  hyperparameters. Symptom: a checkpoint from one replica cannot be resumed on two (`Key
  training/Adam/.../replica_1 not found in checkpoint`), and the learning rate of a resumed run is
  that of the checkpoint, not that of the flags.

  Every worker needs this hook, before the hook that saves checkpoints.

  Args:
    keep_max: number of checkpoints to keep.
  """

  def __init__(self, keep_max: int) -> None:
    self._keep_max = keep_max

  def begin(self) -> None:
    # Estimator has added its own saver already; the session is created and restored after `begin`.
    savers = tf.get_collection_ref(tf.GraphKeys.SAVERS)
    savers[:] = [tf.train.Saver(single_copy_variables(), max_to_keep=self._keep_max, sharded=True,
                                save_relative_paths=True)]
    self._reset_hyperparameters = tf.group(*[
        variable.initializer for variable in tf.global_variables()
        if _HYPERPARAMETER.match(variable.op.name)])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    session.run(self._reset_hyperparameters)


def single_copy_variables() -> List[Any]:
  """Returns the variables to save: of a replicated variable, the one that represents all copies.

  See SingleCopySaver.
  """
  chosen: Dict[str, Any] = {}
  for variable in tf.global_variables():
    name = variable.op.name
    if _FURTHER_REPLICA.search(name):
      continue
    if name not in chosen or hasattr(variable, 'values'):
      chosen[name] = variable
  return list(chosen.values())
