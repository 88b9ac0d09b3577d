"""Saves the trained model and the best one as Keras .h5 files, for use without Estimators.

An .h5 file contains the weights and two JSON texts: the configuration of the model (`model_config`)
and the arguments of its `compile` (`training_config`). Both are rewritten so that Keras 3 can load
the file, too (see keras_3_config.py). If Keras 3 cannot load the model, or would compute other
outputs, the file stays as TensorFlow 1.15 writes it. tests/exporting/test_h5_files.py loads files
in TensorFlow 1.15, tf_keras and Keras 3.

An attribute contains the `--preprocess` of the model, so that a run that starts with a copy of the
file scales pixel values in the same way. Keras ignores the attribute.
"""

import contextlib
import filecmp
import json
import logging
import os
import shutil
from typing import Any, Dict, Iterator, List, Optional

import h5py
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint
from estimator_train.checkpoints.best_checkpoint import MODEL_FILE, BestCheckpoint
from estimator_train.checkpoints.pinned_files import ReadableCheckpoint, pin_verified_checkpoint
from estimator_train.distribution.devices import cpu_session
from estimator_train.errors import UserError, one_line
from estimator_train.exporting import keras_3_config
from estimator_train.exporting.restored_model import RestoredModel, TrainedModel
from estimator_train.model.optimizers import make_optimizer
from estimator_train.settings import PREPROCESS_ATTRIBUTE, user_code
from estimator_train.system import storage, temporary_files
from estimator_train.tf_patches.keras import prefetch_weights

H5_FILE = 'model.h5'
# The exceptions that Keras raises for a model with a layer that it cannot serialize.
_SERIALIZATION_ERRORS = (TypeError, ValueError, NotImplementedError, RuntimeError)
# The names of losses that Keras 3 does not find, and the names by which it finds the same losses.
_FULL_LOSS_NAMES = {
    'mse': 'mean_squared_error', 'mae': 'mean_absolute_error',
    'mape': 'mean_absolute_percentage_error', 'msle': 'mean_squared_logarithmic_error',
    'kld': 'KLDivergence', 'kullback_leibler_divergence': 'KLDivergence', 'logcosh': 'LogCosh',
    'huber_loss': 'Huber', 'cosine_proximity': 'cosine_similarity'}
_LOG = logging.getLogger('estimator_train')


def write_h5(folder: str, restored: RestoredModel) -> Dict[str, List[str]]:
  """Writes the .h5 file to the folder. Raises a UserError if Keras cannot serialize the model."""
  try:
    write_h5_file(os.path.join(folder, H5_FILE), restored)
  except _SERIALIZATION_ERRORS as error:
    raise UserError('the model cannot be saved as an .h5 file',
                    '--model={} ({})'.format(restored.settings.model.model, error),
                    'implement get_config in its layers, or give --export_format=saved_model'
                    ) from error
  return {}


def save_model(trained_model: TrainedModel) -> Optional[str]:
  """Saves the model with the weights of a checkpoint to `model.h5` in `--model_dir`.

  Returns:
    The path of the file, or None if Keras cannot serialize the user's model.
  """
  path = trained_model.run_dir.path_to(H5_FILE)
  with _make_temporary_file(path) as temporary_path:
    if not _write_unless_not_serializable(temporary_path, trained_model):
      return None
    storage.check_guards(path)
    os.replace(temporary_path, path)
  return path


def save_best_model(last_model: TrainedModel, last_model_file: Optional[str]) -> Optional[str]:
  """Saves the model of the best checkpoint to `best.h5` in `--model_dir`, unless the file exists.

  Args:
    last_model: the model of the last checkpoint.
    last_model_file: the return value of `save_model`. If the last checkpoint is the best one, the
      file is copied.

  Returns:
    The path of the file; None if there is no best checkpoint, or it cannot be saved.
  """
  model_dir = last_model.run_dir.path
  path, best = os.path.join(model_dir, MODEL_FILE), best_checkpoint.read_best(model_dir)
  if best is None:
    best_checkpoint.remove_model_file(model_dir)
    return None
  if os.path.exists(path):
    return path
  is_written = False
  with _make_temporary_file(path) as temporary_path:
    try:  # Another task may replace the best checkpoint at any time.
      is_written = _write_best_model(temporary_path, best, last_model, last_model_file)
    except (OSError, ValueError, UserError) as error:
      _LOG.warning('%s is not written, because %s cannot be restored: %s', MODEL_FILE, best.path,
                   one_line(str(error)))
    is_written = is_written and best_checkpoint.replace_model_file(
        temporary_path, best.path, model_dir)
  return path if is_written else None


def _write_best_model(path: str, best: BestCheckpoint, last_model: TrainedModel,
                      last_model_file: Optional[str]) -> bool:
  """Writes the model of the best checkpoint to a file; returns False if it is not serializable."""
  with contextlib.ExitStack() as stack:
    checkpoint = pin_verified_checkpoint(best.path, best.global_step, stack)
    if last_model_file is not None and _are_equal(checkpoint, last_model.checkpoint):
      shutil.copyfile(last_model_file, path)
      is_written = True
    else:
      is_written = _write_unless_not_serializable(path, last_model._replace(checkpoint=checkpoint))
  return is_written


@contextlib.contextmanager
def _make_temporary_file(path: str) -> Iterator[str]:
  """Yields a temporary path for a file that is then moved to `path`."""
  # The file cannot be locked, because h5py opens it by its name. Its temporary folder is locked
  # instead.
  with temporary_files.make_folder(path) as folder:
    yield os.path.join(folder, os.path.basename(path))


def _write_unless_not_serializable(path: str, trained_model: TrainedModel) -> bool:
  """Writes the model of a checkpoint to a file; returns False if Keras cannot serialize it."""
  try:
    with trained_model.restore() as restored:
      write_h5_file(path, restored)
  except _SERIALIZATION_ERRORS as error:
    model = trained_model.settings.model.model
    if not user_code.is_function_name(model):
      raise
    _LOG.warning('%s is not written, because Keras cannot serialize a layer of --model=%s: %s',
                 os.path.basename(path), model, error)
    return False
  return True


def _are_equal(checkpoint: ReadableCheckpoint, other: ReadableCheckpoint) -> bool:
  """Compares the index files of checkpoints, which contain checksums of the values."""
  return filecmp.cmp(checkpoint.readable_path + '.index', other.readable_path + '.index',
                     shallow=False)


def write_h5_file(path: str, restored: RestoredModel) -> None:
  """Writes the model to an HDF5 file.

  With `load_model`, TensorFlow 1.15, tf_keras and Keras 3 load the file as a model that is compiled
  for `evaluate`. If Keras 3 cannot load it, a warning is logged.
  """
  model = restored.keras_model
  # In the file, SGD replaces the optimizer of the training, which Keras may be unable to load
  # without this package.
  model.compile(make_optimizer('sgd', restored.settings.optimizer.learning_rate),
                loss=expand_loss_names(model.loss),
                metrics=['accuracy'] if restored.spec.labels else None,
                loss_weights=model.loss_weights)
  with prefetch_weights(model.weights):
    model.save(path, save_format='h5')
  if restored.image_shape is not None:
    with h5py.File(path, 'r+') as file:
      file.attrs[PREPROCESS_ATTRIBUTE] = restored.settings.model.chosen_preprocess
  reason = rewrite_for_keras_3(path)
  if reason:
    _LOG.warning('Keras 3 cannot load %s: %s', os.path.basename(path), reason)


def find_loading_error(path: str) -> Optional[str]:
  """Returns why TensorFlow 1.15 cannot load a file without `custom_objects`; None if it can.

  This package must have written the file, because loading it can run code that it contains.
  """
  with cpu_session():
    try:
      tf.keras.models.load_model(path, compile=False)  # noqa: TID251
    except Exception as error:  # Layers raise exceptions of any kind.
      return '{}: {}'.format(type(error).__name__, one_line(str(error)))
  return None


def expand_loss_names(loss: Any) -> Any:
  """Replaces the names in a loss, or in a list or dict of losses, by those that Keras 3 finds."""
  if isinstance(loss, (list, tuple)):
    return [expand_loss_names(item) for item in loss]
  if isinstance(loss, dict):
    return {name: expand_loss_names(item) for name, item in loss.items()}
  return _FULL_LOSS_NAMES.get(loss.lower(), loss) if isinstance(loss, str) else loss


def rewrite_for_keras_3(path: str) -> Optional[str]:
  """Rewrites the configurations in an .h5 file of TensorFlow 1.15 in place for Keras 3.

  The weights stay unchanged. `path` is a temporary name. The caller renames the file afterwards.

  Returns:
    None if the file was rewritten. If Keras 3 cannot load the model, the file stays unchanged, and
    the function returns the reason.
  """
  with h5py.File(path, 'r') as file:
    configs = {name: json.loads(file.attrs[name])
               for name in ('model_config', 'training_config') if name in file.attrs}
  try:
    configs['model_config'] = keras_3_config.rewrite_model_config(configs['model_config'])
  except keras_3_config.NotPortable as error:
    return str(error)
  except (AttributeError, IndexError, KeyError, TypeError) as error:
    # A user's class can have the name of a class of Keras, but another configuration.
    return 'the configuration of a layer is unknown ({!r})'.format(error)
  if 'training_config' in configs:
    configs['training_config'] = keras_3_config.rewrite_training_config(configs['training_config'])
  with h5py.File(path, 'r+') as file:
    for name, config in configs.items():
      file.attrs[name] = json.dumps(config).encode('utf-8')
  return None
