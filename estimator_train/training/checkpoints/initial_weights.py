"""Loads and saves the initial weights of a run."""

import logging
import os
from typing import Optional, Union

import h5py
import tensorflow.compat.v1 as tf

from estimator_train import models
from estimator_train.data.description import ImageShape
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, groups, user_code
from estimator_train.tf_patches import saved_weights
from estimator_train.tf_patches.model_copies import ModelCopier

_LOG = logging.getLogger('estimator_train')


def load_initial_weights(model: tf.keras.Model, settings: groups.Model,
                         image_shape: Optional[ImageShape]) -> None:
  """Loads the weights given by `--weights` into the model, in Keras's session.

  The weights in an Estimator's checkpoint are found by variable name. The last layer keeps its
  random weights if `--weights` is `imagenet`, or a file without weights for the last layer.

  Args:
    model: the model, with the same layers as the model whose weights were saved.
    settings: the model flags of the run.
    image_shape: (height, width, channels) of the images; None: the examples are not images.

  Raises:
    UserError: the file does not exist, or its weights do not fit the model.
  """
  if settings.weights == 'imagenet':
    values = models.imagenet_weights(settings.model, image_shape)
    model.set_weights(values + model.get_weights()[len(values):])
    return
  path = settings.weights
  checkpoint = tf.train.latest_checkpoint(path) if os.path.isdir(path) else path
  try:
    if os.path.isfile(path):
      _load_h5(model, path)
    elif checkpoint and tf.train.checkpoint_exists(checkpoint):
      model.set_weights([tf.train.load_variable(checkpoint, weight.op.name)
                         for weight in model.weights])
    else:
      raise UserError('there are no weights at this path', '--weights=' + path,
                      'give an .h5 file, a checkpoint, or the --model_dir of a run')
  except (ValueError, KeyError, OSError, tf.errors.OpError) as error:
    raise UserError('the weights do not fit the model',
                    '--weights={} ({})'.format(path, error),
                    'give weights of this --model') from error


def _load_h5(model: tf.keras.Model, path: str) -> None:
  """Loads an .h5 file with the weights of all layers, or of all layers except the last one."""
  with h5py.File(path, 'r') as file:
    if _refers_to_other_files('', file) or file.visititems(_refers_to_other_files):
      raise UserError('a weights file must not refer to other files', '--weights=' + path,
                      'give a file that contains all weights; check where this file comes from')
    group = file.get('model_weights', file)
    saved_layer_names = [
        name.decode('utf-8') for name in group.attrs.get('layer_names', ())
        if len(group[name].attrs['weight_names'])]
  layer_names = [layer.name for layer in model.layers if layer.weights]
  lacks_last_layer = bool(saved_layer_names) and saved_layer_names == layer_names[:-1]
  if lacks_last_layer:
    _LOG.info('%s has no weights for the layer %s, which is initialized randomly', path,
              layer_names[-1])
  model.load_weights(path, by_name=lacks_last_layer)


def _refers_to_other_files(unused_name: str,
                           item: Union[h5py.Group, h5py.Dataset]) -> Optional[bool]:
  """Returns True if HDF5 would read the weights of an item from another file, else None.

  A weights file from an untrusted source could use such an item to copy a private file into the
  model.
  """
  if isinstance(item, h5py.Dataset):
    return bool(item.external or item.is_virtual) or None  # visititems continues only on None.
  return any(isinstance(item.get(name, getlink=True), h5py.ExternalLink) for name in item) or None


def save_initial_weights(model: tf.keras.Model, copier: ModelCopier,
                         config: tf.estimator.RunConfig, settings: groups.Model,
                         has_given_weights: bool) -> None:
  """Saves the initial weights of a run.

  Args:
    model: the model.
    copier: copies the model.
    config: the configuration of the Estimator.
    settings: the model flags of the run.
    has_given_weights: whether the model has the weights that `--weights` gives; otherwise, random
      weights are saved.
  """
  if can_save_without_copy(settings):
    saved_weights.save_random_weights(model, config)
  else:
    saved_weights.save_initial_weights(
        copier, model.get_weights() if has_given_weights else None, config)


def can_save_without_copy(settings: groups.Model) -> bool:
  """Returns whether the random weights of the model itself equal those of a copy of the model.

  This is so for the networks of this package that are a tf.keras.Sequential. The default graph must
  have been prepared by saved_weights.start_graph.
  """
  return (settings.weights == 'none' and not user_code.is_function_name(settings.model)
          and not models.has_imagenet_weights(settings.model))


def warn_if_weights_differ(run_dir: RunDir, settings: Settings, step: int) -> None:
  """Warns if a run that resumes from `step` would begin with other weights than the previous run.
  """
  # The last layer has random weights unless all weights are given.
  names = ('model', 'weights', 'seed') if settings.model.weights in ('none', 'imagenet') else (
      'model', 'weights')
  differences = run_dir.flag_differences(settings, names)
  if differences:
    _LOG.warning('resuming from the checkpoint of step %d: the initial weights that the flags now '
                 'specify are ignored: %s', step, ', '.join(differences))
