"""Builds the Keras model of a run, and compiles it with the optimizer and the loss of the flags."""

import logging
from typing import Any, Callable, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.data import DataSpec
from estimator_train.data.source import Source
from estimator_train.errors import UserError
from estimator_train.model import losses, networks
from estimator_train.model.gradients import (
  BackboneRateScaling,
  GlobalNormClipping,
  GradientAccumulation,
  GradientNormRecording,
  MixinAndAttributes,
  WeightAveraging,
  add_mixins,
)
from estimator_train.model.inputs import make_preprocess_function
from estimator_train.model.optimizers import add_weight_decay, make_optimizer
from estimator_train.model.schedules import Schedule
from estimator_train.settings import Settings, user_code
from estimator_train.settings.flag_type import all_flags, flags_of
from estimator_train.settings.flags import ModelFlags, OptimizerFlags
from estimator_train.tf_patches.loss_scaling import LossScalingOptimizer

_LOG = logging.getLogger('estimator_train')
# The optimizer flags that may be given for a model that the user has compiled. They apply to it as
# to other models, or have no effect on it.
_FLAGS_OF_ANY_MODEL = ('batch_size', 'base_batch_size', 'optimizer', 'learning_rate',
                       'class_weights', 'on_nan', 'seed')


def build_model(flags: ModelFlags, spec: DataSpec) -> tf.keras.Model:
  """Builds the model that `--model` names. It is compiled only if a user's function compiles it.

  Raises:
    UserError: the model cannot be built for images of this shape.
  """
  if not user_code.is_function_name(flags.model):
    spec.require_images('--model=' + flags.model)
  try:
    model = networks.build_named_model(flags.model, spec.image_shape, len(spec.labels),
                           flags.trainable_layers)
  except ValueError as error:
    shape = spec.image_shape or ()
    raise UserError('the model cannot be built for these images',
                    '--model={} for {} ({})'.format(
                        flags.model, 'x'.join(str(side) for side in shape), error),
                    'give a larger --image_size or another --model') from error
  # A user may have given a list or dict of one loss. Other modules expect the loss itself.
  if model.optimizer and len(model.outputs) == 1:
    model.loss = losses.get_loss(model)
  return model


def compile_model(model: tf.keras.Model, settings: Settings,
                  schedule: Optional[Schedule]) -> Optional[Schedule]:
  """Compiles the model with the optimizer of the flags and a loss that fits the last layer.

  Args:
    schedule: the learning rate schedule; None if nothing is trained.

  Returns:
    `schedule`, but None if the user has compiled the model, which then keeps its own optimizer.

  Raises:
    UserError: the user has compiled the model, and a flag changes the optimizer or the labels.
  """
  if model.optimizer:
    if schedule is not None:
      _check_flags_of_compiled_model(settings)
    add_mixins(model.optimizer, [(GradientNormRecording, {})])
    return None
  optimizer = make_optimizer(settings.optimizer.optimizer,
                             schedule or Schedule(settings.optimizer.learning_rate))
  if schedule is not None:
    optimizer = _add_mixins_of_flags(optimizer, model, settings)
  model.compile(optimizer, loss=losses.default_loss(model))
  return schedule


def _add_mixins_of_flags(optimizer: tf.keras.optimizers.Optimizer, model: tf.keras.Model,
                         settings: Settings) -> tf.keras.optimizers.Optimizer:
  """Adds the mixins and the weight decay of the flags; wraps the optimizer for loss scaling."""
  flags = settings.optimizer
  # Mixins outside of loss scaling get gradients without the factor of the loss scale. Mixins inside
  # of it do not run in steps that loss scaling skips.
  outside_loss_scaling: List[MixinAndAttributes] = [(GradientNormRecording, {})]
  inside_loss_scaling: List[MixinAndAttributes] = []
  if flags.gradient_clip_norm:
    outside_loss_scaling.append((GlobalNormClipping, {'max_norm': flags.gradient_clip_norm}))
  if flags.gradient_accumulation_steps > 1:
    outside_loss_scaling.append((GradientAccumulation, {
        'accumulation_steps': flags.gradient_accumulation_steps}))
  if flags.ema_decay is not None:
    inside_loss_scaling.append((WeightAveraging, {'ema_decay': flags.ema_decay}))
  if flags.backbone_lr_factor != 1:
    head = [layer for layer in model.layers if layer.trainable_weights][-1:]
    inside_loss_scaling.append((BackboneRateScaling, {
        'backbone_factor': flags.backbone_lr_factor,
        'head_weight_names': {weight.op.name for layer in head for weight in layer.weights}}))
  if flags.weight_decay:
    add_weight_decay(model, optimizer, flags.weight_decay)
  if settings.devices.dtype != 'mixed':
    add_mixins(optimizer, outside_loss_scaling + inside_loss_scaling)
    return optimizer
  add_mixins(optimizer, inside_loss_scaling)
  scaling = LossScalingOptimizer(optimizer)
  add_mixins(scaling, outside_loss_scaling)
  return scaling


def make_training_losses(model: tf.keras.Model, flags: OptimizerFlags,
                         source: Optional[Source]) -> Optional[Sequence[losses.Loss]]:
  """Returns the only loss with label smoothing and class weights; None if it stays unchanged.

  Raises:
    UserError: `--class_weights=balanced` is given, but the examples have no classes.
  """
  loss = model_loss = losses.get_loss(model)
  if flags.label_smoothing:
    loss = losses.SmoothedLoss(loss, flags.label_smoothing)
  if flags.class_weights == 'balanced':
    assert source is not None
    source.spec.require_classes('--class_weights=balanced')
    loss = losses.ClassWeightedLoss(
        loss, losses.balanced_class_weights(source.count_examples_by_class()))
  return None if loss is model_loss else [loss]


def _check_flags_of_compiled_model(settings: Settings) -> None:
  """Logs a warning about flags that have no effect on a model with its own optimizer.

  Raises:
    UserError: a flag changes the optimizer, the loss or the labels.
  """
  def format_changed_flags(*names: str) -> str:
    return ' '.join('--{}={}'.format(name, value) for name, value in settings.items()
                    if name in names and value != all_flags()[name].default)

  rejected = format_changed_flags('dtype', 'mixup_alpha', *(
      flag.name for flag in flags_of(OptimizerFlags) if flag.name not in _FLAGS_OF_ANY_MODEL))
  if rejected:
    raise UserError('a compiled model trains with its own optimizer',
                    '--model={} {}'.format(settings.model.model, rejected),
                    'omit these flags, or return the model without compiling it')
  ignored = format_changed_flags('optimizer', 'learning_rate')
  if ignored:
    _LOG.warning('--model=%s is compiled with its own optimizer: %s has no effect',
                 settings.model.model, ignored)


def choose_preprocess_function(model: tf.keras.Model, flags: ModelFlags,
                               spec: DataSpec) -> Callable[[Any], Any]:
  """Returns the function that scales the pixel values of images; for other features, the identity.

  Raises:
    UserError: `--preprocess` does not support the model's number of channels.
  """
  if spec.image_shape is None:
    return lambda features: features
  _, height, width, channels = model.input_shape
  if flags.chosen_preprocess in ('caffe', 'torch') and channels != 3:
    raise UserError('--preprocess={} requires three channels'.format(flags.chosen_preprocess),
                    '--model={} takes {} channel(s)'.format(flags.model, channels),
                    'give --preprocess=unit or tf')
  return make_preprocess_function(flags.chosen_preprocess, height, width, channels)
