"""The model of a run: built, agreed on with the other workers, checked, and converted."""

import contextlib
import hashlib
import json
import logging
from typing import Any, ContextManager, Dict, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.cluster.heartbeats import READY
from estimator_train.distribution.devices import make_session_config
from estimator_train.inputs import factory as inputs
from estimator_train.process.start_up import StartUp
from estimator_train.settings import groups, user_code
from estimator_train.training import building, frozen_features, losses, schedules
from estimator_train.training.checkpoints import chosen_checkpoint, initial_weights, recovery
from estimator_train.training.converter import to_estimator
from estimator_train.training.hooks import summaries
from estimator_train.training.plan import Plan
from estimator_train.training.schedules import Schedule

_LOG = logging.getLogger('estimator_train')


class PreparedModel(NamedTuple):
  """The model of a run as an Estimator.

  Attributes:
    estimator: the whole model.
    training_estimator: to train with, on images or on the outputs of the frozen part.
    frozen_part: the layers whose outputs training runs on; None: it runs on images.
    one_hot: whether labels are one-hot, not class indices.
    schedule: the learning rate; None: the model has an optimizer of its own.
  """
  estimator: tf.estimator.Estimator
  training_estimator: tf.estimator.Estimator
  frozen_part: Optional[tf.keras.Model]
  one_hot: bool
  schedule: Optional[Schedule]


def prepare_model(plan: Plan, start_up: StartUp) -> PreparedModel:
  """Builds the model of a run once, and makes it an Estimator.

  Of several workers each waits for the others, and then for the chief to convert the model.

  Args:
    plan: of the run.
    start_up: gets the parts `peers`, of several workers, and `model`.

  Raises:
    PeerLost: another worker did not come.
    UserError: the model cannot take these images, or the checkpoint is of another one.
  """
  settings, dataset, engine = plan.settings, plan.data.dataset, plan.engine
  # A graph of its own gives the layers the same names in every run of a process. The model is
  # built outside of the strategy's scope, which model_to_estimator needs.
  with tf.Graph().as_default():
    tf.set_random_seed(settings.seed)
    model = building.build(settings[groups.Model], dataset)
    if engine.size > 1:
      engine.join(_facts(plan, model))
      start_up.end('peers')
    writes = engine.worker.is_chief
    if writes and settings.trains:
      recovery.mend(plan.run_dir.path, plan.checkpoint)
    prepared = _convert(plan, model)
  engine.announce(READY)
  start_up.end('model')
  if settings.trains and writes:
    if prepared.schedule is not None and 0 < plan.first_step < (plan.stop_step or 0):
      _warn_of_another_rate(plan)
    plan.run_dir.record(settings, dataset.labels)
  _log(plan, prepared.schedule)
  return prepared


def _convert(plan: Plan, model: tf.keras.Model) -> PreparedModel:
  """Compiles the model, checks that it fits the checkpoint, and converts it."""
  settings, dataset, engine = plan.settings, plan.data.dataset, plan.engine
  schedule: Optional[Schedule] = plan.schedule
  if model.optimizer:
    building.check_own_optimizer(settings)
    schedule = None
  else:
    building.compile_with_flags(model, settings, plan.schedule)
  if plan.checkpoint.path is not None:
    building.check_fits(model, settings, plan.checkpoint.path,
                        chosen_checkpoint.find_run_dir(
                            settings.model_dir, settings.checkpoint).flags())
  summaries.record_gradient_norm(model.optimizer)
  loads = settings.weights != 'none'
  if loads:
    # The first Keras session stays, whatever the RunConfig says later.
    config = make_session_config(settings[groups.Devices], engine.devices)
    tf.keras.backend.set_session(tf.Session(config=config))
    initial_weights.load(model, settings[groups.Model], dataset.image_shape)
  if engine.worker.is_chief:
    initial_weights.clear_stale(plan.run_dir, settings[groups.Model], settings.seed)
  config = engine.make_run_config()
  one_hot = not losses.takes_class_numbers(losses.of(model))
  frozen_part = None
  with _translate_errors(settings[groups.Model]):
    estimator = training_estimator = to_estimator(
        model, config, preprocess=building.make_model_preprocess(model, settings[groups.Model]),
        num_classes=len(dataset.labels), class_weights=_class_weights(plan),
        observe_batch=summaries.add_batch)
  if engine.worker.is_chief:
    initial_weights.record(model if loads else None, plan.run_dir, settings[groups.Model],
                           settings.seed)
  if settings.cache_features and settings.trains:
    frozen_part, rest = frozen_features.cut(model, settings.model)
    rest.compile(model.optimizer, model.loss)
    with _translate_errors(settings[groups.Model]):
      training_estimator = to_estimator(
          rest, config, preprocess=lambda features: tf.cast(features, tf.float32),
          frozen_part=frozen_part, observe_batch=summaries.add_batch)
  tf.keras.backend.set_session(None)
  return PreparedModel(estimator, training_estimator, frozen_part, one_hot, schedule)


def _class_weights(plan: Plan) -> Any:
  if not plan.settings.trains or plan.settings.class_weights != 'balanced':
    return None
  return losses.balanced_weights(inputs.class_counts(plan.data.dataset))


def _translate_errors(settings: groups.Model) -> ContextManager[Any]:
  """Returns what makes a UserError of an error in the conversion of a user's model."""
  if not user_code.is_own(settings.model):
    return contextlib.ExitStack()
  return user_code.told('the model cannot be converted to an Estimator',
                        '--model=' + settings.model)


def _facts(plan: Plan, model: tf.keras.Model) -> Dict[str, str]:
  """Returns what the workers must agree on besides their flags."""
  dataset = plan.data.dataset
  layers = json.dumps([[weight.op.name, weight.shape.as_list()] for weight in model.weights])
  return {
      'the step of the checkpoint in --model_dir': str(plan.first_step),
      'the number of replicas': str(plan.engine.devices.num_replicas),
      'the image shape': str(dataset.image_shape),
      'the labels': ','.join(dataset.labels)[:1000],
      'the training examples (a digest of their classes)': inputs.make_source(
          dataset, dataset.train).content_digest(),
      "the model's weights (a digest)": hashlib.md5(layers.encode('utf-8')).hexdigest(),
  }


def _warn_of_another_rate(plan: Plan) -> None:
  flags = schedules.flags_of(plan.settings[groups.Optimizer])
  different = plan.run_dir.differences(plan.settings, flags)
  if different:
    _LOG.warning('from step %d on the learning rate is not what it would have been in the run '
                 'before: %s', plan.first_step, ', '.join(different))


def _log(plan: Plan, schedule: Optional[Schedule]) -> None:
  settings, engine = plan.settings, plan.engine
  _LOG.info('%s on %s: %s, %d replica(s) on %s%s, batch size %d global, %d per replica',
            settings.model, settings.dataset, settings.distribution_strategy, engine.num_replicas,
            ', '.join(engine.devices.labels),
            ' of {} workers'.format(engine.size) if engine.size > 1 else '',
            settings.batch_size, engine.batch_size)
  if settings.trains and schedule is not None and (
      settings.lr_schedule, settings.lr_warmup_epochs, settings.scale_learning_rate) != (
          'constant', 0., 'none'):
    _LOG.info('learning rate %s%s', schedule, '' if settings.scale_learning_rate == 'none' else (
        '; scaled ({}) from batch size {}'.format(
            settings.scale_learning_rate, settings.base_batch_size)))
