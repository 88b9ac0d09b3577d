"""The model of a checkpoint as a function, for predictions on one device; it writes nothing."""

import contextlib
from typing import Callable, Iterator, NamedTuple, Optional

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train import model_dir
from estimator_train.datasets import registry as datasets
from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.settings import Settings
from estimator_train.training import checkpoints
from estimator_train.training.devices import Devices, find_devices, make_session_config
from estimator_train.training.estimator import build_model, check_fits, make_model_preprocess
from estimator_train.training.user_errors import reworded


class Predictor(NamedTuple):
  """A model that has its weights.

  Attributes:
    dataset: its classes and the shape of an image.
    batch_size: of one device.
    device: what it is on.
    checkpoint: where its weights are from.
    global_step: of that.
    outputs: the function from pixels, [B, height, width, 1 or C] in grey levels from 0 to 255, to
      the model's outputs, float32 [B, num_classes].
  """
  dataset: DataSet
  batch_size: int
  device: str
  checkpoint: str
  global_step: int
  outputs: Callable[[np.ndarray], np.ndarray]


@contextlib.contextmanager
def load(settings: Settings, checkpoint: Optional[str] = None) -> Iterator[Predictor]:
  """Builds the model and restores its weights, for as long as the context lasts.

  Neither the data that it was trained on nor the devices need be there.

  Args:
    settings: of the run that trained it.
    checkpoint: its path; None: the latest.

  Raises:
    UserError: there is no checkpoint, or it is of another model.
  """
  assert settings.model_dir is not None
  tf.logging.set_verbosity(tf.logging.INFO if settings.verbosity > 0 else tf.logging.ERROR)
  checkpoint = checkpoint or checkpoints.latest(settings.model_dir)[0]
  if checkpoint is None:
    raise UserError('there is no checkpoint to predict with', '--model_dir=' + settings.model_dir,
                    'train first, or give the folder of a run that has')
  dataset = datasets.describe_classes(settings)
  model_dir.check_labels(settings.model_dir, dataset.labels)
  model_dir.check_flags(settings, [name for name in settings._fields if name != 'image_size'])
  height, width, channels = dataset.image_shape
  if channels not in (1, 3):
    raise UserError('images have one channel or three', '--image_size={},{},{}'.format(
        height, width, channels), 'give a --model_dir that was trained on such')
  # Those that are here, and not those that it was trained on.
  devices = find_devices(settings._replace(num_gpus=-1 if settings.num_gpus else 0))
  one = Devices(devices.names[:1], devices.labels[:1])
  with reworded(None), tf.Graph().as_default(), tf.Session(
      config=make_session_config(settings, one)) as session, tf.device(one.names[0]):
    tf.keras.backend.set_session(session)
    tf.keras.backend.set_learning_phase(0)
    global_step = int(tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP))
    model = build_model(settings, dataset)
    check_fits(model, settings, checkpoint, global_step, model_dir.read_flags(settings.model_dir))
    pixels = tf.placeholder(tf.float32, [None, height, width, None])
    outputs = model(make_model_preprocess(model, settings)(pixels))
    tf.train.Saver({weight.op.name: weight for weight in model.weights}).restore(
        session, checkpoint)
    yield Predictor(dataset, max(1, settings.batch_size // devices.num_replicas), one.names[0],
                    checkpoint, global_step, session.make_callable(outputs, [pixels]))
    tf.keras.backend.set_session(None)
