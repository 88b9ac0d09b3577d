"""Implements `estimator_train.convert`, which replaces Keras's model_to_estimator."""

import logging
import os
import tempfile
from typing import Any, Iterable, Mapping, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding, repairing
from estimator_train.distribution.devices import find_devices, make_local_strategy
from estimator_train.errors import InvalidValue
from estimator_train.model import estimator, initial_weights
from estimator_train.model.estimator import ExportOutputs, ModelFn
from estimator_train.model.own_graph import CompiledGraph, ImportedModel
from estimator_train.settings.flags import MULTI_WORKER_STRATEGIES, DeviceFlags
from estimator_train.tf_patches import (
  estimator as estimator_patches,
  keras as keras_patches,
  strategies,
)

_LOG = logging.getLogger('estimator_train')
# Whether tf.train.Checkpoint can read the checkpoints, by `checkpoint_format`.
_IS_OBJECT_BASED = {'saver': False, 'checkpoint': True, None: True}


def convert(keras_model: Optional[tf.keras.Model], keras_model_path: Optional[str],
            custom_objects: Optional[Mapping[str, Any]], model_dir: Optional[str],
            config: Optional[tf.estimator.RunConfig], checkpoint_format: Optional[str],
            export_outputs: Optional[ExportOutputs], seed: Optional[int],
            devices: Optional[DeviceFlags]) -> tf.estimator.Estimator:
  """Converts a compiled model to an Estimator; see `estimator_train.convert` for the arguments.

  Args:
    devices: the device flags; None if `config` determines the devices.
  """
  if checkpoint_format not in _IS_OBJECT_BASED:
    raise InvalidValue('checkpoint_format must be one of "checkpoint" or "saver"',
                       repr(checkpoint_format), 'omit it for "saver"')
  config = _adapt_config(config, model_dir, seed, devices)
  model = _load_model(keras_model, keras_model_path, custom_objects)
  is_object_based = _IS_OBJECT_BASED[checkpoint_format]
  _check_compiled(model, export_outputs or ())
  keras_patches.ensure_session(model, config.session_config)
  with estimator.translate_model_errors():
    compiled_graph = CompiledGraph(model)
    if config.is_chief:
      repairing.replace_paths_of_other_folders(config.model_dir)
    checkpoint = finding.find_latest_checkpoint(config.model_dir)
    if not compiled_graph.is_built_late:
      names = compiled_graph.weight_names
      if checkpoint is None:
        initial_weights.save_initial_weights(
            config, names, compiled_graph.weight_values(config.tf_random_seed))
        if is_object_based:
          _save_object_based_weights(compiled_graph, config)
      elif not is_object_based:
        _check_fits_checkpoint(model, names, checkpoint)
  return estimator.to_estimator(ModelFn(
      compiled_graph, is_object_based=is_object_based, export_outputs=export_outputs), config)


def _adapt_config(config: Optional[tf.estimator.RunConfig], model_dir: Optional[str],
                  seed: Optional[int],
                  devices: Optional[DeviceFlags]) -> tf.estimator.RunConfig:
  """Completes the configuration by the other arguments, and removes `eval_distribute`.

  Raises:
    InvalidValue: `devices` is given, but the configuration already has a strategy.
    ValueError: `model_dir` differs from the model_dir of the configuration.
  """
  config = estimator_patches.complete_config(config, model_dir)
  if seed is not None:
    config = config.replace(tf_random_seed=seed)
  if config.eval_distribute is not None:
    _LOG.warning('evaluating on one device: with eval_distribute, TensorFlow 1.15 loses examples')
    config = config.replace(eval_distribute=None)
  if devices is None:
    strategies.patch_aggregating_variables()  # The user's strategy may be a CentralStorageStrategy.
    strategies.patch_hierarchical_copy()
    return config
  if config.train_distribute is not None:
    raise InvalidValue('distribution_strategy, num_gpus and num_cpu_replicas must not be given '
                       'if config has train_distribute', repr(config.train_distribute),
                       'omit config.train_distribute or all of these arguments')
  if devices.distribution_strategy in MULTI_WORKER_STRATEGIES:
    raise InvalidValue('distribution_strategy must be one for a single process',
                       devices.distribution_strategy,
                       'give a strategy of TensorFlow as train_distribute of config')
  training_devices = find_devices(devices)
  session_config = tf.ConfigProto()
  session_config.CopyFrom(config.session_config)
  if not training_devices.are_gpus and not session_config.device_count:
    session_config.device_count['CPU'] = training_devices.num_replicas
  return config.replace(
      train_distribute=make_local_strategy(devices, training_devices, session_config),
      session_config=session_config)


def _load_model(model: Optional[tf.keras.Model], path: Optional[str],
                custom_objects: Optional[Mapping[str, Any]]) -> tf.keras.Model:
  """Returns the given model, or loads the model at the path. Exactly one must be given."""
  if model is not None:
    if path:
      raise InvalidValue('keras_model or keras_model_path must be given, but not both', repr(path),
                         'give model_dir={!r} if this is the folder for checkpoints'.format(path))
    return model
  if not path:
    raise InvalidValue('Either keras_model or keras_model_path must be given', 'neither',
                       'give a compiled tf.keras.Model, or the path of an .h5 file')
  with tempfile.TemporaryDirectory() as folder:
    path = os.fspath(path)
    if '://' in path:  # HDF5 cannot read URLs such as gs://bucket/model.h5.
      local_path = os.path.join(folder, 'model.h5')
      tf.gfile.Copy(path, local_path)
      path = local_path
    return tf.keras.models.load_model(path, custom_objects)


def _check_compiled(model: Any, export_outputs: Iterable[str]) -> None:
  """Raises an InvalidValue unless the model is compiled and has outputs of these names."""
  if not isinstance(model, tf.keras.Model):
    raise InvalidValue('keras_model must be a tf.keras.Model', type(model).__name__,
                       'give a model of tf.keras; models of the separate package `keras` differ')
  if not model.optimizer:
    raise InvalidValue('the model has not been compiled', repr(model.name),
                       'call model.compile(optimizer, loss) first')
  # A subclass of tf.keras.Model has no output names before its first call.
  names = getattr(model, 'output_names', None) or ()
  for name in export_outputs:
    if names and name not in names:
      raise InvalidValue('export_outputs must contain names of outputs of the model', repr(name),
                         'choose from ' + ', '.join(names))


def _save_object_based_weights(compiled_graph: CompiledGraph,
                               config: tf.estimator.RunConfig) -> None:
  """Saves the initial weights for tf.train.Checkpoint. Exports of an untrained model use them."""
  with tf.Graph().as_default(), tf.Session(config=config.session_config) as session:
    tf.train.create_global_step()
    imported_model = ImportedModel(compiled_graph,
                                   compiled_graph.subgraph_of_mode(tf.estimator.ModeKeys.PREDICT),
                                   initial_weights.initial_weights_path(config.model_dir))
    saver = estimator_patches.make_object_saver(
        compiled_graph.model, imported_model.variables_by_original, config)
    session.run(tf.global_variables_initializer())
    path = initial_weights.initial_weights_path(config.model_dir, is_object_based=True)
    saver.save(session, path, write_meta_graph=False, write_state=False)


def _check_fits_checkpoint(model: tf.keras.Model, names: Sequence[str], checkpoint: str) -> None:
  """Raises an InvalidValue if a weight is missing in the checkpoint or has another shape there."""
  saved_shapes = dict(tf.train.list_variables(checkpoint))
  for name, weight in zip(names, model.weights):
    shape = weight.shape.as_list()
    if saved_shapes.get(name) != shape:
      raise InvalidValue(
          'model_dir has a checkpoint of another model',
          '{} has {}'.format(
              checkpoint, 'no variable {}'.format(name) if name not in saved_shapes else
              '{} of shape {}, not {}'.format(name, saved_shapes[name], shape)),
          'give another model_dir; if one process built the same model twice, give names to the '
          'layers')
