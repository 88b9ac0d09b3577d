"""Loads the initial weights of a run, and writes them to `MODEL_DIR/keras/`."""

import contextlib
import logging
import os
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Union

import h5py
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding
from estimator_train.checkpoints.pinned_files import pin_current_checkpoint
from estimator_train.data import ImageShape
from estimator_train.errors import UserError, join_items
from estimator_train.model import networks
from estimator_train.settings.flags import ModelFlags
from estimator_train.tf_patches import checkpoints, saved_weights
from estimator_train.tf_patches.keras import nested_layers

_LOG = logging.getLogger('estimator_train')


def initial_weights_path(model_dir: str, is_object_based: bool = False) -> str:
  """Returns the path of the initial weights, which is the one that model_to_estimator uses.

  Args:
    is_object_based: whether tf.train.Checkpoint can read the weights.
  """
  return os.path.join(model_dir, 'keras',
                      'object_based.ckpt' if is_object_based else 'keras_model.ckpt')


def save_initial_weights(config: tf.estimator.RunConfig, names: Sequence[str],
                         values: Sequence[np.ndarray]) -> None:
  """Saves the initial weights of a model, and overwrites those of an earlier model.

  Keras's model_to_estimator would start from the weights of the earlier model
  (tensorflow_estimator/python/estimator/keras.py:370). In a cluster, only the chief overwrites
  weights. Other tasks save them only if there are none yet.

  Args:
    names: the names of the weights in checkpoints. A weight that two models share can occur twice.
  """
  path = initial_weights_path(config.model_dir)
  folder = os.path.dirname(path)
  if '://' in folder:  # Such as gs://bucket/run, with `convert`.
    tf.gfile.MakeDirs(folder)
  else:
    os.makedirs(folder, exist_ok=True)  # tf.gfile ignores the umask.
  if not config.is_chief and tf.train.checkpoint_exists(path):
    return
  by_name = {tf.GraphKeys.GLOBAL_STEP: np.int64(0), **dict(zip(names, values))}
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    placeholders = [tf.placeholder(value.dtype, value.shape) for value in by_name.values()]
    with tf.device('/cpu:0'):
      save = tf.raw_ops.SaveV2(prefix=path, tensor_names=list(by_name),
                               shape_and_slices=[''] * len(by_name), tensors=placeholders)
    session.run(save, dict(zip(placeholders, by_name.values())))
  checkpoints.write_checkpoint_state(folder, path, [path])


def load_initial_weights(model: tf.keras.Model, flags: ModelFlags,
                         image_shape: Optional[ImageShape]) -> None:
  """Loads the weights that `--weights` names into the model, in Keras's session.

  With `imagenet`, the last layer keeps its random weights. With a path, a layer gets the weights of
  the saved layer that has the same name and shapes. The other layers keep their random weights, and
  a log line names them. If fewer than half of the layers match, at least one of the matching layers
  must have a name that the user has chosen.

  Args:
    image_shape: (height, width, channels); None if the examples are not images.

  Raises:
    UserError: the file does not exist, or the weights of no layer fit the model.
  """
  expected = flags.imagenet_preprocess
  if expected not in (None, flags.chosen_preprocess):
    _LOG.warning('--preprocess=%s, but the ImageNet weights of %s were trained with '
                 '--preprocess=%s, which is the default', flags.preprocess, flags.model, expected)
  if flags.weights == 'imagenet':
    values = networks.imagenet_weights(flags.model, image_shape)
    model.set_weights(values + model.get_weights()[len(values):])
    return
  path = flags.weights
  try:
    if os.path.isfile(path):
      _load_h5(model, path)
    else:
      _load_matching_layers(model, model.get_weights(), path, {}, _read_checkpoint(
          path, {weight.op.name for weight in model.weights}))
  except (ValueError, KeyError, OSError, tf.errors.OpError) as error:
    raise UserError('the weights do not fit the model', '--weights={} ({})'.format(path, error),
                    'give weights of this --model, or of layers that are given the same names '
                    'and shapes') from error


def _read_checkpoint(path: str, names: Set[str]) -> Dict[str, Any]:
  """Returns the values of variables of a checkpoint, a SavedModel or a run, by name.

  Another process may be training in the folder of the run, and may delete checkpoints.
  """
  def find_checkpoint() -> Optional[str]:
    if os.path.isfile(os.path.join(path, 'saved_model.pb')):
      return os.path.join(path, 'variables', 'variables')
    return finding.find_latest_checkpoint(path) if os.path.isdir(path) else path

  with contextlib.ExitStack() as stack:
    paths = pin_current_checkpoint(find_checkpoint, stack)
    values = None if paths is None else saved_weights.read_variables(paths[1], names)
  if values is None:
    raise UserError('there are no weights at this path', '--weights=' + path,
                    'give an .h5 file, a SavedModel, a checkpoint, or the --model_dir of a run')
  return values


def _load_h5(model: tf.keras.Model, path: str) -> None:
  """Loads the weights in an .h5 file in the order of the layers or, if they do not fit, by names.

  Raises:
    UserError: the file refers to other files.
    ValueError: the file is damaged, or does not fit the model.
  """
  try:
    with h5py.File(path, 'r') as file:
      _load_open_h5(model, path, file)
  except (UserError, ValueError):
    raise
  except Exception as error:  # h5py raises many kinds of exceptions for damaged files.
    raise ValueError('{}: {}'.format(type(error).__name__, error)) from error


def _load_open_h5(model: tf.keras.Model, path: str, file: 'h5py.File') -> None:
  if _refers_to_other_files('', file) or file.visititems(_refers_to_other_files):
    raise UserError('a weights file must not refer to other files', '--weights=' + path,
                    'give a file that contains all weights; check where this file comes from')
  initial_values, group = model.get_weights(), file.get('model_weights', file)
  with contextlib.suppress(ValueError):
    model.load_weights(path)
    # Keras raises no error if it assigns arrays of other shapes to the variables.
    if [value.shape for value in model.get_weights()] == [
        value.shape for value in initial_values]:
      return
  saved_by_variable: Dict[str, Any] = {}
  group.visititems(lambda name, item: saved_by_variable.update(
      {name.partition('/')[2].partition(':')[0]: item} if isinstance(item, h5py.Dataset) else {}))
  _load_matching_layers(model, initial_values, path, {
      name: [layer[weight.decode('utf-8')] for weight in layer.attrs.get('weight_names', ())]
      for name, layer in group.items()}, saved_by_variable)


def _load_matching_layers(model: tf.keras.Model, initial_values: Sequence[Any], path: str,
                          saved_by_layer: Mapping[str, Sequence[Any]],
                          saved_by_variable: Mapping[str, Any]) -> None:
  """Loads the weights of all layers that have the name and the shapes of a saved layer.

  A layer inside another layer counts as a separate layer.

  Args:
    initial_values: the values for the weights of all other layers.
    saved_by_layer: the saved arrays, or `h5py.Dataset`s, by the names of the layers.
    saved_by_variable: the saved arrays, or `h5py.Dataset`s, by the names of the variables.

  Raises:
    ValueError: no layer matches, or only a few layers, whose names may match by chance.
  """
  owner_layers = {id(weight): layer for layer in nested_layers(model) for weight in layer.weights}
  values = dict(zip(map(id, model.weights), initial_values))
  loaded: List[tf.keras.layers.Layer] = []
  unmatched: List[str] = []
  for layer in dict.fromkeys(owner_layers.values()):
    weights = [weight for weight in layer.weights if owner_layers[id(weight)] is layer]
    for saved in (saved_by_layer.get(layer.name, ()),
                  [saved_by_variable.get(weight.op.name) for weight in weights]):
      if [getattr(value, 'shape', None) for value in saved] == [
          tuple(weight.shape.as_list()) for weight in weights]:
        values.update(zip(map(id, weights), saved))
        loaded.append(layer)
        break
    else:
      unmatched.append(layer.name)
  if not loaded:
    raise ValueError('no layer of the model has the name and the shapes of a saved layer')
  # Keras names a layer after its class, such as `dense_1`.
  if len(loaded) < len(unmatched) and all(
      re.sub(r'_\d+$', '', layer.name).replace('_', '')
      == type(layer).__name__.replace('_', '').lower() for layer in loaded):
    raise ValueError(
        'only {} of {} layers have the name and the shapes of a saved layer, perhaps by chance, as '
        'Keras has numbered them: {}'.format(len(loaded), len(loaded) + len(unmatched),
                                             join_items([layer.name for layer in loaded])))
  tf.keras.backend.batch_set_value([(weight, values[id(weight)]) for weight in model.weights])
  if unmatched:
    _LOG.info('%s has weights for %d of %d layers; these start from random weights, because their '
              'names or shapes are not in the file: %s', path, len(loaded),
              len(loaded) + len(unmatched), join_items(unmatched))


def _refers_to_other_files(unused_name: str,
                           item: 'Union[h5py.Group, h5py.Dataset]') -> Optional[bool]:
  """Returns True if HDF5 would read the weights of an item from another file, otherwise None.

  By such an item, a weights file from an untrusted source could copy a private file into the model.
  """
  if isinstance(item, h5py.Dataset):
    return bool(item.external or item.is_virtual) or None  # visititems continues only on None.
  return any(isinstance(item.get(name, getlink=True), h5py.ExternalLink) for name in item) or None
