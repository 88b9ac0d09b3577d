"""Builds the model of a run, compares the model with the checkpoint, and makes an Estimator."""

import contextlib
import functools
import hashlib
import json
import logging
from typing import Dict, Iterable, Iterator, NamedTuple, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import compatibility, finding
from estimator_train.checkpoints.best_checkpoint import BestMetric
from estimator_train.distribution.cluster_state import READY
from estimator_train.distribution.devices import make_session_config
from estimator_train.model import compiling, frozen_features, initial_weights, losses, observation
from estimator_train.model.estimator import GraphCallbacks, to_estimator, translate_model_errors
from estimator_train.model.own_graph import OwnGraph
from estimator_train.model.schedules import Schedule
from estimator_train.run_dir import data_record
from estimator_train.run_dir.data_record import DataRecord
from estimator_train.settings import user_code
from estimator_train.settings.flags import OUTPUT_FLAGS, ModelFlags
from estimator_train.tf_patches import saved_weights
from estimator_train.tf_patches.keras import nested_layers
from estimator_train.training import selection
from estimator_train.training.run import Run

_LOG = logging.getLogger('estimator_train')


class PreparedModel(NamedTuple):
  """The model of a run, converted to an Estimator.

  Attributes:
    estimator: the Estimator of the complete model.
    training_estimator: the Estimator to train, on the outputs of `frozen_part` if there is one.
    frozen_part: the layers whose outputs are the training features; None: the training features
      are those of the data set.
    one_hot: whether the labels of a batch are one-hot vectors instead of class indices.
    schedule: the learning rate schedule; None: the model has its own optimizer.
    best_metric: the metric that selects the best checkpoint.
    batch_norm_momentum: the highest momentum of the layers of batch normalization that are trained;
      0 if there are none, or with `--weights`.
    parameters: the numbers of parameters; see count_parameters.
  """
  estimator: tf.estimator.Estimator
  training_estimator: tf.estimator.Estimator
  frozen_part: Optional[tf.keras.Model]
  one_hot: bool
  schedule: Optional[Schedule]
  best_metric: BestMetric
  batch_norm_momentum: float
  parameters: Dict[str, int]


def prepare(run: Run) -> PreparedModel:
  """Builds the model of a run and converts it to an Estimator.

  In a cluster, `Peers.join` waits until all workers are connected and, on every worker except the
  chief, until the chief has converted its model and written the initial weights.

  Args:
    run: the run, whose start-up timer ends the phases `peers` (in a cluster) and `model`.

  Raises:
    PeerLost: another worker did not connect.
    UserError: the model does not accept the images, the checkpoint does not fit, or the workers
      differ in a value that must be the same.
  """
  settings, spec, engine = run.settings, run.data.spec, run.engine
  # In a new graph, the layers get the same names even if this process has built models before. The
  # model is built outside the strategy's scope, as model_to_estimator requires.
  with tf.Graph().as_default():
    saved_weights.seed_graph(settings.optimizer.seed)
    _LOG.info('building the model')
    model = compiling.build_by_name(settings.model, spec)
    if engine.num_workers > 1:
      run.peers.join(_values_to_compare(run, model))
      run.start_up.end_phase('peers')
    is_chief = engine.process.is_chief
    if is_chief and settings.run.trains:
      finding.repair_model_dir(run.run_dir.path, run.start.checkpoint)
    _LOG.info('converting the model to an Estimator')
    prepared = _convert(run, model)
  run.peers.announce(READY)
  run.start_up.end_phase('model')
  if settings.run.trains and is_chief:
    _log_changed_flags(run)
    _record_data(run)
    run.run_dir.record_flags(settings, spec.labels)
  _log_setup(run, prepared)
  return prepared


def _convert(run: Run, model: tf.keras.Model) -> PreparedModel:
  """Compiles the model, checks that the checkpoint fits the model, and converts the model."""
  settings, spec, engine = run.settings, run.data.spec, run.engine
  if settings.input.cache_features:
    spec.require_images('--cache_features')
  schedule = compiling.compile_model(model, settings, run.schedule)
  if run.start.checkpoint is not None:
    compatibility.check_fits_checkpoint(model, settings, run.start.recorded, run.start.checkpoint)
  _load_given_weights(run, model)
  run_config = engine.make_run_config()
  one_hot = not losses.model_takes_class_indices(model)
  loss = _training_loss(run, model)
  callbacks = GraphCallbacks(compiling.make_model_preprocess(model, settings.model, spec),
                             observation.add_batch if spec.labels else None,
                             functools.partial(_translate_errors, settings.model),
                             '--dataset=' + spec.name)
  frozen_part = None
  with _translate_errors(settings.model):
    own_graph = OwnGraph(model, loss)
    if run.start.checkpoint is None and run.process.is_chief:
      saved_weights.save_initial_weights(run_config, own_graph.weight_names,
                                         own_graph.weight_values())
    estimator = training_estimator = to_estimator(
        own_graph, run_config, callbacks, num_classes=len(spec.labels))
    if settings.input.cache_features and settings.run.trains:
      frozen_part, rest = frozen_features.split_model(model, settings.model.model)
      rest.compile(model.optimizer, model.loss, loss_weights=model.loss_weights)
      training_estimator = to_estimator(
          OwnGraph(rest, loss), run_config,
          GraphCallbacks(observe_batch=observation.add_batch), frozen_part=frozen_part)
  tf.keras.backend.set_session(None)
  return PreparedModel(
      estimator, training_estimator, frozen_part, one_hot, schedule,
      best_metric=selection.find_best_metric(settings.evaluation, model, len(spec.labels)),
      batch_norm_momentum=(
          _batch_norm_momentum(model) if settings.model.weights == 'none' else 0.),
      parameters=count_parameters(model))


def _batch_norm_momentum(model: tf.keras.Model) -> float:
  """Returns the highest momentum of the batch normalization that training updates, or 0."""
  return max((layer.momentum for layer in nested_layers(model) if layer.trainable and isinstance(
      layer, tf.keras.layers.BatchNormalization)), default=0.)


def _load_given_weights(run: Run, model: tf.keras.Model) -> None:
  """Loads the weights of `--weights` into the model."""
  if run.settings.model.weights == 'none':
    return
  # The first session of a process sets the options of the GPUs. Without this session, Keras would
  # make a session with default options.
  session_config = make_session_config(run.settings.devices, run.engine.devices)
  tf.keras.backend.set_session(tf.Session(config=session_config))
  initial_weights.load_initial_weights(model, run.settings.model,
                                       run.data.spec.image_shape)


def _training_loss(run: Run, model: tf.keras.Model) -> Optional[Sequence[losses.Loss]]:
  """Returns the loss with label smoothing and class weights; None: that of the model."""
  settings = run.settings
  loss = own_loss = losses.get_loss(model)
  if settings.optimizer.label_smoothing:
    loss = losses.SmoothedLoss(loss, settings.optimizer.label_smoothing)
  if settings.run.trains and settings.optimizer.class_weights == 'balanced':
    run.data.spec.require_classes('--class_weights=balanced')
    assert run.data.train is not None
    loss = losses.weight_classes(
        loss, losses.balanced_class_weights(run.data.train.class_counts()))
  return None if loss is own_loss else [loss]


@contextlib.contextmanager
def _translate_errors(flags: ModelFlags) -> Iterator[None]:
  """Translates the exceptions of a user's model into UserErrors."""
  with contextlib.ExitStack() as stack:
    if user_code.is_function_name(flags.model):
      stack.enter_context(user_code.translate_errors(
          'the model cannot be converted to an Estimator', '--model=' + flags.model))
    stack.enter_context(translate_model_errors())
    yield


def _values_to_compare(run: Run, model: tf.keras.Model) -> Dict[str, str]:
  """Returns values that must be the same on all workers; the keys describe the values."""
  spec, source = run.data.spec, run.data.train
  assert source is not None
  variables = json.dumps([[weight.op.name, weight.shape.as_list()] for weight in model.weights])
  return {
      'the step of the checkpoint in --model_dir': str(run.start.step),
      'the number of replicas': str(run.engine.devices.num_replicas),
      'the image shape': str(spec.image_shape),
      'the class names': ','.join(spec.labels),
      'the training examples (digest)': source.digest_of_examples(),
      "the model's variables (digest of their names and shapes)": hashlib.md5(
          variables.encode('utf-8')).hexdigest(),
  }


def _record_data(run: Run) -> None:
  """Writes data.json, before flags.txt, which it is made from for a run without this record."""
  if run.settings.run.evaluates and run.data.test is not None:
    test_examples: Optional[str] = run.data.test.digest()
  else:  # The run may have evaluated before, and may do so again.
    record = data_record.read(run.run_dir)
    test_examples = None if record is None else record.test_examples
  data_record.write(run.run_dir, DataRecord(test_examples, run.data.validation))


def _log_changed_flags(run: Run) -> None:
  """Logs the flags that have other values than in the run that this run resumes."""
  differences = run.run_dir.flag_differences(run.settings, [
      name for name, _ in run.settings.items() if name not in ('model_dir', *OUTPUT_FLAGS)])
  if differences and run.start.checkpoint is not None and run.start.step < run.end_step:
    _LOG.info('resuming with the weights of step %d and other flags: %s', run.start.step,
              ', '.join(differences))


def _log_setup(run: Run, model: PreparedModel) -> None:
  """Logs the model, the data set, the devices, the batch sizes and the learning rate."""
  settings, engine = run.settings, run.engine
  _LOG.info('%s on %s: %s, %d replica(s) on %s%s, batch size %d global, %d per replica',
            settings.model.model, settings.data.dataset, settings.devices.distribution_strategy,
            engine.num_replicas, ', '.join(engine.devices.display_names),
            ' of {} workers'.format(engine.num_workers) if engine.num_workers > 1 else '',
            settings.optimizer.batch_size, engine.examples_per_replica)
  log_parameters(run, model.parameters)
  flags, schedule = settings.optimizer, model.schedule
  if settings.run.trains and schedule is not None and (
      flags.lr_schedule, flags.lr_warmup_epochs, flags.scale_learning_rate) != (
          'constant', 0., 'none'):
    _LOG.info('learning rate %s%s', schedule, '' if flags.scale_learning_rate == 'none' else (
        '; scaled ({}) from batch size {}'.format(flags.scale_learning_rate,
                                                  flags.base_batch_size)))


def count_parameters(model: tf.keras.Model) -> Dict[str, int]:
  """Returns the number of parameters: `total`, `trainable` and `frozen`; and their `bytes`.

  Frozen parameters are those of frozen layers. Only `total` includes the statistics of batch
  normalization that is not frozen.
  """
  def count(weights: Iterable[tf.Variable]) -> int:
    return sum(weight.shape.num_elements() for weight in weights)

  frozen = {id(weight): weight for layer in nested_layers(model) if not layer.trainable
            for weight in layer.weights}
  return {'total': count(model.weights), 'trainable': count(model.trainable_weights),
          'frozen': count(frozen.values()),
          'bytes': sum(count([weight]) * weight.dtype.size for weight in model.weights)}


def log_parameters(run: Run, parameters: Dict[str, int]) -> None:
  """Logs the number of parameters; warns if this run starts with random weights that are frozen."""
  _LOG.info('{total:,} parameters, {trainable:,} of them trained, {frozen:,} in frozen layers, '
            '{megabytes:.1f} MB'.format(megabytes=parameters['bytes'] / 1e6, **parameters))
  settings = run.settings
  if parameters['frozen'] and settings.run.trains and run.start.checkpoint is None and (
      settings.model.weights == 'none' and not user_code.is_function_name(settings.model.model)):
    _LOG.warning('%.1f of %.1f million parameters are frozen with random weights: give --weights, '
                 'or train more layers with --trainable_layers', parameters['frozen'] / 1e6,
                 parameters['total'] / 1e6)
