"""Works around defects of Estimators and `model_to_estimator`, and calls private functions of both.

Line numbers without a file refer to tensorflow_estimator/python/estimator/estimator.py before
copy_onto_batch, and to keras.py in the same folder after it.
"""

import contextlib
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow.python.keras import backend, optimizers
from tensorflow.python.keras.utils import tf_utils
from tensorflow.python.training.tracking import graph_view, util
from tensorflow_estimator.python.estimator import estimator

from estimator_train.tf_patches.configurations import copy_metrics, copy_optimizer
from estimator_train.tf_patches.model_copies import ModelCopier
from estimator_train.tf_patches.optimizers import (
  accumulates_gradients,
  sum_gradients_before_changes,
)


@contextlib.contextmanager
def without_nan_hook() -> Iterator[None]:
  """Disables the hook of Estimator that ends the run when the loss is nan.

  Defect: lines 1380 and 1381 always add a `NanTensorHook`, which no setting disables. Symptom: the
  run ends at a step that loss scaling would skip; without loss scaling, a nan ends the run with a
  `NanLossDuringTrainingError`, whose message names neither the step nor a checkpoint.
  """
  hook_class = tf.train.NanTensorHook
  after_run = hook_class.after_run
  hook_class.after_run = lambda *unused: None
  try:
    yield
  finally:
    hook_class.after_run = after_run


def keep_loss_unscaled() -> None:
  """Prevents a `tf.train` optimizer from dividing the loss by the number of replicas.

  Call this function in the model_fn, because Estimator enables the division just before calling the
  model_fn.

  Defect: line 1244 makes `tf.train` optimizers divide the loss
  (tensorflow_core/python/training/optimizer.py:522), although Keras has already divided the loss by
  the same number. Symptom: on N replicas, the gradients and the logged loss are too small by the
  factor N.
  """
  tf.distribute.get_strategy()._scale_loss_for_estimator = False  # pylint: disable=protected-access


def complete_config(config: Optional[tf.estimator.RunConfig],
                    model_dir: Optional[str]) -> tf.estimator.RunConfig:
  """Returns the RunConfig that an Estimator with these arguments uses.

  If neither argument names a folder, a temporary folder is made for the RunConfig. Private API:
  `maybe_overwrite_model_dir_and_session_config` (line 1784), because no public function combines
  the two arguments.

  Raises:
    ValueError: `model_dir` differs from the folder in `config`, or `config` is not a RunConfig.
  """
  return estimator.maybe_overwrite_model_dir_and_session_config(config, model_dir)


def release_server() -> None:
  """Releases the server that `train_and_evaluate` started for this process of a cluster.

  Defect: tensorflow_core/python/distribute/distribute_coordinator.py:450 keeps the server in a
  thread-local variable until the process exits. Python then destroys the server after
  the modules that `Server.__del__` needs. Symptom: Python prints `Exception ignored in: <function
  Server.__del__`.
  """
  distribute_coordinator._thread_local.server = None


def open_event_file(model_dir: str) -> tf.summary.FileWriter:
  """Opens the event file before Estimator's hooks do, and returns its writer.

  Defect: a new `FileWriter` writes the default graph
  (tensorflow_core/python/summary/writer/writer_cache.py:62), and Estimator's hooks make the writer
  in `begin`, when the graph is not complete. Symptom: the event file starts with an incomplete
  graph. This graph is almost as large as the complete graph, and TensorBoard may show the
  incomplete graph.
  """
  with tf.Graph().as_default():
    return tf.summary.FileWriterCache.get(model_dir)


def remove_loss_summary(loss: tf.Tensor) -> None:
  """Removes Estimator's own summary of the loss from the default graph.

  Defect: lines 1375 to 1377 add this summary unless there is a summary operation whose name is
  exactly `loss`. Symptom: the event file contains the training loss twice, once under a tag that
  evaluations do not use.
  """
  summaries = tf.get_collection_ref(tf.GraphKeys.SUMMARIES)
  summaries[:] = [summary for summary in summaries
                  if not any(tensor is loss for tensor in summary.op.inputs)]


def copy_onto_batch(copier: ModelCopier, mode: str, inputs: Any) -> tf.keras.Model:
  """Copies a model onto the tensors of a batch.

  No defect: this function and compile_copy do the same as the private function
  `_clone_and_build_model` (line 181), but with exact copies; see model_copies.

  Args:
    copier: copies the model.
    mode: one of tf.estimator.ModeKeys.
    inputs: a tensor, or a list or dict with one tensor per input.
  """
  tf.keras.backend.set_learning_phase(mode == tf.estimator.ModeKeys.TRAIN)
  if mode != tf.estimator.ModeKeys.PREDICT:
    backend.track_variable(tf.train.get_or_create_global_step())
  return copier.copy(inputs)


@contextlib.contextmanager
def recorded_variables() -> Iterator[List[Any]]:
  """Yields a list of the variables that are made in a `with` block, for reused_variables."""
  variables: List[Any] = []

  def make_and_record(make: Any, **options: Any) -> Any:
    variables.append(make(**options))
    return variables[-1]

  with tf.variable_creator_scope(make_and_record):
    yield variables


@contextlib.contextmanager
def reused_variables(variables: Sequence[Any]) -> Iterator[None]:
  """Gives the variables to the layers of a copy of the model that is built in a `with` block.

  No defect: Keras shares the variables of layers by calling the same layer again, but copies of a
  model have their own layers.

  Args:
    variables: the variables of the first copy, in the order in which they were made.
  """
  remaining = iter(variables)
  with tf.variable_creator_scope(lambda unused_make, **unused_options: next(remaining)):
    yield


def compile_copy(copy: tf.keras.Model, model: tf.keras.Model, optimizer_config: Any,
                 labels: Sequence[Any], sample_weights: Optional[Sequence[Any]]) -> None:
  """Compiles a copy like the original model; see copy_onto_batch.

  Defect: metric objects are copied by their configurations only, and only in flat lists and dicts
  (tensorflow_core/python/keras/metrics.py:2825). Symptoms: metrics lose arguments or cannot be
  copied; the name of an output is prefixed twice.

  Args:
    copy: a copy of the model from copy_onto_batch.
    model: the compiled model.
    optimizer_config: the return value of get_optimizer_config for the optimizer of `model`.
    labels: for each output a tensor; None for an output without a loss.
    sample_weights: for each output a tensor or None; None: there are no sample weights.
  """
  # pylint: disable=protected-access
  copy.compile(
      _copy_optimizers(model.optimizer, optimizer_config), model.loss,
      metrics=copy_metrics(model._compile_metrics), loss_weights=model.loss_weights,
      sample_weight_mode=model.sample_weight_mode,
      weighted_metrics=copy_metrics(model._compile_weighted_metrics), target_tensors=list(labels))
  names = [metric.name for metric in getattr(model, '_compile_metric_functions', ())]
  if sample_weights is not None:
    for index, endpoint in enumerate(copy._training_endpoints):
      endpoint.sample_weight_mode = _sample_weight_mode(model.sample_weight_mode, index,
                                                        endpoint.output_name)
    copy._compile_weights_loss_and_weighted_metrics(list(sample_weights))
  if names and len(names) != len(copy._compile_metric_functions):
    # Of several metrics with one name, Keras uses the last, and has renamed the user's objects.
    raise ValueError('the metrics of an output must have different names: {}: give one of them '
                     'another name'.format(', '.join(names)))
  for metric, name in zip(copy._compile_metric_functions, names):
    metric._name = name


def _sample_weight_mode(modes: Any, index: int, output_name: str) -> Optional[str]:
  """Returns the mode of the sample weights of an output, which Keras sets only for placeholders."""
  if isinstance(modes, dict):
    return modes.get(output_name)
  return modes[index] if isinstance(modes, (list, tuple)) else modes


def _copy_optimizers(optimizer: Any, config: Any) -> Any:
  """Copies an optimizer or a list of optimizers; the global step counts their steps."""
  if isinstance(optimizer, (list, tuple)):
    return [_copy_optimizers(*pair) for pair in zip(optimizer, config)]
  global_step = tf.train.get_or_create_global_step()
  # TFOptimizer and LossScalingOptimizer wrap another one.
  _check_supports_strategies(getattr(optimizer, 'optimizer', optimizer))
  if isinstance(optimizer, optimizers.TFOptimizer):
    copy = optimizers.TFOptimizer(optimizer.optimizer, global_step)
    backend.track_tf_optimizer(copy)
  else:
    copy = copy_optimizer(optimizer, config)
    copy.iterations = global_step
  sum_gradients_before_changes(copy)
  return copy


def _check_supports_strategies(optimizer: Any) -> None:
  """Raises a ValueError if a strategy replicates variables that the optimizer cannot replicate.

  Keras's Nadam assigns its cache in each replica, and the `_create_slots` of some optimizers of
  `tf.train` asks for the only device of a variable.
  """
  # An optimizer that wraps another one has no slots of its own.
  code = getattr(getattr(type(optimizer), '_create_slots', None), '__code__', None)
  names = code.co_names if code else ()
  if tf.distribute.has_strategy() and (
      isinstance(optimizer, tf.keras.optimizers.Nadam) or 'colocate_with' in names):
    raise ValueError(
        'the optimizer does not support distribution strategies in TensorFlow 1.15: {}: give an '
        'optimizer of tf.keras.optimizers other than Nadam, or train without a strategy'.format(
            type(optimizer).__name__))


def output_names(model_copy: tf.keras.Model, model: tf.keras.Model) -> List[str]:
  """Returns the names of the outputs of a model from copy_onto_batch, equal on all replicas.

  Defect: on each replica, Keras adds a different suffix to the names of the outputs. This function
  returns the names in the user's model, if it has any, and otherwise removes the suffix in the same
  way as line 290, which this package does not execute. The outputs of a subclass of tf.keras.Model
  are numbered, and have no suffix. Symptom: the predictions of the replicas cannot be grouped.
  """
  if not tf.distribute.has_strategy() or not model_copy._is_graph_network:  # pylint: disable=protected-access
    return list(model_copy.output_names)
  if getattr(model, 'output_names', None):
    return list(model.output_names)
  return [re.sub(r'_\d$', '', name) for name in model_copy.output_names]


def make_train_op(model: tf.keras.Model) -> tf.Operation:
  """Returns the operation of a training step of a model from copy_onto_batch.

  Private API: `_make_train_function`, because no public function makes the attribute
  `train_function`.
  """
  # pylint: disable=protected-access
  if accumulates_gradients(model.optimizer):
    with backend.name_scope('training'):  # As _make_train_function, but without statistics.
      return tf.group(*model.optimizer.get_updates(model.total_loss,
                                                   model._collected_trainable_weights))
  model._make_train_function()
  return model.train_function.updates_op


def statistics_updates(model: tf.keras.Model) -> List[Any]:
  """Returns the updates of statistics of a model from copy_onto_batch, as in a training step."""
  return [*model.get_updates_for(None), *model.get_updates_for(model.inputs)]


def make_metrics(model: tf.keras.Model) -> Dict[str, Any]:
  """Returns the metrics of a model from copy_onto_batch, by name, also those added by `add_metric`.

  Defect: model_fn.py:515 runs only the first update of a metric. The update with the sample weights
  is the last one, and a layer that is used twice updates its metric twice. keras.py:226 leaves out
  the metrics that layers and models add. Symptoms: `weighted_metrics` ignore the sample
  weights; metrics of layers are missing.
  """
  # pylint: disable=protected-access
  model._make_test_function()
  compiled = model._compile_metric_functions
  for metric in compiled:
    del metric._updates[:-1]
  added = [metric for metric in model.metrics if metric not in compiled and metric._updates]
  # The metrics of an inner model also have updates that depend on its own placeholders.
  reachable = tf_utils.get_reachable_from_inputs(tf.nest.flatten(model.inputs))
  for metric in added:
    metric._updates[:] = [tf.group(*[update for update in metric._updates if update in reachable])]
  return {metric.name: metric for metric in [*compiled, *added]}


def make_object_saver(model: tf.keras.Model, config: tf.estimator.RunConfig) -> tf.train.Saver:
  """Makes the saver of object-based checkpoints, which tf.train.Checkpoint can read.

  Defect: line 345 makes a saver that keeps five checkpoints. Symptom: `keep_checkpoint_max` and
  `keep_checkpoint_every_n_hours` have no effect with `checkpoint_format='checkpoint'`.
  """
  # pylint: disable=protected-access
  model._track_trackable(tf.train.get_global_step(), 'estimator_global_step')
  saver = tf.train.Saver(
      graph_view.ObjectGraphView(model).frozen_saveable_objects(), sharded=True,
      max_to_keep=config.keep_checkpoint_max,
      keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours)
  saver._object_restore_saver = util.frozen_saver(model)
  return saver


def weight_shapes(copier: ModelCopier) -> Dict[str, List[int]]:
  """Returns the shapes of a model's weights, by the names of the weights in an Estimator's graph.

  See saved_weights.save_initial_weights about the names.
  """
  with tf.Graph().as_default():
    return {weight.op.name: weight.shape.as_list() for weight in copier.copy().weights}
