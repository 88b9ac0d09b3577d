"""Variables of several replicas in checkpoints."""

import re
from typing import Any, Dict, List

import tensorflow.compat.v1 as tf

_HYPERPARAMETER = re.compile(r'training(_\d+)?/[^/]+/[^/]+$')
_OF_ANOTHER_REPLICA = re.compile(r'/replica_\d+(/|$)')


class OneCopyOfEach(tf.train.SessionRunHook):
  """Has one copy of each variable saved and restored, and lets the flags' hyperparameters stand.

  Defect: Estimator's default saver (tensorflow_estimator/python/estimator/estimator.py:1394) also
  saves every further replica's copy of the optimizer's slots, and restores the variables that hold
  hyperparameters. Symptom: a checkpoint from one replica cannot be resumed on two (`Key
  training/Adam/.../replica_1 not found in checkpoint`), and the learning rate of a resumed run is
  that of the checkpoint, not the one that was asked for.

  Every worker needs this, and before the hook that saves checkpoints.

  Args:
    keep_max: checkpoints to keep.
  """

  def __init__(self, keep_max: int) -> None:
    self._keep_max = keep_max

  def begin(self) -> None:
    # Estimator's own saver is there already; the session is made, and restored, after this.
    savers = tf.get_collection_ref(tf.GraphKeys.SAVERS)
    savers[:] = [tf.train.Saver(one_copy_of_each(), max_to_keep=self._keep_max, sharded=True,
                                save_relative_paths=True)]
    self._reset_hyperparameters = tf.group(*[
        variable.initializer for variable in tf.global_variables()
        if _HYPERPARAMETER.match(variable.op.name)])

  def after_create_session(self, session: tf.Session, coord: Any) -> None:
    session.run(self._reset_hyperparameters)


def one_copy_of_each() -> List[Any]:
  """Returns what to save: the variable that spans the replicas where there is one.

  See OneCopyOfEach.
  """
  chosen: Dict[str, Any] = {}
  for variable in tf.global_variables():
    name = variable.op.name
    if _OF_ANOTHER_REPLICA.search(name):
      continue
    if name not in chosen or hasattr(variable, 'values'):
      chosen[name] = variable
  return list(chosen.values())
