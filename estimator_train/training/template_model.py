"""`model.h5`: the trained weights in the single Keras model, for use without Estimators."""

import os

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.settings import Settings
from estimator_train.training import checkpoints
from estimator_train.training.estimator import build_model
from estimator_train.training.optimizers import make_optimizer

FILE = 'model.h5'


def save(settings: Settings, dataset: DataSet) -> str:
  """Writes the latest checkpoint's weights to `model.h5`.

  `tf.keras.models.load_model` loads it, compiled for `evaluate`.

  Args:
    settings: of the run that trained.
    dataset: gives the model its shapes.

  Returns:
    The file's path.
  """
  assert settings.model_dir is not None
  checkpoint, _ = checkpoints.latest(settings.model_dir)
  path = os.path.join(settings.model_dir, FILE)
  aside = path + '.part'
  with tf.Graph().as_default(), tf.Session(
      config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    tf.keras.backend.set_session(session)
    model = build_model(settings, dataset)
    model.set_weights([tf.train.load_variable(checkpoint, weight.op.name)
                       for weight in model.weights])
    # The optimizer of the training may be one that plain Keras does not know.
    model.compile(make_optimizer('sgd', settings.learning_rate), metrics=['accuracy'],
                  loss=model.loss)
    model.save(aside, save_format='h5')
    tf.keras.backend.set_session(None)
  os.replace(aside, path)
  return path
