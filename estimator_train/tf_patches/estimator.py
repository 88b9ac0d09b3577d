"""Works around defects of Estimators and `model_to_estimator`, and calls private functions of both.

Line numbers without a file refer to tensorflow_estimator/python/estimator/estimator.py in the
functions before copy_optimizer, and to keras.py in the same folder in the functions after it.
"""

import contextlib
import copy
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator
from tensorflow.python.keras import backend, optimizers
from tensorflow.python.keras.optimizer_v2 import optimizer_v2
from tensorflow.python.training.tracking import graph_view, tracking, util
from tensorflow_estimator.python.estimator import estimator

from estimator_train.tf_patches.optimizers import sum_gradients_before_changes
from estimator_train.tf_patches.replica_updates import make_updates_linear

# The graph collection of the names of metrics without a summary.
_OMITTED_KEY = 'estimator_train/omitted_from_summary'
_write_dict_to_summary = estimator._write_dict_to_summary


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
  tf.distribute.get_strategy()._scale_loss_for_estimator = False


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


def omit_from_summary(name: str) -> None:
  """Makes Estimator write no summary of the metric `name` of the default graph if it is an array.

  Defect: lines 2074 to 2079 write each metric that is an array to the event file, as a tensor that
  TensorBoard does not show. Symptom: each evaluation writes 80 kB for the confusion matrix of 100
  classes.
  """
  tf.add_to_collection(_OMITTED_KEY, name)
  estimator._write_dict_to_summary = _write_summary_without_omitted


def _write_summary_without_omitted(output_dir: str, dictionary: Dict[str, Any],
                                   current_global_step: int) -> None:
  omitted = tf.get_collection(_OMITTED_KEY)  # The default graph is that of the metrics.
  _write_dict_to_summary(output_dir, {
      name: value for name, value in dictionary.items()
      if name not in omitted or np.ndim(value) == 0}, current_global_step)


Hyperparameters = Dict[int, Dict[str, Any]]


def read_hyperparameters(optimizer: Any) -> Hyperparameters:
  """Returns the hyperparameters of optimizers and their inner optimizers, by id of the optimizer.

  Must be called in the graph of the model, because a hyperparameter can be a variable of this
  graph.
  """
  if isinstance(optimizer, (list, tuple)):
    return {key: values for member in optimizer
            for key, values in read_hyperparameters(member).items()}
  if not isinstance(optimizer, optimizer_v2.OptimizerV2):
    return {}
  hyperparameters = {id(optimizer): {
      name: backend.get_value(value) if tf.is_tensor(value) else value
      for name, value in vars(optimizer)['_hyper'].items()}}
  for inner in vars(optimizer).values():
    if isinstance(inner, optimizer_v2.OptimizerV2):
      hyperparameters.update(read_hyperparameters(inner))
  return hyperparameters


def copy_optimizer(optimizer: Any, hyperparameters: Hyperparameters) -> Any:
  """Copies one or several optimizers for the default graph. Its global step counts their steps.

  Defect: model_to_estimator creates optimizers again from their configurations
  (tensorflow_core/python/keras/models.py:665). Symptom: arguments of a constructor that
  `get_config` lacks have their defaults, or the constructor fails.

  Args:
    hyperparameters: the return value of read_hyperparameters.

  Raises:
    ValueError: an optimizer is of another class than those of tf.keras.optimizers and tf.train, or
      a strategy does not support it.
  """
  if isinstance(optimizer, (list, tuple)):
    return [copy_optimizer(member, hyperparameters) for member in optimizer]
  if not isinstance(optimizer, (optimizers.TFOptimizer, optimizer_v2.OptimizerV2)):
    raise ValueError('the class of the optimizer is not supported: {}.{}: give an optimizer of '
                     'tf.keras.optimizers or tf.train'.format(
                         type(optimizer).__module__, type(optimizer).__name__))
  global_step = tf.train.get_or_create_global_step()
  # TFOptimizer and LossScalingOptimizer wrap another optimizer, which is checked.
  _check_supports_strategies(getattr(optimizer, 'optimizer', optimizer))
  if isinstance(optimizer, optimizers.TFOptimizer):
    make_updates_linear(optimizer.optimizer)
    new_optimizer = optimizers.TFOptimizer(optimizer.optimizer, global_step)
    backend.track_tf_optimizer(new_optimizer)
  else:
    new_optimizer = _copy_without_state(optimizer, hyperparameters)
    new_optimizer.iterations = global_step
  sum_gradients_before_changes(new_optimizer)
  return new_optimizer


def _copy_without_state(optimizer: Any, hyperparameters: Hyperparameters) -> Any:
  """Copies an optimizer of Keras without the variables that it has made in the model's graph."""
  new_optimizer = copy.copy(optimizer)
  attributes = vars(new_optimizer)
  for name, value in list(attributes.items()):
    if name.startswith('_self_'):  # Checkpoint dependencies, which the copy must not share.
      del attributes[name]
    elif isinstance(value, optimizer_v2.OptimizerV2):
      attributes[name] = _copy_without_state(value, hyperparameters)
    elif isinstance(value, tf.train.experimental.LossScale):
      attributes[name] = type(value).from_config(value.get_config())
    elif any(value is weight for weight in vars(optimizer).get('_weights', ())):
      attributes[name] = None  # For example, the cache of Nadam.
  attributes.update(_hyper=dict(hyperparameters[id(optimizer)]), _hypers_created=False, _slots={},
                    _slot_names=[], _weights=[], _iterations=None, _deferred_slot_restorations={})
  make_updates_linear(new_optimizer)
  return new_optimizer


def _check_supports_strategies(optimizer: Any) -> None:
  """Raises a ValueError if there is a strategy and the optimizer cannot use replicated variables.

  Keras's Nadam assigns to its cache in each replica. The `_create_slots` of some optimizers of
  `tf.train` requires that a variable has only one device.
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


def make_train_op(optimizer: Any, loss: tf.Tensor, trained_weights: Sequence[Sequence[Any]],
                  updates: Sequence[Any]) -> tf.Operation:
  """Returns the operation of a training step. Its variables have the same names as in Keras.

  Args:
    optimizer: the return value of copy_optimizer.
    trained_weights: the weights that each optimizer trains. A single optimizer trains several lists
      of weights one after the other.
    updates: further operations of the step.

  Raises:
    ValueError: there are more optimizers than lists of weights.
  """
  optimizers_in_order = optimizer if isinstance(optimizer, (list, tuple)) else (
      [optimizer] * len(trained_weights))
  if len(optimizers_in_order) != len(trained_weights):
    raise ValueError('a model must be compiled with one optimizer: {} optimizers: give one of '
                     'them'.format(len(optimizers_in_order)))
  if not any(trained_weights):  # Strategies cannot sum an empty list of gradients.
    return tf.group(tf.train.get_or_create_global_step().assign_add(1), *updates)
  with backend.name_scope('training'):
    return tf.group(*[update for member, weights in zip(optimizers_in_order, trained_weights)
                      for update in member.get_updates(loss=loss, params=list(weights))], *updates)


def make_object_saver(model: tf.keras.Model, counterparts: Mapping[int, Any],
                      config: tf.estimator.RunConfig) -> tf.train.Saver:
  """Makes the saver of object-based checkpoints, which tf.train.Checkpoint can read.

  Defect: line 345 makes a saver that keeps five checkpoints and lists absolute paths. Symptoms with
  `checkpoint_format='checkpoint'`: `keep_checkpoint_max` and `keep_checkpoint_every_n_hours` have
  no effect; a run that resumes in a copy of a folder deletes checkpoints in the original folder.

  Args:
    model: the model. Its attributes determine the names of the variables.
    counterparts: the variables and the optimizer of the default graph, by the ids of their
      originals in the model.
  """
  root = _copy_trackable(model, dict(counterparts))
  root._track_trackable(tf.train.get_global_step(), 'estimator_global_step')
  saver = tf.train.Saver(
      sharded=True, max_to_keep=config.keep_checkpoint_max, defer_build=True,
      save_relative_paths=True,
      keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours)
  saver._var_list = graph_view.ObjectGraphView(root).frozen_saveable_objects()
  # With a strategy, Scaffold builds the saver later, because a replica cannot read variables of
  # which each replica has a copy.
  if not tf.distribute.has_strategy():
    saver.build()
  saver._object_restore_saver = util.frozen_saver(root)
  return saver


def _copy_trackable(trackable: Any, counterparts: Dict[int, Any]) -> Any:
  """Copies a trackable object, so that the copy depends on the counterparts of its variables."""
  if id(trackable) not in counterparts:
    new_trackable = counterparts[id(trackable)] = tracking.AutoTrackable()
    for name, child in trackable._checkpoint_dependencies:
      if id(child) in counterparts or not isinstance(
          child, (tf.Variable, optimizer_v2.OptimizerV2, optimizers.TFOptimizer)):
        new_trackable._track_trackable(_copy_trackable(child, counterparts), name)
  return counterparts[id(trackable)]
