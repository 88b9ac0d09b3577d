"""Loads and saves the initial weights of a model, and makes an Estimator start from them.

Line numbers refer to tensorflow_estimator/python/estimator/keras.py, unless a file is named.
"""

import os
from typing import Any, Collection, Dict, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.training.tracking.base import OBJECT_GRAPH_PROTO_KEY


def initial_weights_path(model_dir: str, object_based: bool = False) -> str:
  """Returns the path to which model_to_estimator writes a model's initial weights.

  Those that Saver of object-based checkpoints can restore are in another file.

  No defect: this function repeats the path of lines 368 and 406, because TensorFlow has no public
  name for the path.
  """
  return os.path.join(model_dir, 'keras',
                      'object_based.ckpt' if object_based else 'keras_model.ckpt')


def _make_folder(path: str) -> None:
  """Makes a local folder with the usual permissions, or one in another file system, such as gs://.

  Local folders that TensorFlow makes (line 376) ignore the umask.
  """
  if '://' in path:
    tf.gfile.MakeDirs(path)
  else:
    os.makedirs(path, exist_ok=True)


def save_initial_weights(config: tf.estimator.RunConfig, names: Sequence[str],
                         values: Sequence[np.ndarray]) -> None:
  """Saves the initial weights of a model.

  Defect: line 370 reuses the weights in `model_dir/keras` without a check. Symptom: the weights of
  a new model are ignored, and training starts from the weights of an earlier model. Line 396 also
  builds the training graph, which takes most of the time of a conversion.

  Args:
    config: the configuration of the Estimator. In a cluster, the chief always writes the weights;
      another task writes the weights only if there is no file yet.
    names: the names of the weights in checkpoints. A weight that two models share can occur twice.
    values: the values.
  """
  path = initial_weights_path(config.model_dir)
  _make_folder(os.path.dirname(path))
  if not config.is_chief and tf.train.checkpoint_exists(path):
    return
  by_name = {tf.GraphKeys.GLOBAL_STEP: np.int64(0), **dict(zip(names, values))}
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    placeholders = [tf.placeholder(value.dtype, value.shape) for value in by_name.values()]
    with tf.device('/cpu:0'):
      save = tf.raw_ops.SaveV2(prefix=path, tensor_names=list(by_name),
                               shape_and_slices=[''] * len(by_name), tensors=placeholders)
    session.run(save, dict(zip(placeholders, by_name.values())))
  tf.train.update_checkpoint_state(os.path.dirname(path), path, [path])


def restored_value(path: Optional[str], name: str, shape: Any, dtype: tf.DType,
                   **unused_options: Any) -> tf.Tensor:
  """Returns the value of a variable in a checkpoint; zeros if the path is None."""
  if path is None:
    return tf.zeros(shape, dtype)
  with tf.device('/cpu:0'):
    value, = tf.raw_ops.RestoreV2(prefix=path, tensor_names=[name], shape_and_slices=[''],
                                  dtypes=[dtype])
  value.set_shape(shape)
  return value


def seed_graph(seed: int) -> Any:
  """Sets the seed of a new default graph for a model; adds and returns the global step.

  The random initial weights of the model depend on `seed` and on the operations that precede those
  of the model in the graph.
  """
  tf.set_random_seed(seed)
  return tf.train.create_global_step()


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
