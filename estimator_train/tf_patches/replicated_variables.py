"""Keeps the copies of variables on several replicas consistent, and saves one of the copies."""

import re
from typing import Any, Dict, List, Optional, Set

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values

from estimator_train.tf_patches import saver as saver_patches, session_start

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
          builder=saver_patches.SingleReadSaverBuilder(), defer_build=True)]
    reset_hyperparameters = tf.group(*[
        variable.initializer for variable in tf.global_variables()
        if _HYPERPARAMETER_NAME.match(variable_name(variable))
        and variable_name(variable).rpartition('/')[2] in self._hyperparameters])
    session_start.add_local_init_op(reset_hyperparameters)
    session_start.share_ready_op()


class _LateBuiltSaver(tf.train.Saver):
  """A saver that selects its variables when it is built, after the `begin` of all hooks."""

  def build(self) -> None:
    self._var_list = [*single_copy_variables(),
                      *tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)]
    super().build()


def variable_name(variable: Any) -> str:
  """Returns the name of a variable in checkpoints, which is that of its operation.

  Defect: `variable.op` of a replicated variable also converts the stack trace of the operation
  (tensorflow_core/python/distribute/values.py:761). Symptom: half a millisecond for each name.
  """
  name, _, _ = variable.name.partition(':')
  return str(name)


def single_copy_variables() -> List[Any]:
  """Returns the variables to save; one object in the list represents all copies of a variable.

  See SingleCopySaver.
  """
  chosen: Dict[str, Any] = {}
  for variable in tf.global_variables():
    name = variable_name(variable)  # Equal for a replicated variable and for its first copy.
    if _OTHER_REPLICA_NAME.search(name):
      continue
    if name not in chosen or hasattr(variable, 'values'):  # `values`: the variable is replicated.
      chosen[name] = variable
  return list(chosen.values())


def average_statistics(model: tf.keras.Model, train_op: tf.Operation) -> tf.Operation:
  """Returns a training step that also averages the statistics of layers over all workers.

  Must be called in each replica. Only layers such as batch normalization have these variables,
  which every replica updates from its part of the batch.

  Defect: a checkpoint contains the mean of these variables over all replicas
  (tensorflow_core/python/distribute/values.py:1242), but only the chief writes checkpoints, and
  the other workers do not take part in its collective operation. Symptom: under
  MultiWorkerMirroredStrategy, a model with batch normalization hangs at its first checkpoint.
  This function adds the collective operation to each step instead. Moving averages are linear, so
  a checkpoint contains the same values as if the mean were computed only for the checkpoint.

  Args:
    model: a model from build_model.
    train_op: the operation of a training step.
  """
  strategy = tf.distribute.get_strategy()
  statistics = _updated_statistics(model)
  if not statistics or not strategy.extended.experimental_between_graph:
    return train_op
  strategy.extended.read_var = lambda variable: tf.identity(variable.primary)
  with tf.control_dependencies([train_op]):
    # One vector, because each collective operation waits for the network.
    vector = tf.concat([tf.reshape(tf.identity(variable.get()), [-1])
                        for variable in statistics], axis=0)
  means = tf.split(
      tf.distribute.get_replica_context().merge_call(
          lambda strategy, vectors: strategy.extended.reduce_to(
              tf.distribute.ReduceOp.MEAN, vectors, destinations=vectors), args=(vector,)),
      [variable.shape.num_elements() for variable in statistics])
  return tf.group(*[variable.get().assign(tf.reshape(mean, variable.shape))
                    for variable, mean in zip(statistics, means)])


def _updated_statistics(model: tf.keras.Model) -> List[values.SyncOnReadVariable]:
  """Returns the float variables that each replica updates, without those of frozen layers."""
  # pylint: disable=protected-access
  return [weight for layer in model._get_trainable_state() if layer._updates and layer.updates
          for weight in layer._non_trainable_weights
          if isinstance(weight, values.SyncOnReadVariable) and weight.dtype.is_floating]
