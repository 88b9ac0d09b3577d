"""The steps that prepare the model of a run; modes/train.py calls them one after the other."""

import contextlib
import functools
import hashlib
import json
import logging
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import compatibility
from estimator_train.checkpoints.best_checkpoint import BestMetric
from estimator_train.distribution.devices import make_session_config
from estimator_train.model import compiling, frozen_features, initial_weights, losses
from estimator_train.model.estimator import ModelFn, to_estimator, translate_model_errors
from estimator_train.model.own_graph import CompiledGraph
from estimator_train.model.schedules import Schedule
from estimator_train.run_dir import data_record
from estimator_train.run_dir.data_record import DataRecord
from estimator_train.settings import user_code
from estimator_train.settings.flags import OUTPUT_FLAGS, ModelFlags
from estimator_train.system.formatting import format_bytes, format_number
from estimator_train.system.progress import show_phase
from estimator_train.tf_patches.keras import nested_layers
from estimator_train.training import selection
from estimator_train.training.run import Run

_LOG = logging.getLogger('estimator_train')
# Other convolutions of Keras are subclasses of these.
_CONVOLUTIONS = (tf.keras.layers.Conv1D, tf.keras.layers.Conv2D, tf.keras.layers.Conv3D,
                 tf.keras.layers.SeparableConv1D, tf.keras.layers.SeparableConv2D)


class BuiltModel(NamedTuple):
  """The compiled Keras model of a run, which fits the checkpoint.

  Attributes:
    schedule: None if the model has its own optimizer, or if the mode does not train.
  """
  keras_model: tf.keras.Model
  schedule: Optional[Schedule]


class PreparedModel(NamedTuple):
  """The model of a run, converted to an Estimator.

  Attributes:
    estimator: the Estimator of the complete model.
    training_estimator: the Estimator to train. If there is a `frozen_part`, this Estimator has only
      the other layers, and its inputs are the outputs of `frozen_part`.
    frozen_part: the layers whose outputs are cached as training features; None without
      `--cache_features`.
    one_hot: whether the labels of a batch are one-hot vectors instead of class indices.
    schedule: see BuiltModel.
    batch_norm_momentum: the highest momentum of the trained layers of batch normalization; 0 if
      there are none. It is also 0 if `--weights` initializes their averages, which then need not
      converge.
    parameter_counts: see count_parameters.
  """
  estimator: tf.estimator.Estimator
  training_estimator: tf.estimator.Estimator
  frozen_part: Optional[tf.keras.Model]
  one_hot: bool
  schedule: Optional[Schedule]
  best_metric: BestMetric
  batch_norm_momentum: float
  has_convolutions: bool
  parameter_counts: Dict[str, int]


def build_model(run: Run) -> BuiltModel:
  """Builds and compiles the model, and checks that it fits the checkpoint.

  Raises:
    UserError: the model does not accept the images or the flags, or does not fit the checkpoint.
  """
  settings, spec = run.settings, run.data.spec
  # In a new graph, the layers get the same names even if this process has built models before. The
  # model is built outside the strategy's scope, as model_to_estimator requires.
  with show_phase('building the model'), tf.Graph().as_default():
    # The random initial weights depend on the seed, and on the number of operations that precede
    # the model in the graph.
    tf.set_random_seed(settings.optimizer.seed)
    tf.train.create_global_step()
    model = compiling.build_model(settings.model, spec)
    if settings.input.cache_features:
      spec.require_images('--cache_features')
    schedule = compiling.compile_model(model, settings, run.schedule)
  if run.start.checkpoint is not None:
    compatibility.check_fits_checkpoint(model, settings, run.start.checkpoint_run_dir,
                                        run.start.checkpoint)
  return BuiltModel(model, schedule)


def collect_shared_values(run: Run, model: tf.keras.Model) -> Dict[str, str]:
  """Returns the values that must be the same on all workers, by their descriptions."""
  spec, source = run.data.spec, run.data.train
  assert source is not None
  variables = json.dumps([[weight.op.name, weight.shape.as_list()] for weight in model.weights])
  return {
      'the step of the checkpoint in --model_dir': str(run.start.step),
      'the number of replicas': str(run.engine.devices.num_replicas),
      'the image shape': str(spec.image_shape),
      'the class names': ','.join(spec.labels),
      'the training examples (digest)': source.digest_for_workers(),
      "the model's variables (digest of their names and shapes)": hashlib.md5(
          variables.encode('utf-8')).hexdigest(),
  }


def convert_model(run: Run, built_model: BuiltModel) -> PreparedModel:
  """Loads the pretrained weights, if any, and converts the model to Estimators.

  On the chief of a new run, this function also writes the initial weights.

  Raises:
    UserError: `--weights` does not fit the model, or the model cannot be converted.
  """
  settings, spec, model = run.settings, run.data.spec, built_model.keras_model
  trains = run.schedule is not None
  loss, frozen_part = None, None
  with show_phase('converting the model to an Estimator'), model.outputs[0].graph.as_default():
    if settings.model.weights != 'none':
      # The first session of a process determines the options of its GPUs. Without this session,
      # Keras would make the first one, with default options.
      tf.keras.backend.set_session(tf.Session(
          config=make_session_config(settings.devices, run.engine.devices)))
      initial_weights.load_initial_weights(model, settings.model, spec.image_shape)
    run_config = run.engine.make_run_config()
    if trains:
      loss = compiling.make_training_losses(model, settings.optimizer, run.data.train)

    def make_estimator(graph: CompiledGraph, frozen_part: Optional[tf.keras.Model],
                       preprocess: Callable[[Any], Any]) -> tf.estimator.Estimator:
      return to_estimator(
          ModelFn(graph, len(spec.labels), preprocess,
                  functools.partial(_translate_conversion_errors, settings.model),
                  '--dataset=' + spec.name, frozen_part), run_config)

    preprocess = compiling.choose_preprocess_function(model, settings.model, spec)
    with _translate_conversion_errors(settings.model):
      compiled_graph = CompiledGraph(model, loss)
      if run.start.checkpoint is None and run.process.is_chief:
        initial_weights.save_initial_weights(run_config, compiled_graph.weight_names,
                                             compiled_graph.weight_values())
      estimator = training_estimator = make_estimator(compiled_graph, None, preprocess)
      if settings.input.cache_features and trains:
        frozen_part, trained_part = frozen_features.split_after_frozen_layers(
            model, settings.model.model)
        trained_part.compile(model.optimizer, model.loss, loss_weights=model.loss_weights)
        training_estimator = make_estimator(
            CompiledGraph(trained_part, loss), frozen_part, lambda features: features)
    tf.keras.backend.set_session(None)
    prepared = PreparedModel(
        estimator, training_estimator, frozen_part,
        one_hot=not losses.model_takes_class_indices(model), schedule=built_model.schedule,
        best_metric=selection.find_best_metric(settings.evaluation, model, len(spec.labels)),
        batch_norm_momentum=max((
            layer.momentum for layer in nested_layers(model)
            if layer.trainable and isinstance(layer, tf.keras.layers.BatchNormalization)
            and settings.model.weights == 'none'), default=0.),
        has_convolutions=has_convolutions(model),
        parameter_counts=count_parameters(model))
  run.start_up.end_phase('model')
  _log_setup(run, prepared)
  return prepared


@contextlib.contextmanager
def _translate_conversion_errors(flags: ModelFlags) -> Iterator[None]:
  with contextlib.ExitStack() as stack:
    if user_code.is_function_name(flags.model):
      stack.enter_context(user_code.translate_errors(
          'the model cannot be converted to an Estimator', '--model=' + flags.model))
    stack.enter_context(translate_model_errors())
    yield


def write_run_files(run: Run) -> None:
  """Writes data.json, flags.txt and labels.txt, and logs the flags that a resumed run has changed.

  If there is nothing to train, an existing flags.txt is not changed.

  Must be called after the model has been converted. Otherwise, a run that fails during the
  conversion would replace the files that describe the checkpoint.
  """
  differences = run.run_dir.flag_differences(run.settings, [
      name for name, _ in run.settings.items() if name not in ('model_dir', *OUTPUT_FLAGS)])
  if differences and run.start.checkpoint is not None and run.trains_further:
    _LOG.info('resuming with the weights of step %d and other flags: %s', run.start.step,
              ', '.join(differences))
  if run.settings.run.evaluates and run.data.test is not None:
    test_examples: Optional[str] = run.data.test.content_digest()
  else:  # This run does not evaluate, so the record of an earlier run remains valid.
    previous_record = data_record.read(run.run_dir)
    test_examples = None if previous_record is None else previous_record.test_examples
  # data.json must be written before flags.txt, because data_record.read derives a missing data.json
  # from the flags.txt of the earlier run.
  data_record.write(run.run_dir, DataRecord(test_examples, run.data.validation))
  if run.trains_further or not run.run_dir.read_flags():
    run.run_dir.record_flags(run.settings)
  run.run_dir.record_class_names(run.data.spec.labels)


def _log_setup(run: Run, model: PreparedModel) -> None:
  settings, engine = run.settings, run.engine
  _LOG.info('%s on %s: %s, %d replica(s) on %s%s, batch size %d global, %d per replica',
            settings.model.model, settings.data.dataset, settings.devices.distribution_strategy,
            engine.num_replicas, ', '.join(engine.devices.display_names),
            ' of {} workers'.format(engine.num_workers) if engine.num_workers > 1 else '',
            settings.optimizer.batch_size, engine.examples_per_replica)
  log_parameters(run, model.parameter_counts)
  flags, schedule = settings.optimizer, model.schedule
  if schedule is not None and run.trains_further and (
      flags.lr_schedule, flags.lr_warmup_epochs, flags.scale_learning_rate) != (
          'constant', 0., 'none'):
    _LOG.info('learning rate %s%s', schedule, '' if flags.scale_learning_rate == 'none' else (
        '; scaled ({}) from batch size {}'.format(flags.scale_learning_rate,
                                                  flags.base_batch_size)))


def count_parameters(model: tf.keras.Model) -> Dict[str, int]:
  """Returns the numbers of parameters (`total`, `trainable`, `frozen`), and their size (`bytes`).

  A parameter is frozen if its layer is frozen. The averages of batch normalization in layers that
  are not frozen are counted only in `total`.
  """
  def count(weights: Iterable[tf.Variable]) -> int:
    return sum(weight.shape.num_elements() for weight in weights)

  frozen = {id(weight): weight for layer in nested_layers(model) if not layer.trainable
            for weight in layer.weights}
  return {'total': count(model.weights), 'trainable': count(model.trainable_weights),
          'frozen': count(frozen.values()),
          'bytes': sum(count([weight]) * weight.dtype.size for weight in model.weights)}


def has_convolutions(model: tf.keras.Model) -> bool:
  """Returns whether a layer of the model, or of a model in it, is a convolution."""
  return any(isinstance(layer, _CONVOLUTIONS) for layer in nested_layers(model))


def log_parameters(run: Run, counts: Dict[str, int]) -> None:
  """Logs the numbers of parameters, and warns of frozen parameters with random initial weights."""
  _LOG.info('{total:,} parameters, {trainable:,} of them trained, {frozen:,} in frozen layers, '
            '{size}'.format(size=format_bytes(counts['bytes']), **counts))
  settings = run.settings
  if counts['frozen'] and run.start.checkpoint is None and (
      settings.model.weights == 'none' and not user_code.is_function_name(settings.model.model)):
    _LOG.warning('%s of %s parameters are frozen with random weights: give --weights, '
                 'or train more layers with --trainable_layers', format_number(
                     counts['frozen']), format_number(counts['total']))
