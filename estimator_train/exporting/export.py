"""Exports a checkpoint, in the format that is asked for."""

import os
from typing import Any, Dict

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.exporting import saved_model, template_model, tflite, trained_model, versions
from estimator_train.run_dir import run_files
from estimator_train.settings import Settings, groups
from estimator_train.training.building import make_model_preprocess
from estimator_train.training.checkpoints import save_hook

_FORMATS = ('saved_model', 'h5', 'tflite')


def make_folder(settings: groups.PredictionAndExport) -> None:
  """Makes `--export_dir`, where it is given: at the end of a training it would be late to fail."""
  if settings.export_dir:
    run_files.make_folder(settings.export_dir, 'export_dir')


def export(settings: Settings, dataset: DataSet, checkpoint: str) -> Dict[str, Any]:
  """Exports a checkpoint as a new version in `--export_dir`.

  Args:
    settings: of the run that trained.
    dataset: gives the model its shapes and labels.
    checkpoint: the path.

  Returns:
    `path` of the version, `format`, `signatures` (of a SavedModel), `checkpoint` and its
    `global_step`.

  Raises:
    UserError: the model cannot be exported to this format, or the folder cannot be written to.
    ValueError: there is no such format.
  """
  assert settings.export_dir is not None
  if settings.export_format not in _FORMATS:
    raise ValueError('no export is implemented for {!r}'.format(settings.export_format))

  def fill(folder: str) -> None:
    if settings.export_format == 'h5':
      _write_h5(folder, settings, dataset, checkpoint)
    else:
      with trained_model.restored(settings, dataset, checkpoint) as (model, session):
        if settings.export_format == 'saved_model':
          preprocess = make_model_preprocess(model, settings[groups.Model])
          saved_model.write(folder, model, session, preprocess, dataset.labels)
          return
        tflite.write(folder, model, session)
    saved_model.write_labels(os.path.join(folder, run_files.LABELS_FILE), dataset.labels)

  path = versions.write(settings.export_dir, fill)
  result: Dict[str, Any] = {'path': path, 'format': settings.export_format}
  if settings.export_format == 'saved_model':
    result['signatures'] = [saved_model.BYTES, saved_model.TENSOR]
  return dict(result, checkpoint=checkpoint, global_step=int(
      tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP)))


def export_latest(settings: Settings, dataset: DataSet) -> Dict[str, Any]:
  """Exports the latest checkpoint, at the end of a training."""
  checkpoint, _ = save_hook.latest(run_files.RunDir(settings.model_dir).path)
  assert checkpoint is not None
  return export(settings, dataset, checkpoint)


def _write_h5(folder: str, settings: Settings, dataset: DataSet, checkpoint: str) -> None:
  try:
    template_model.write(os.path.join(folder, template_model.FILE), settings, dataset, checkpoint)
  except template_model.CANNOT_DESCRIBE as error:
    raise UserError('the model cannot be saved as an .h5 file',
                    '--model={} ({})'.format(settings.model, error),
                    'give its layers a get_config of plain values, or --export_format=saved_model'
                    ) from error
