"""The Keras model with the weights of a checkpoint; neither data nor devices of its training."""

import contextlib
from typing import Callable, Iterator, NamedTuple, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import registry as datasets
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.devices import Devices, find_devices, make_session_config
from estimator_train.errors import UserError
from estimator_train.inputs.file_errors import translate_errors
from estimator_train.models import probabilities
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups
from estimator_train.training.building import build_model, check_fits, make_model_preprocess
from estimator_train.training.checkpoints import chosen_checkpoint

_CPU = Devices(('/cpu:0',), ('/cpu:0',))
# What the checkpoint itself may not tell from another value.
_MUST_BE_THE_SAME = ('image_size',)


class Found(NamedTuple):
  """The checkpoint that `--checkpoint` names.

  Attributes:
    dataset: the classes and the shape of an image; none of the examples.
    checkpoint: its path.
    global_step: of it.
  """
  dataset: DataSet
  checkpoint: str
  global_step: int


def find(settings: Settings) -> Found:
  """Finds the checkpoint that `--checkpoint` names, and what it was trained on.

  Raises:
    UserError: there is none, or it was trained on something else than the flags say.
  """
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  checkpoint, global_step = chosen_checkpoint.resolve(settings[groups.Run], settings.checkpoint)
  dataset = datasets.describe_classes(settings)
  chosen_checkpoint.check_labels(settings.model_dir, settings.checkpoint, dataset.labels)
  RunDir(settings.model_dir).check_flags(
      settings, [name for name, _ in settings.items() if name not in _MUST_BE_THE_SAME])
  return Found(dataset, checkpoint, global_step)


@contextlib.contextmanager
def restored(settings: Settings, dataset: DataSet, checkpoint: str,
             devices: Devices = _CPU) -> Iterator[Tuple[tf.keras.Model, tf.Session]]:
  """Builds the model as it predicts, with the checkpoint's weights.

  Args:
    settings: of the run that trained it.
    dataset: gives the model its shapes.
    checkpoint: its path.
    devices: the first of them is used.

  Yields:
    The model, in a graph and a session of its own, which are the default ones, and the session.

  Raises:
    UserError: the checkpoint is of another model.
  """
  config = make_session_config(settings[groups.Devices], devices)
  if devices is _CPU:
    config.device_count['GPU'] = 0
  with tf.Graph().as_default(), tf.Session(config=config) as session, tf.device(devices.names[0]):
    tf.keras.backend.set_session(session)
    try:
      tf.keras.backend.set_learning_phase(0)
      model = build_model(settings, dataset)
      check_fits(model, settings, checkpoint,
                 chosen_checkpoint.find_run_dir(settings.model_dir, settings.checkpoint).flags())
      with translate_errors():
        saver(model).restore(session, checkpoint)
      yield model, session
    finally:
      tf.keras.backend.set_session(None)


def saver(model: tf.keras.Model) -> tf.train.Saver:
  """Makes what saves and restores the model's weights, by their names in a checkpoint."""
  return tf.train.Saver({weight.op.name: weight for weight in model.weights})


class Predictor(NamedTuple):
  """A model that has its weights.

  Attributes:
    batch_size: of one device.
    device: what it is on.
    outputs: the function from pixels, [B, height, width, 1 or C] in grey levels from 0 to 255, to
      the probabilities of the classes, float32 [B, num_classes].
  """
  batch_size: int
  device: str
  outputs: Callable[[np.ndarray], np.ndarray]


@contextlib.contextmanager
def load(settings: Settings, found: Found) -> Iterator[Predictor]:
  """Makes the model a function, for as long as the context lasts.

  Args:
    settings: of the run that trained it.
    found: the checkpoint.

  Raises:
    UserError: it is of another model, or of images that no file holds.
  """
  height, width, channels = found.dataset.image_shape
  if channels not in (1, 3):
    raise UserError('images have one channel or three', '--image_size={},{},{}'.format(
        height, width, channels), 'give a --model_dir that was trained on such')
  # Those that are here, and not those that it was trained on.
  here = settings.evolve(num_gpus=-1 if settings.num_gpus else 0)
  devices = find_devices(here[groups.Devices])
  one = Devices(devices.names[:1], devices.labels[:1])
  with restored(settings, found.dataset, found.checkpoint, one) as (model, session):
    pixels = tf.placeholder(tf.float32, [None, height, width, None])
    outputs = probabilities.from_outputs(
        model, model(make_model_preprocess(model, settings[groups.Model])(pixels)))
    with translate_errors():
      yield Predictor(max(1, settings.batch_size // devices.num_replicas), one.names[0],
                      session.make_callable(outputs, [pixels]))
