"""Saves the trained model as a Keras .h5 file, for use without Estimators."""

import contextlib
import logging
import os
from typing import Optional

from estimator_train.datasets.description import DataSet
from estimator_train.exporting import portable_h5, tflite, trained_model
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, user_code
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.optimizers import make_optimizer

H5_FILE = 'model.h5'
# The exceptions that Keras raises for a model with a layer that it cannot serialize.
SERIALIZATION_ERRORS = (TypeError, ValueError, NotImplementedError, RuntimeError)
_LOG = logging.getLogger('estimator_train')


def save_latest_model(settings: Settings, dataset: DataSet) -> Optional[str]:
  """Saves the model with the weights of the latest checkpoint to `model.h5` in `--model_dir`.

  Args:
    settings: the settings of the run that trained the model.
    dataset: the data set, for the shapes of the model.

  Returns:
    The path of the file, or None if Keras cannot serialize the user's model.
  """
  run_dir = RunDir(settings.model_dir)
  checkpoint, _ = save_hook.latest_checkpoint_and_step(run_dir.path)
  assert checkpoint is not None
  path = run_dir.path_to(H5_FILE)
  temporary_path = path + '.part'
  try:
    write_h5(temporary_path, settings, dataset, checkpoint)
    os.replace(temporary_path, path)
  except SERIALIZATION_ERRORS as error:
    if not user_code.is_function_name(settings.model):
      raise
    _LOG.warning('%s is not written, because Keras cannot serialize a layer of --model=%s: %s',
                 H5_FILE, settings.model, error)
    return None
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(temporary_path)
  return path


def write_h5(path: str, settings: Settings, dataset: DataSet, checkpoint: str) -> None:
  """Writes the model with the weights of a checkpoint to an HDF5 file.

  `load_model` of TensorFlow 1.15, tf_keras and Keras 3 loads the file as a model that is compiled
  for `evaluate`. A warning is logged if Keras 3 cannot load it.
  """
  with trained_model.restored_model(settings, dataset, checkpoint) as (model, _):
    # The file contains SGD instead of the optimizer of the training, because Keras may need this
    # package to load that optimizer.
    model.compile(make_optimizer('sgd', settings.learning_rate),
                  loss=portable_h5.full_loss_names(model.loss),
                  metrics=['accuracy'] if dataset.labels else None,
                  loss_weights=model.loss_weights)
    is_loadable = not tflite.has_feature_columns(model)
    model.save(path, save_format='h5')
  reason = portable_h5.make_portable(path)
  if not is_loadable:
    _LOG.warning('no Keras can load %s, because of its layer DenseFeatures: use a SavedModel',
                 H5_FILE)
  elif reason:
    _LOG.warning('Keras 3 cannot load %s: %s', H5_FILE, reason)
