"""`--mode=export`: exports a checkpoint of a model_dir for serving; it needs none of the data."""

from typing import Any, Dict

import tensorflow.compat.v1 as tf

from estimator_train import model_dir
from estimator_train.datasets import registry as datasets
from estimator_train.errors import UserError
from estimator_train.exporting import export as exports
from estimator_train.settings import Settings
from estimator_train.training import checkpoints
from estimator_train.training.estimator import build_model, check_fits

_BAKED_IN = ('image_size',)  # What the checkpoint itself may not tell from another value.


def run(settings: Settings) -> Dict[str, Any]:
  """Returns the result: the exported version, and of which checkpoint it is.

  Raises:
    UserError: there is no checkpoint, or it is of another model; or it cannot be exported.
  """
  assert settings.model_dir is not None
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  checkpoint, step = checkpoints.latest(settings.model_dir)
  if checkpoint is None:
    raise UserError('there is no checkpoint to export', '--model_dir=' + settings.model_dir,
                    'train first, or give the folder of a run that has')
  dataset = datasets.describe_classes(settings)
  model_dir.check_labels(settings.model_dir, dataset.labels)
  model_dir.check_flags(settings, [name for name in settings._fields if name not in _BAKED_IN])
  with tf.Graph().as_default():
    check_fits(build_model(settings, dataset), settings, checkpoint, step,
               model_dir.read_flags(settings.model_dir))
  exports.make_folder(settings)
  return dict(mode=settings.mode, model_dir=settings.model_dir,
              **exports.export(settings, dataset, checkpoint))
