"""Exports a checkpoint in the format of `--export_format`."""

import os
from typing import Any, Dict, List

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.exporting import (
  h5_model,
  onnx_model,
  random_examples,
  saved_model,
  tflite,
  trained_model,
  versions,
)
from estimator_train.run_dir import run_files
from estimator_train.settings import Settings, groups
from estimator_train.training.building import make_model_preprocess
from estimator_train.training.checkpoints import save_hook

_FORMATS = ('saved_model', 'h5', 'tflite', 'onnx')


def make_export_dir(settings: groups.PredictionAndExport) -> None:
  """Makes the folder `--export_dir`, if given; called before the training, to find errors early."""
  if settings.export_dir:
    run_files.make_folder(settings.export_dir, 'export_dir')


def export_checkpoint(settings: Settings, dataset: DataSet, checkpoint: str) -> Dict[str, Any]:
  """Exports a checkpoint as a new version in `--export_dir`.

  Args:
    settings: the settings of the run that trained the model.
    dataset: the data set, for the shapes and class names of the model.
    checkpoint: the path of the checkpoint.

  Returns:
    A dict with the `path` of the version, the `format`, the `signatures` (SavedModel only), the
    names of the `inputs` and `outputs` (ONNX only), the `checkpoint` and the `global_step` of the
    checkpoint.

  Raises:
    UserError: the model cannot be exported to this format, or the folder cannot be written to.
    ValueError: the format is unknown.
  """
  assert settings.export_dir is not None
  if settings.export_format not in _FORMATS:
    raise ValueError('no export is implemented for {!r}'.format(settings.export_format))

  names: Dict[str, List[str]] = {}

  def write_files(folder: str) -> None:
    if settings.export_format == 'h5':
      _export_h5(folder, settings, dataset, checkpoint)
    else:
      with trained_model.restored_model(settings, dataset, checkpoint) as (model, session):
        if settings.export_format == 'saved_model':
          names['signatures'] = _export_saved_model(folder, settings, dataset, model, session)
          return
        if settings.export_format == 'onnx':
          names.update(_export_onnx(folder, settings, dataset, model, session))
        else:
          tflite.write_tflite(folder, model, session, bool(dataset.labels))
    if dataset.labels:
      saved_model.write_class_names(os.path.join(folder, run_files.LABELS_FILE), dataset.labels)

  path = versions.write_version(settings.export_dir, write_files)
  return dict({'path': path, 'format': settings.export_format}, **names, checkpoint=checkpoint,
              global_step=int(tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP)))


def _export_saved_model(folder: str, settings: Settings, dataset: DataSet, model: tf.keras.Model,
                        session: tf.Session) -> List[str]:
  """Writes the SavedModel to the folder, and returns the names of its signatures."""
  if dataset.image_shape is None:
    return saved_model.write_example_model(folder, model, session, dataset.labels)
  preprocess = make_model_preprocess(model, settings[groups.Model], dataset)
  saved_model.write_image_model(folder, model, session, preprocess, dataset.labels)
  return [saved_model.DEFAULT_SIGNATURE, saved_model.IMAGES_SIGNATURE]


def _export_onnx(folder: str, settings: Settings, dataset: DataSet, model: tf.keras.Model,
                 session: tf.Session) -> Dict[str, List[str]]:
  """Writes and verifies the ONNX model, and returns the names of its inputs and outputs."""
  inputs = random_examples.named_inputs(model, dataset)
  outputs = random_examples.named_outputs(model, dataset)
  onnx_model.write_onnx(folder, session, inputs, outputs, dataset.labels, settings.verbosity)
  onnx_model.verify_onnx(folder, random_examples.RandomExamples(
      model, session, dataset, make_model_preprocess(model, settings[groups.Model], dataset)))
  return {'inputs': list(inputs), 'outputs': list(outputs)}


def export_latest(settings: Settings, dataset: DataSet) -> Dict[str, Any]:
  """Exports the latest checkpoint after the training, see export_checkpoint."""
  checkpoint, _ = save_hook.latest_checkpoint_and_step(run_files.RunDir(settings.model_dir).path)
  assert checkpoint is not None
  return export_checkpoint(settings, dataset, checkpoint)


def _export_h5(folder: str, settings: Settings, dataset: DataSet, checkpoint: str) -> None:
  """Writes the .h5 file to the folder; raises a UserError if Keras cannot serialize the model."""
  try:
    path = os.path.join(folder, h5_model.H5_FILE)
    h5_model.write_h5(path, settings, dataset, checkpoint)
  except h5_model.SERIALIZATION_ERRORS as error:
    raise UserError('the model cannot be saved as an .h5 file',
                    '--model={} ({})'.format(settings.model, error),
                    'implement get_config in its layers, or give --export_format=saved_model'
                    ) from error
