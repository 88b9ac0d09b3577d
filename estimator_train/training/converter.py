"""From a Keras model to an Estimator, through `tf.keras.estimator.model_to_estimator`."""

import logging
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.cluster.tf_config import Cluster
from estimator_train.datasets.description import DataSet
from estimator_train.distribution.devices import (
  Devices,
  find_devices,
  make_session_config,
  make_strategy,
)
from estimator_train.errors import UserError
from estimator_train.models import registry as models
from estimator_train.models.preprocessing import make_preprocess
from estimator_train.settings import Settings, choices, user_code
from estimator_train.tf_patches import model_to_estimator, replicated_variables
from estimator_train.training import frozen_features, losses
from estimator_train.training.building import build, check_own_optimizer, compile_with_flags
from estimator_train.training.checkpoints import initial_weights, save_hook
from estimator_train.training.evaluation.metrics import make_metric_fn
from estimator_train.training.hooks import input_wait, summaries
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class Converted(NamedTuple):
  """An Estimator and what its input must be like.

  Attributes:
    estimator: the converted model.
    one_hot: whether labels are one-hot, not class numbers.
    frozen: the first part of the model, whose output training runs on; None: the whole runs.
    trainer: the estimator to train with, on images or on the output of `frozen`.
    schedule: the learning rate; None: the model brought an optimizer of its own.
  """
  estimator: tf.estimator.Estimator
  one_hot: bool
  frozen: Optional[tf.keras.Model]
  trainer: tf.estimator.Estimator
  schedule: Optional[Schedule]


def convert(settings: Settings, dataset: DataSet, devices: Devices, cluster: Optional[Cluster],
            writes: bool, schedule: Schedule, class_counts: Optional[Sequence[int]],
            checkpoint: Optional[str], flags_before: Dict[str, str]) -> Converted:
  """Builds the Keras model, checks it against the checkpoint, and converts it.

  Training is spread over the devices. Evaluation is on one: under `eval_distribute` TensorFlow
  1.15 loses examples of short batches.

  Args:
    settings: of this run.
    dataset: gives the model its shapes.
    devices: one replica each.
    cluster: whose tasks train together; None: this one trains alone.
    writes: whether it writes the initial weights; the others convert the model after it has.
    schedule: the learning rate.
    class_counts: the training examples of each class, to even them out; None: as they are.
    checkpoint: that the weights will come from; None: they are initial ones.
    flags_before: the flags of the run that made it, where they are known.

  Raises:
    UserError: the model cannot take these images, or the checkpoint is of another one.
  """
  # A graph of its own gives the layers the same names in every run of a process. The model is
  # built outside of the strategy's scope, which model_to_estimator needs.
  with tf.Graph().as_default():
    tf.set_random_seed(settings.seed)
    model = build(settings, dataset)
    is_own = bool(model.optimizer)
    if is_own:
      check_own_optimizer(settings)
    else:
      compile_with_flags(model, settings, schedule)
    if checkpoint is not None:
      check_fits(model, settings, checkpoint, flags_before)
    loss = model.loss
    if class_counts is not None:
      model.compile(model.optimizer, losses.ClassWeighted(
          loss, losses.balanced_weights(class_counts)))
    summaries.record_gradient_norm(model.optimizer)
    loads = settings.weights != 'none'
    if loads:
      # The first Keras session stays, whatever the RunConfig says later.
      tf.keras.backend.set_session(tf.Session(config=make_session_config(settings, devices)))
      initial_weights.load(model, settings, dataset.image_shape)
    if writes:
      initial_weights.clear_stale(settings)
    config = _make_run_config(settings, devices, cluster)
    keras_estimator = _to_estimator(model, config, settings)
    if writes:
      initial_weights.record(model if loads else None, settings)
    estimator = trainer = tf.estimator.add_metrics(
        _with_preprocessing(keras_estimator, model, settings),
        make_metric_fn(loss, len(dataset.labels)))
    frozen = None
    if settings.cache_features and settings.trains:
      frozen, rest = frozen_features.cut(model, settings.model)
      rest.compile(model.optimizer, model.loss)
      trainer = _with_frozen_weights(
          _to_estimator(rest, config, settings), model, frozen)
    tf.keras.backend.set_session(None)
  return Converted(estimator, not losses.takes_class_numbers(loss), frozen, trainer,
                   None if is_own else schedule)


def convert_own(model: tf.keras.Model, settings: Settings) -> tf.estimator.Estimator:
  """Converts a model that was built and compiled elsewhere, for any `input_fn`.

  Args:
    model: begins with the weights that it has now.
    settings: say where, on which devices, and the seed of what is random in a step.

  Raises:
    UserError: it cannot be converted, or the checkpoint is of another one.
  """
  models.check_kind(model, 'model')
  if not model.optimizer:
    raise UserError('the model is not compiled', repr(model.name),
                    'call model.compile(optimizer, loss) first')
  devices = find_devices(settings)
  assert settings.model_dir is not None
  checkpoint, _ = save_hook.latest(settings.model_dir)
  if checkpoint is not None:
    check_fits(model, settings, checkpoint, {})
  model.get_weights()  # Draws those that were not set, for only such are converted as they are.
  initial_weights.clear_stale(settings)
  estimator = _to_estimator(model, tf.estimator.RunConfig(
      model_dir=settings.model_dir, tf_random_seed=settings.seed,
      train_distribute=make_strategy(settings, devices, None),
      session_config=make_session_config(settings, devices, others_input=True)), settings)
  initial_weights.record(model, settings)

  def model_fn(features: Any, labels: Any, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    spec = estimator.model_fn(features, labels, mode, config)
    if mode != tf.estimator.ModeKeys.TRAIN:
      return spec
    one_copy = replicated_variables.OneCopyOfEach(config.keep_checkpoint_max)
    return spec._replace(training_hooks=tuple(spec.training_hooks or ()) + (one_copy,))

  complete = model_to_estimator.with_all_weights(model_fn, estimator.config, model)
  loss = losses.of(model)
  if not losses.is_of_classes(loss) or len(model.outputs) != 1 or model.outputs[0].shape.ndims != 2:
    return complete
  return tf.estimator.add_metrics(complete, make_metric_fn(loss, model.output_shape[-1]))


def _to_estimator(model: tf.keras.Model, config: tf.estimator.RunConfig,
                  settings: Settings) -> tf.estimator.Estimator:
  """Calls model_to_estimator, which makes the model anew from its layers' own descriptions."""
  if not user_code.is_own(settings.model):
    return tf.keras.estimator.model_to_estimator(model, config=config)
  with user_code.told('the model cannot be converted to an Estimator', '--model=' + settings.model):
    return tf.keras.estimator.model_to_estimator(model, config=config)


def _make_run_config(settings: Settings, devices: Devices,
                     cluster: Optional[Cluster]) -> tf.estimator.RunConfig:
  # Summaries can hold collective operations, so that all workers of a cluster would have to run
  # them, and would write them somewhere. Those of this package come from summaries.WriteSummaries.
  return tf.estimator.RunConfig(
      model_dir=settings.model_dir,
      tf_random_seed=settings.seed,
      train_distribute=make_strategy(settings, devices, cluster),
      session_config=make_session_config(settings, devices, in_cluster=cluster is not None),
      save_checkpoints_steps=None,  # checkpoints.SaveCheckpoints saves them.
      save_checkpoints_secs=None,
      save_summary_steps=settings.log_every_steps if cluster is None else 0,
      log_step_count_steps=None)


def make_model_preprocess(model: tf.keras.Model,
                          settings: Settings) -> Callable[[tf.Tensor], tf.Tensor]:
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


def _with_preprocessing(estimator: tf.estimator.Estimator, model: tf.keras.Model,
                        settings: Settings) -> tf.estimator.Estimator:
  """Has pixels scaled before the model."""
  preprocess = make_model_preprocess(model, settings)

  def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    if mode == tf.estimator.ModeKeys.TRAIN:
      features = input_wait.mark(features)
    spec = estimator.model_fn(preprocess(features), labels, mode, config)
    if mode == tf.estimator.ModeKeys.TRAIN:
      summaries.add_batch(features, labels, *spec.predictions.values())
    return spec

  return model_to_estimator.with_all_weights(model_fn, estimator.config, model)


def _with_frozen_weights(estimator: tf.estimator.Estimator, model: tf.keras.Model,
                         frozen: tf.keras.Model) -> tf.estimator.Estimator:
  """Has the weights of the frozen part in the graph, so that checkpoints are of the whole model."""
  def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str,
               config: tf.estimator.RunConfig) -> tf.estimator.EstimatorSpec:
    features = input_wait.mark(features)
    spec = estimator.model_fn(tf.cast(features, tf.float32), labels, mode, config)
    summaries.add_batch(features, labels, *spec.predictions.values())
    for weight in frozen.weights:
      tf.get_variable(weight.op.name, weight.shape, weight.dtype.base_dtype,
                      tf.zeros_initializer(), trainable=False, use_resource=True)
    return spec

  return model_to_estimator.with_all_weights(model_fn, estimator.config, model)


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
