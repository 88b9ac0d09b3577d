"""Imports the graph that Keras has built for a compiled model into the graphs of an Estimator.

The graph of a compiled model contains what `fit`, `evaluate` and `predict` compute. This module
adds the gradients to this graph or to a copy of it, because only these two graphs contain the
loops, functions and custom gradients of the model. A `model_fn` makes new variables, and imports
the subgraph that its mode needs. The import replaces the model's variables by the new variables,
and its placeholders by a batch. See docs/library.md.

CompiledGraph is the graph that Keras has built, ModeSubgraph is what one mode needs of it,
ImportedModel is the copy in the graph of an Estimator, and Fetches are the results of a batch.
"""

import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue
from estimator_train.model import losses
from estimator_train.model.inputs import Batch
from estimator_train.system import machine
from estimator_train.tf_patches import (
  boolean_arrays,
  compiled_models,
  estimator,
  gradients,
  graphs,
  saved_weights,
  variables,
)
from estimator_train.tf_patches.compiled_models import OutputLoss

_TRAIN, _EVAL = tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL


class CompiledGraph:
  """The graph of a compiled Keras model.

  The model must not be compiled again after this object has been made. The object must be made in
  the graph of the model, or in eager mode if the model was built there.

  Args:
    loss_functions: the losses to train with, one for each output; None for the losses of the model.

  Attributes:
    is_built_late: whether the model is, or was, built only on its first batch.
  """

  def __init__(self, model: tf.keras.Model,
               loss_functions: Optional[Sequence[tf.keras.losses.Loss]] = None) -> None:
    self.model = model
    self.is_built_late = not model.inputs
    self._loss_functions = loss_functions
    self._is_eager = tf.executing_eagerly()
    self._graph = compiled_models.find_graph(model)
    self._values = saved_weights.ValueReader(self._graph)
    self._weight_names: Optional[List[str]] = None
    self._subgraphs: Dict[Tuple[Any, ...], 'ModeSubgraph'] = {}
    self._lock = threading.RLock()  # Replicas build their graphs in threads.
    with self._enter_graph():
      if compiled_models.runs_eagerly(model):
        compiled_models.recompile(model)
      if model.inputs and not self._is_eager:
        gradients.make_training_function(model)

  def _enter_graph(self) -> Any:
    return compiled_models.enter_graph(self._graph, self._is_eager)

  def build(self, features: Any) -> None:
    """Builds the model on the features of its first batch, as `fit` does."""
    with self._lock:
      if not self.model.inputs:
        with self._enter_graph():
          compiled_models.build_on_placeholders(self.model, features)
          if not self._is_eager:
            gradients.make_training_function(self.model)

  @property
  def weight_names(self) -> List[str]:
    """The names of `model.weights` in checkpoints; see saved_weights.checkpoint_names."""
    with self._lock:
      if self._weight_names is None:
        with self._enter_graph():
          self._weight_names = saved_weights.checkpoint_names(self.model, self._graph)
      return self._weight_names

  def weight_values(self, seed: Optional[int] = None) -> List[np.ndarray]:
    """Returns the values of the weights, in the order of `model.weights`.

    Args:
      seed: the seed of the initial values if the weights have no values yet; None to use the seeds
        of the model's graph.
    """
    with self._enter_graph():
      return self._values.read(self.model.weights, seed)

  def read_hyperparameters(self) -> estimator.Hyperparameters:
    """Calls estimator.read_hyperparameters. Must be called in the thread of the user."""
    if self._is_eager:
      return estimator.read_hyperparameters(self.model.optimizer)
    with self._enter_graph():
      return estimator.read_hyperparameters(self.model.optimizer)

  def names_of_losses_that_are_no_means(self) -> List[str]:
    with self._lock, self._enter_graph():
      return losses.names_of_losses_that_are_no_means(self.model)

  def subgraph_of_mode(self, mode: str, has_sample_weights: bool = False,
                       has_metrics: bool = False) -> 'ModeSubgraph':
    """Returns the subgraph that a mode needs. All replicas use the same subgraph.

    Args:
      mode: one of tf.estimator.ModeKeys.
      has_metrics: whether training also needs the metrics of the model.
    """
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync if mode == _TRAIN else 1
    key = mode, has_sample_weights, mode == _EVAL or (mode == _TRAIN and has_metrics), num_replicas
    with self._lock:
      if key not in self._subgraphs:
        with self._enter_graph(), compiled_models.restore_trainable_state(self.model):
          self._subgraphs[key] = ModeSubgraph(
              self.model, self._graph, self._values, self._loss_functions, *key)
      return self._subgraphs[key]


class Fetches(NamedTuple):
  """The tensors and operations that a mode computes from a batch.

  In a ModeSubgraph, they belong to the model's graph. In the result of
  ImportedModel.import_for_batch, they are the counterparts in the graph of the Estimator.

  Attributes:
    loss: None for predictions.
    gradients: the gradient of the loss for each trained weight: a tensor, IndexedSlices or None.
    updates: operations that update statistics and other state, only in training.
    output_losses: the losses of the outputs without reduction, only in evaluation.
    regularization_losses: the losses that layers have added, only in evaluation.
    metrics: the metrics by name, only in evaluation and in a SavedModel of the mode TRAIN.
  """
  outputs: Sequence[tf.Tensor]
  loss: Optional[tf.Tensor] = None
  gradients: Sequence[Any] = ()
  updates: Sequence[tf.Operation] = ()
  output_losses: Sequence[OutputLoss] = ()
  regularization_losses: Sequence[tf.Tensor] = ()
  metrics: Any = {}


class ModeSubgraph:
  """The subgraph of a compiled model that a mode needs. Must be constructed in the model's graph.

  Attributes:
    inputs: the tensors that the features replace.
    endpoints: for each output, the tensors that the labels and sample weights replace.
    fed_operation_names: the names of the operations of the tensors in `inputs` and `endpoints`.
    trained_weights: the weights that each optimizer trains, in the order of `fetches.gradients`.
    upstream_gradient: the gradient at the loss, from which backpropagation starts; it is 1 unless
      the optimizer scales the loss. None if the mode does not train.
    extracted_nodes: the nodes to import.
  """

  def __init__(self, model: tf.keras.Model, graph: tf.Graph, values: saved_weights.ValueReader,
               loss_functions: Optional[Sequence[Any]], mode: str, has_sample_weights: bool,
               has_metrics: bool, num_replicas: int) -> None:
    self.mode = mode
    self.inputs = compiled_models.fed_inputs(model)
    self.endpoints: List[compiled_models.Endpoint] = []
    self.trained_weights = compiled_models.trained_weights(model)
    self.upstream_gradient: Optional[tf.Tensor] = None
    self.fetches = Fetches(model.outputs)
    is_trained = mode == _TRAIN
    if mode != tf.estimator.ModeKeys.PREDICT:
      self.endpoints = compiled_models.make_endpoints(model, has_sample_weights)
      self.fetches = self.fetches._replace(
          loss=compiled_models.total_loss(model, num_replicas, loss_functions))
    self.variables = variables.OriginalVariables(model, graph, values)
    if is_trained:
      self.fetches = self.fetches._replace(updates=compiled_models.training_updates(model))
    if mode == _EVAL:
      self.fetches = self.fetches._replace(
          output_losses=compiled_models.output_losses(model),
          regularization_losses=compiled_models.regularization_losses(model))
    if has_metrics:
      self.fetches = self.fetches._replace(metrics=compiled_models.make_metrics(model))
    self.variables.add_metrics([variable for metric in self.fetches.metrics.values()
                                for variable in metric.variables])
    self._extract_nodes(self._add_gradients() if is_trained else graph)

  def _add_gradients(self) -> tf.Graph:
    """Adds the gradients to the graph or to a copy of it. Returns the changed graph."""
    handles = [self.variables.handle(weight) for weights in self.trained_weights
               for weight in weights]
    graph = gradients.copy_graph_if_gradients_change_it(self.fetches.loss)
    loss, *handles = (graph.as_graph_element(tensor.name)
                      for tensor in (self.fetches.loss, *handles))
    with graph.as_default():
      self.upstream_gradient = gradients.make_upstream_gradient(loss)
      with gradients.pad_filter_gradients(machine.needs_padded_gradients()):
        self.fetches = self.fetches._replace(
            gradients=tf.gradients(loss, handles, self.upstream_gradient))
    return graph

  def _extract_nodes(self, graph: tf.Graph) -> None:
    phase = compiled_models.learning_phase()
    fed = tf.nest.flatten([self.inputs, [endpoint.target for endpoint in self.endpoints]],
                          expand_composites=True)
    fed += [endpoint.sample_weight for endpoint in self.endpoints]
    self.fed_operation_names = {tensor.op.name for tensor in fed if tensor is not None}
    replaced_names = set(self.fed_operation_names)
    constants = {}
    if isinstance(phase, tf.Tensor):
      constants[phase.op.name] = self.mode == _TRAIN
    if self.upstream_gradient is not None:
      replaced_names.add(self.upstream_gradient.op.name)
    self.learning_phase_name = phase.name if isinstance(phase, tf.Tensor) else ''
    fetched = [graph.as_graph_element(name) for name in graphs.fetch_names(self.fetches)]
    self.extracted_nodes = graphs.extract_subgraph(
        graph, [getattr(element, 'op', element) for element in fetched],
        replaced_names | {*constants} | self.variables.handle_op_names, constants)
    if tf.config.experimental.list_physical_devices('GPU'):
      self.extracted_nodes = boolean_arrays.store_as_float16(
          self.extracted_nodes, {getattr(element, 'op', element).name for element in fetched})
    self.variables.remove_unused(self.extracted_nodes)
    for node in self.extracted_nodes.nodes.values():
      if node.op == 'Placeholder':
        raise InvalidValue('a model must compute its outputs from its inputs and weights only',
                           'it also uses the placeholder ' + node.name,
                           'make the placeholder an input of the model, or a constant')


class ImportedModel:
  """A model in the default graph: its variables, and the operations on one or several batches.

  Must be constructed in each replica.

  Args:
    weights_path: the path of the initial weights. It is None if a checkpoint will be restored, and
      the initial values are then zeros.

  Attributes:
    variables_by_original: the variables, by the ids of the variables in the model's graph.
    trained_weights: the weights that each optimizer trains.
  """

  def __init__(self, compiled_graph: CompiledGraph, subgraph: ModeSubgraph,
               weights_path: Optional[str]) -> None:
    self._subgraph = subgraph
    self._variables = subgraph.variables.make_variables(compiled_graph.weight_names, weights_path)
    self.variables_by_original: Dict[int, Any] = self._variables.by_id
    self.trained_weights = [[self.variables_by_original[id(weight)] for weight in weights]
                            for weights in subgraph.trained_weights]

  def import_for_batch(self, batch: Batch) -> Tuple[Fetches, Optional[tf.Tensor]]:
    """Imports the operations on a batch. Returns the fetches and the upstream gradient."""
    subgraph = self._subgraph
    replacements = self._variables.make_replacements()

    def add_replacement(tensor: Any, value: Any) -> None:
      if tensor is not None and value is not None:
        replacements.update((old.name, new) for old, new in zip(
            *(tf.nest.flatten(item, expand_composites=True) for item in (tensor, value))))

    for tensor, value in zip(subgraph.inputs, batch.features):
      add_replacement(tensor, value)
    for endpoint, label, weight in zip(subgraph.endpoints, batch.labels, batch.sample_weights):
      add_replacement(endpoint.target, label)
      add_replacement(endpoint.sample_weight, weight)
    if subgraph.learning_phase_name:
      replacements[subgraph.learning_phase_name] = tf.constant(subgraph.mode == _TRAIN)
    upstream_gradient = None
    if subgraph.upstream_gradient is not None:
      upstream_gradient = gradients.make_upstream_gradient(subgraph.upstream_gradient)
      replacements[subgraph.upstream_gradient.name] = upstream_gradient
    fetches = subgraph.fetches
    updates, assignments = self._variables.split_updates(
        fetches.updates, subgraph.extracted_nodes, subgraph.fed_operation_names)
    imported = graphs.ImportedSubgraph(subgraph.extracted_nodes, replacements, graphs.fetch_names(
        [fetches._replace(updates=updates), assignments]))
    results = imported.find_counterparts(fetches._replace(updates=updates))
    return results._replace(updates=[*results.updates, *self._variables.make_assignments(
        assignments, imported)]), upstream_gradient

  def updated_statistics(self) -> List[Any]:
    """Returns the float variables with a copy on each replica that only this replica updates."""
    return self._variables.updated_copies(self._subgraph.extracted_nodes)

  def make_loss_for_optimizer(self, fetches: Fetches,
                           upstream_gradient: tf.Tensor) -> gradients.KnownGradients:
    """Makes a loss for an optimizer. The gradients of this loss are those in `fetches`."""
    return gradients.KnownGradients(fetches.loss, upstream_gradient, sum(self.trained_weights, []),
                                    fetches.gradients)
