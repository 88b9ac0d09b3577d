"""The Keras model of a run, compiled by its flags unless it is a user's and compiled already."""

import logging
from typing import Callable, Dict

import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.models.preprocessing import make_preprocess
from estimator_train.settings import Settings, choices, groups
from estimator_train.settings.flag import all_flags
from estimator_train.tf_patches.loss_scaling import LossScaled
from estimator_train.training import losses
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.optimizers import LearningRate, make_optimizer

_LOG = logging.getLogger('estimator_train')


def build_model(settings: Settings, dataset: DataSet) -> tf.keras.Model:
  """Builds the Keras model and compiles it, unless it is a user's and compiled already.

  Raises:
    UserError: it cannot be built for images of this shape.
  """
  model = build(settings[groups.Model], dataset)
  if not model.optimizer:
    compile_with_flags(model, settings, settings.learning_rate)
  return model


def build(settings: groups.Model, dataset: DataSet) -> tf.keras.Model:
  """Builds the Keras model as its function returns it, compiled or not.

  Raises:
    UserError: it cannot be built for images of this shape.
  """
  try:
    model = models.build(settings.model, dataset.image_shape, len(dataset.labels),
                         settings.trainable_layers)
  except ValueError as error:
    raise UserError('the model cannot be built for these images',
                    '--model={} for {} ({})'.format(
                        settings.model, 'x'.join(str(side) for side in dataset.image_shape), error),
                    'give a larger --image_size or another --model') from error
  if model.optimizer and losses.of(model) is not model.loss:
    model.compile(model.optimizer, losses.of(model))
  return model


def compile_with_flags(model: tf.keras.Model, settings: Settings,
                       learning_rate: LearningRate) -> None:
  """Compiles the model with the optimizer of the flags, and the loss that fits its last layer."""
  optimizer = make_optimizer(settings.optimizer, learning_rate)
  if settings.dtype == 'mixed' and settings.trains:
    optimizer = LossScaled(optimizer)
  model.compile(optimizer, loss=losses.default_loss(model))


def check_own_optimizer(settings: Settings) -> None:
  """Warns of the flags that a model's own optimizer leaves without effect.

  Raises:
    UserError: a schedule or loss scaling is asked for, which take an optimizer of ours.
  """
  def given(*names: str) -> str:
    return ' '.join('--{}={}'.format(name, getattr(settings, name)) for name in names
                    if getattr(settings, name) != all_flags()[name].default)

  refused = given('lr_schedule', 'lr_warmup_epochs', 'scale_learning_rate', 'dtype')
  if settings.trains and refused:
    raise UserError('the model is compiled, so it trains by its own optimizer',
                    '--model={} {}'.format(settings.model, refused),
                    'leave them out, or return the model without compiling it')
  ignored = given('optimizer', 'learning_rate')
  if settings.trains and ignored:
    _LOG.warning('--model=%s is compiled and brings its own optimizer: %s has no effect',
                 settings.model, ignored)


def make_model_preprocess(model: tf.keras.Model,
                          settings: groups.Model) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the function that scales pixels for the model; see preprocessing.py.

  Raises:
    UserError: `--preprocess` is not for its channels.
  """
  _, height, width, channels = model.input_shape
  if settings.preprocess in ('caffe', 'torch') and channels != 3:
    raise UserError('--preprocess={} is for three channels'.format(settings.preprocess),
                    '--model={} takes {}'.format(settings.model, channels),
                    'give --preprocess=unit or tf')
  return make_preprocess(settings.preprocess, height, width, channels)


def check_fits(model: tf.keras.Model, settings: Settings, path: str,
               flags_before: Dict[str, str]) -> None:
  """Raises a UserError that names both when the checkpoint is of another model, say."""
  for flag, given, difference in (
      ('model', settings.model, save_hook.model_difference(model, path)),
      ('optimizer', settings.optimizer,
       save_hook.optimizer_difference(model, path) if settings.trains else None),
      ('dtype', settings.dtype, 'without a loss scale'
       if settings.trains and settings.dtype == 'mixed' and save_hook.lacks_loss_scale(path)
       else None),
      ('preprocess', settings.preprocess,
       'its pixels are scaled otherwise' if settings.preprocess != flags_before.get(
           'preprocess', settings.preprocess) else None)):
    if difference:
      before = flags_before.get(flag, 'unknown')
      where = 'model_dir' if settings.checkpoint in choices.KEPT_CHECKPOINTS else 'checkpoint'
      raise UserError(
          '--{} holds a checkpoint of another {}'.format(where, flag),
          '{} at step {} is of --{}={}, not of --{}={} ({})'.format(
              getattr(settings, where), tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP),
              flag, before, flag, given, difference),
          'give another --' + where + (
              '' if before in ('unknown', given) else ', or --{}={}'.format(flag, before)))
