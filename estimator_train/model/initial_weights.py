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


def initial_weights_path(model_dir: str, object_based: bool = False) -> str:
  """Returns the path of the initial weights, which is that of Keras's model_to_estimator.

  Those that the saver of object-based checkpoints can restore are in another file.
  """
  return os.path.join(model_dir, 'keras',
                      'object_based.ckpt' if object_based else 'keras_model.ckpt')


def save_initial_weights(config: tf.estimator.RunConfig, names: Sequence[str],
                         values: Sequence[np.ndarray]) -> None:
  """Saves the initial weights of a model.

  Existing ones are overwritten. Keras's model_to_estimator would start from those of an earlier
  model (tensorflow_estimator/python/estimator/keras.py:370).

  Args:
    config: the configuration of the Estimator. In a cluster, the chief always writes the weights;
      another task writes the weights only if there is no file yet.
    names: the names of the weights in checkpoints. A weight that two models share can occur twice.
    values: the values.
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
  """Loads the weights given by `--weights` into the model, in Keras's session.

  With a path, the weights of each layer are loaded whose name and shapes are those of a saved
  layer; the other layers keep their random weights, and a log line names these layers. With
  `imagenet`, the last layer keeps its random weights. If fewer than half of the layers match, at
  least one of these must have a name that the user has chosen.

  Args:
    image_shape: (height, width, channels) of the images; None: the examples are not images.

  Raises:
    UserError: the file does not exist, or the weights of no layer fit the model.
  """
  if flags.weights == 'imagenet':
    values = networks.imagenet_weights(flags.model, image_shape)
    model.set_weights(values + model.get_weights()[len(values):])
    return
  path = flags.weights
  try:
    if os.path.isfile(path):
      _load_h5(model, path)
    else:
      _load_matching(model, model.get_weights(), path, {}, _read_checkpoint(
          path, {weight.op.name for weight in model.weights}))
  except (ValueError, KeyError, OSError, tf.errors.OpError) as error:
    raise UserError('the weights do not fit the model', '--weights={} ({})'.format(path, error),
                    'give weights of this --model, or of layers that are given the same names '
                    'and shapes') from error


def _read_checkpoint(path: str, names: Set[str]) -> Dict[str, Any]:
  """Returns the values of variables by name: of a checkpoint, a SavedModel or a run.

  Another process may be training in the folder of the run, and may delete checkpoints.
  """
  def find() -> Optional[str]:
    if os.path.isfile(os.path.join(path, 'saved_model.pb')):
      return os.path.join(path, 'variables', 'variables')
    return finding.latest_checkpoint(path) if os.path.isdir(path) else path

  with contextlib.ExitStack() as stack:
    found = pin_current_checkpoint(find, stack)
    values = None if found is None else saved_weights.read_variables(found[1], names)
  if values is None:
    raise UserError('there are no weights at this path', '--weights=' + path,
                    'give an .h5 file, a SavedModel, a checkpoint, or the --model_dir of a run')
  return values


def _load_h5(model: tf.keras.Model, path: str) -> None:
  """Loads an .h5 file: in the order of the layers if all shapes fit, otherwise by names.

  Raises:
    UserError: the file refers to other files.
    ValueError: the file is damaged, or does not fit the model.
  """
  try:
    _read_h5(model, path)
  except (UserError, ValueError):
    raise
  except Exception as error:  # h5py raises many kinds of exceptions for damaged files.
    raise ValueError('{}: {}'.format(type(error).__name__, error)) from error


def _read_h5(model: tf.keras.Model, path: str) -> None:
  with h5py.File(path, 'r') as file:
    if _refers_to_other_files('', file) or file.visititems(_refers_to_other_files):
      raise UserError('a weights file must not refer to other files', '--weights=' + path,
                      'give a file that contains all weights; check where this file comes from')
    initial_values, group = model.get_weights(), file.get('model_weights', file)
    with contextlib.suppress(ValueError):
      model.load_weights(path)
      # Keras assigns arrays of other shapes to the variables without an error.
      if [value.shape for value in model.get_weights()] == [
          value.shape for value in initial_values]:
        return
    by_variable: Dict[str, Any] = {}
    group.visititems(lambda name, item: by_variable.update(
        {name.partition('/')[2].partition(':')[0]: item} if isinstance(item, h5py.Dataset) else {}))
    _load_matching(model, initial_values, path, {
        name: [layer[weight.decode('utf-8')] for weight in layer.attrs.get('weight_names', ())]
        for name, layer in group.items()}, by_variable)


def _load_matching(model: tf.keras.Model, initial_values: Sequence[Any], path: str,
                   by_layer: Mapping[str, Sequence[Any]], by_variable: Mapping[str, Any]) -> None:
  """Loads the weights of all layers that have the name and the shapes of a saved layer.

  A layer inside another layer counts as a layer of its own.

  Args:
    initial_values: the values that the weights of the other layers get.
    path: the path of the saved weights.
    by_layer: the saved arrays, or `h5py.Dataset`s, by the name of the layer.
    by_variable: the saved arrays, by the name of the variable.

  Raises:
    ValueError: there is no such layer, or only few layers, with names that can match by chance.
  """
  owners = {id(weight): layer for layer in nested_layers(model) for weight in layer.weights}
  values = dict(zip(map(id, model.weights), initial_values))
  loaded: List[tf.keras.layers.Layer] = []
  others: List[str] = []
  for layer in dict.fromkeys(owners.values()):
    weights = [weight for weight in layer.weights if owners[id(weight)] is layer]
    for saved in (by_layer.get(layer.name, ()),
                  [by_variable.get(weight.op.name) for weight in weights]):
      if [getattr(value, 'shape', None) for value in saved] == [
          tuple(weight.shape.as_list()) for weight in weights]:
        values.update(zip(map(id, weights), saved))
        loaded.append(layer)
        break
    else:
      others.append(layer.name)
  if not loaded:
    raise ValueError('no layer of the model has the name and the shapes of a saved layer')
  # Keras names a layer by its class, such as `dense_1`.
  if len(loaded) < len(others) and all(
      re.sub(r'_\d+$', '', layer.name).replace('_', '')
      == type(layer).__name__.replace('_', '').lower() for layer in loaded):
    raise ValueError(
        'only {} of {} layers have the name and the shapes of a saved layer, perhaps by chance, as '
        'Keras has numbered them: {}'.format(len(loaded), len(loaded) + len(others),
                                             join_items([layer.name for layer in loaded])))
  tf.keras.backend.batch_set_value([(weight, values[id(weight)]) for weight in model.weights])
  if others:
    _LOG.info('%s has weights for %d of %d layers; these start from random weights, because their '
              'names or shapes are not in the file: %s', path, len(loaded),
              len(loaded) + len(others), join_items(others))


def _refers_to_other_files(unused_name: str,
                           item: Union[h5py.Group, h5py.Dataset]) -> Optional[bool]:
  """Returns True if HDF5 would read the weights of an item from another file, else None.

  A weights file from an untrusted source could use such an item to copy a private file into the
  model.
  """
  if isinstance(item, h5py.Dataset):
    return bool(item.external or item.is_virtual) or None  # visititems continues only on None.
  return any(isinstance(item.get(name, getlink=True), h5py.ExternalLink) for name in item) or None
