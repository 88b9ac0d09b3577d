"""Loads and saves the initial weights of a model, and makes an Estimator start from them.

Line numbers refer to tensorflow_estimator/python/estimator/keras.py, unless a file is named.
"""

import os
import re
from typing import Any, Collection, Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.training.tracking.base import OBJECT_GRAPH_PROTO_KEY

from estimator_train.tf_patches.model_copies import ModelCopier


def initial_weights_path(model_dir: str) -> str:
  """Returns the path to which model_to_estimator writes a model's initial weights.

  No defect: this function repeats the path of lines 368 and 406, because TensorFlow has no public
  name for the path.
  """
  return os.path.join(model_dir, 'keras', 'keras_model.ckpt')


def _make_folder(path: str) -> None:
  """Makes a local folder with the usual permissions, or one in another file system, such as gs://.

  Local folders that TensorFlow makes (line 376) ignore the umask.
  """
  if '://' in path:
    tf.gfile.MakeDirs(path)
  else:
    os.makedirs(path, exist_ok=True)


def save_initial_weights(copier: ModelCopier, values: Optional[Sequence[Any]],
                         config: tf.estimator.RunConfig, object_based: bool = False) -> List[str]:
  """Saves initial weights, and returns the names that they have in an Estimator's graph.

  Defect: line 370 reuses the weights in `model_dir/keras` without a check. Symptom: the weights of
  a new model are ignored, and training starts from the weights of an earlier model. Line 396 also
  builds the training graph, which takes most of the time of a conversion.

  Args:
    copier: copies a model that is defined by its inputs and outputs. If its graph contains other
      models, its own names can have suffixes such as `_1`, which the returned names do not have.
    values: the values of the weights, or None for random values, with the seed in `config`.
    config: the configuration of the Estimator. In a cluster, the chief always writes the weights;
      another task writes the weights only if there is no file yet.
    object_based: whether to write an object-based checkpoint.
  """
  path = initial_weights_path(config.model_dir)
  # Line 376 would make a folder that only its owner can write to.
  _make_folder(os.path.dirname(path))
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    global_step = seed_graph(config.tf_random_seed)
    copy = copier.copy()
    if config.is_chief or not tf.train.checkpoint_exists(path):
      initializers = [global_step.initializer, *[weight.initializer for weight in copy.weights]]
      if object_based or values is not None:
        session.run(initializers)
      if values is not None:
        copy.set_weights(values)
      if object_based:
        copy._track_trackable(global_step, 'estimator_global_step')
        copy.save_weights(path, save_format='tf')
      else:
        _save_variables(session, path, [global_step, *copy.weights],
                        initializers if values is None else [])
    return [weight.op.name for weight in copy.weights]


def random_weights(copier: ModelCopier, config: tf.estimator.RunConfig) -> List[Any]:
  """Returns random initial weights of a model, which depend on the seed in `config`.

  They differ from the weights of the model itself, which depend on the seed of the model's own
  graph.
  """
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    seed_graph(config.tf_random_seed)
    weights = copier.copy().weights
    session.run([weight.initializer for weight in weights])
    return list(session.run([weight.read_value() for weight in weights]))


def seed_graph(seed: int) -> Any:
  """Sets the seed of a new default graph for a model; adds and returns the global step.

  The random initial weights of the model depend on `seed` and on the operations that precede those
  of the model in the graph. See save_initial_weights and save_random_weights.
  """
  tf.set_random_seed(seed)
  return tf.train.create_global_step()


def save_random_weights(model: tf.keras.Model, config: tf.estimator.RunConfig) -> None:
  """Saves the random initial weights of a model, like save_initial_weights, but without a copy.

  See save_initial_weights about the defect. To copy a model takes as long as to build it.
  The weights are equal to those of save_initial_weights if building the model and copying it make
  the same operations in the same order.

  Args:
    model: a model in the default graph, which seed_graph has prepared.
    config: the configuration of the Estimator; this process is the chief.
  """
  path = initial_weights_path(config.model_dir)
  _make_folder(os.path.dirname(path))
  variables = [tf.train.get_global_step(), *model.weights]
  with tf.Session(config=config.session_config) as session:
    _save_variables(session, path, variables, [variable.initializer for variable in variables])


def _save_variables(session: tf.Session, path: str, variables: Sequence[Any],
                    initializers: Sequence[tf.Operation]) -> None:
  """Runs the initializers, and saves variables under the names of their operations."""
  # SaveV2 and the initializers run in one `session.run`. A Saver would need a second one, and would
  # add operations that restore to the graph. The group gives each read one dependency instead of
  # one on every initializer. For ResNet-50, this takes 1 s instead of 11 s.
  by_name = {variable.op.name: variable for variable in variables}
  names = sorted(by_name)
  with tf.control_dependencies([tf.group(initializers)]):
    session.run(tf.raw_ops.SaveV2(
        prefix=path, tensor_names=names, shape_and_slices=[''] * len(names),
        tensors=[by_name[name].read_value() for name in names]))
  tf.train.update_checkpoint_state(os.path.dirname(path), path, [path])


def read_variables(path: str, names: Collection[str]) -> Dict[str, Any]:
  """Returns the values of the variables in a checkpoint that have one of the given names.

  Private API: `OBJECT_GRAPH_PROTO_KEY`, because `tf.train.load_checkpoint` knows only the keys of
  variables. In object-based checkpoints, such as those in SavedModels of Keras, these differ from
  the names.
  """
  reader = tf.train.load_checkpoint(path)
  keys = {name: name for name in reader.get_variable_to_shape_map()}
  if OBJECT_GRAPH_PROTO_KEY in keys:
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(OBJECT_GRAPH_PROTO_KEY))
    keys.update((attribute.full_name, attribute.checkpoint_key)
                for node in graph.nodes for attribute in node.attributes)
  return {name: reader.get_tensor(key) for name, key in keys.items() if name in names}


class PositionalWeights:
  """Saves initial weights by position, for a model whose weights get names only in its first call.

  Defect: model_to_estimator loses the weights of subclasses of tf.keras.Model, and of other models
  without known inputs; line 574 only warns. Symptom: training starts from random weights.

  Args:
    values: the values of the weights, in the order of `model.weights`.
    config: the configuration of the Estimator.
  """

  def __init__(self, values: Sequence[Any], config: tf.estimator.RunConfig) -> None:
    self._path = initial_weights_path(config.model_dir)
    self._shapes = [list(value.shape) for value in values]
    _make_folder(os.path.dirname(self._path))
    if config.is_chief or not tf.train.checkpoint_exists(self._path):
      with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
        placeholders = [tf.placeholder(value.dtype, value.shape) for value in values]
        session.run(tf.raw_ops.SaveV2(
            prefix=self._path, tensor_names=[str(index) for index in range(len(values))],
            shape_and_slices=[''] * len(values), tensors=placeholders),
                    dict(zip(placeholders, values)))

  def initialize(self, model: tf.keras.Model) -> None:
    """Makes the weights of a model from copy_onto_batch start from the saved values.

    Raises:
      ValueError: the weights do not have the number and the shapes of the saved values.
    """
    shapes = [weight.shape.as_list() for weight in model.weights]
    if shapes != self._shapes:
      raise ValueError(
          'a copy of a model must have the weights of the model: {}: shapes {}, not {}: return all '
          'arguments of the model from get_config'.format(model.name, shapes, self._shapes))
    tf.train.init_from_checkpoint(self._path, {
        str(index): weight for index, weight in enumerate(model.weights)})


def warm_start_settings(model_dir: str, names: Sequence[str]) -> tf.estimator.WarmStartSettings:
  """Returns the settings with which an Estimator starts from all of the initial weights.

  Defect: line 593 warm-starts with the default pattern, which matches trainable variables only
  (tensorflow_core/python/training/warm_starting_util.py:341). Symptom: weights of frozen layers
  start from random values, and the statistics of batch normalization start from 0 and 1.

  Args:
    model_dir: the path of the folder of the Estimator.
    names: the names of the weights in the graph of the Estimator. A name occurs twice if an inner
      model and the outer model share the weight.
  """
  return tf.estimator.WarmStartSettings(
      initial_weights_path(model_dir),
      vars_to_warm_start=['^{}(:0)?$'.format(re.escape(name)) for name in dict.fromkeys(names)])
