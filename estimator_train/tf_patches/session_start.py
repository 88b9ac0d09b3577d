"""Reduces the runs of a new session before its first step.

Each run with other tensors takes about 20 ms, because TensorFlow prunes and optimizes the graph for
the run.
"""

import tensorflow.compat.v1 as tf
from tensorflow.python.training import training_util


def add_local_init_op(op: tf.Operation) -> None:
  """Adds an operation to those that run when a session has been initialized or restored.

  Call this function in the `begin` of a hook. Not a workaround for a defect: this function extends
  the collection from which Scaffold takes its `local_init_op`
  (tensorflow_core/python/training/monitored_session.py:221), because no public function does.
  """
  local_init = tf.get_collection_ref(tf.GraphKeys.LOCAL_INIT_OP)
  local_init[:] = [tf.group(op, *(local_init or [tf.train.Scaffold.default_local_init_op()]))]


def share_ready_op() -> None:
  """Makes both checks for uninitialized variables in the default graph run the same operations.

  Call this function in the `begin` of a hook.

  Defect: tensorflow_core/python/training/monitored_session.py:203 and
  tensorflow_estimator/python/estimator/estimator.py:1832 make different operations for the checks
  before and after the local variables are initialized, even if there are no local variables.
  Symptom: a slow start.
  """
  ready_for_local_init = tf.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP)
  has_local_state = any(map(tf.get_collection, (
      tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.RESOURCES, tf.GraphKeys.LOCAL_RESOURCES)))
  if ready_for_local_init and not has_local_state:
    tf.get_collection_ref(tf.GraphKeys.READY_OP)[:] = ready_for_local_init


def read_global_step(session: tf.Session) -> int:
  """Returns the value of the global step, through the tensor that TensorFlow's hooks read.

  Not a workaround for a defect: this function uses the private name `GLOBAL_STEP_READ_KEY`
  (tensorflow_core/python/training/training_util.py:34), because the public `get_global_step`
  returns the variable, and to read the variable takes another run.
  """
  read = session.graph.get_collection(training_util.GLOBAL_STEP_READ_KEY)
  return int(session.run(read[0] if read else tf.train.get_global_step(session.graph)))
