"""The single Keras model with a checkpoint's weights, for use without Estimators."""

import contextlib
import logging
import os
from typing import Optional

from estimator_train.datasets.description import DataSet
from estimator_train.exporting import trained_model
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, user_code
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.optimizers import make_optimizer

FILE = 'model.h5'
# What Keras raises of a model whose layers have no description of plain values.
CANNOT_DESCRIBE = (TypeError, ValueError, NotImplementedError, RuntimeError)
_LOG = logging.getLogger('estimator_train')


def save(settings: Settings, dataset: DataSet) -> Optional[str]:
  """Writes the latest checkpoint's weights to `model.h5` in `--model_dir`.

  Args:
    settings: of the run that trained.
    dataset: gives the model its shapes.

  Returns:
    The file's path; None where Keras cannot save a model of the user's.
  """
  run_dir = RunDir(settings.model_dir)
  checkpoint, _ = save_hook.latest(run_dir.path)
  assert checkpoint is not None
  path = run_dir.file(FILE)
  aside = path + '.part'
  try:
    write(aside, settings, dataset, checkpoint)
    os.replace(aside, path)
  except CANNOT_DESCRIBE as error:
    if not user_code.is_own(settings.model):
      raise
    _LOG.warning('%s is not written, as Keras cannot describe a layer of --model=%s: %s', FILE,
                 settings.model, error)
    return None
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(aside)
  return path


def write(path: str, settings: Settings, dataset: DataSet, checkpoint: str) -> None:
  """Writes the model, with the weights of this checkpoint, to an HDF5 file.

  `tf.keras.models.load_model` loads it, compiled for `evaluate`.
  """
  with trained_model.restored(settings, dataset, checkpoint) as (model, _):
    # The optimizer of the training may be one that plain Keras does not know.
    model.compile(make_optimizer('sgd', settings.learning_rate), metrics=['accuracy'],
                  loss=model.loss)
    model.save(path, save_format='h5')
