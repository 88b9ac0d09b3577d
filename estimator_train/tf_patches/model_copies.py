"""Copies Keras models exactly, for graphs other than their own.

Line numbers refer to tensorflow_core/python/keras/models.py.
"""

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.tf_patches.configurations import (
  MISSING,
  config_of,
  copy_layer,
  is_equal,
  is_of_library,
  names_in_code,
  nested_layers,
)

Layer = Any  # A tf.keras.layers.Layer.
LayerPairs = List[Tuple[Layer, Layer]]

# Keras's lists of sublayers and weights. They are not copied: the constructors of tf.keras.Model
# and Layer make new lists only if there are none.
_TRACKING = ('_layers', '_trainable_weights', '_non_trainable_weights',
             '_obj_reference_counts_dict')


class ModelCopier:
  """Copies a model any number of times.

  Defect: line 57 copies a layer by its class and the result of `get_config`. Symptoms: these are
  lost: arguments of constructors that `get_config` lacks, attributes that were set later, losses
  that were added as functions, `trainable` of layers inside of layers, the second use of a layer in
  a `Sequential`, and the use of a layer both inside and outside of an inner model. Line 441 resets
  a subclass of tf.keras.Model without `get_config` in place: only one copy can exist at a time, and
  lists of layers and inner models are rejected.

  Args:
    model: the model.
    custom_objects: functions and classes by name, which the `from_config` of a layer may need.

  Attributes:
    model: the model.
  """

  def __init__(self, model: tf.keras.Model,
               custom_objects: Optional[Mapping[str, Any]] = None) -> None:
    self.model = model
    self._custom_objects = dict(custom_objects or {})
    # The attributes that a layer loses when it is created from its configuration, by its id.
    self._lost_attributes: Dict[int, Dict[str, Any]] = {}
    # `model.built` at the last search for these attributes; None: there was no search. The first
    # call of a model changes configurations, so that a change of `built` requires a new search.
    self._built_at_last_search: Optional[bool] = None
    self._may_lose_attributes = not all(
        is_of_library(type(layer)) for layer in nested_layers(model))

  def copy(self, inputs: Any = None) -> tf.keras.Model:
    """Copies the model in the default graph; the copy is not compiled.

    Args:
      inputs: the tensors to which the copy is applied; None: placeholders, if the model is defined
        by its inputs and outputs.

    Raises:
      ValueError: a layer cannot be copied.
    """
    if self._may_lose_attributes and self._built_at_last_search != self.model.built:
      with tf.Graph().as_default():
        trial = _Copying({}, self._custom_objects)
        trial.copy_model(self.model, None if inputs is None else tf.nest.map_structure(
            lambda tensor: tf.placeholder(tensor.dtype, tensor.shape), inputs))
        self._lost_attributes = trial.find_lost_attributes()
      self._built_at_last_search = self.model.built
    copying = _Copying(self._lost_attributes, self._custom_objects)
    copy = copying.copy_model(self.model, inputs)
    for original, layer in copying.pairs:
      _copy_added_losses(original, layer, copying.pairs)
    self._copy_trainable(copying.pairs)
    return copy

  def _copy_trainable(self, pairs: LayerPairs) -> None:
    """Freezes the layers of a copy that are frozen in the original.

    Raises:
      ValueError: a frozen layer has no known copy.
    """
    copies = {id(original): layer for original, layer in pairs}
    for original in nested_layers(self.model):  # Outer layers precede the layers inside them.
      if id(original) in copies:
        # The setter also sets the attribute of the layers inside.
        copies[id(original)].trainable = original.trainable
      elif original.weights and not original.trainable:
        raise ValueError(
            'a frozen layer must be an attribute of the layer or model that contains it, or an '
            'element of a list or dict: {!r}: assign it to an attribute'.format(original.name))


class _Copying:
  """One copy of a model and of the layers in it.

  Args:
    lost_attributes: attributes to set, by the id of the layer of the original.
    custom_objects: functions and classes by name.

  Attributes:
    pairs: the layers and models inside the original, the original itself, and their copies.
  """

  def __init__(self, lost_attributes: Mapping[int, Dict[str, Any]],
               custom_objects: Mapping[str, Any]) -> None:
    self.pairs: LayerPairs = []
    self._lost_attributes = lost_attributes
    self._custom_objects = custom_objects
    self._copies: Dict[int, Layer] = {}
    # Layers, their new copies, and the attributes of the new copies that differ.
    self._differences: List[Tuple[Layer, Layer, Dict[str, Any]]] = []

  def copy_model(self, model: tf.keras.Model, inputs: Any = None) -> tf.keras.Model:
    """Copies a model, and applies the copy to inputs."""
    if _is_functional_or_sequential(model) and not isinstance(inputs, dict):
      copy = self._copy_network(model, inputs)
      self._remember(model, copy)
    else:
      copy = self._copy_layer(model)
    if inputs is not None and not copy.inputs:
      is_single = isinstance(inputs, (list, tuple)) and len(inputs) == 1
      copy._set_inputs(inputs[0] if is_single else inputs)  # pylint: disable=protected-access
    return copy

  def find_lost_attributes(self) -> Dict[int, Dict[str, Any]]:
    """Returns the attributes that a copy lacks, or has with other values.

    Attributes that `build` or `call` have changed are not lost.
    """
    lost: Dict[int, Dict[str, Any]] = {}
    for layer, copy, differences in self._differences:
      for name, new_value in differences.items():
        value, built_value = vars(layer)[name], vars(copy).get(name, MISSING)
        if is_equal(built_value, new_value) and not is_equal(value, built_value):
          lost.setdefault(id(layer), {})[name] = value
    return lost

  def _copy_layer(self, layer: Layer) -> Layer:
    """Copies a layer or model; returns the same copy for the same layer."""
    if id(layer) in self._copies:
      return self._copies[id(layer)]
    if _is_functional_or_sequential(layer):
      copy = self._copy_network(layer)
    elif isinstance(layer, tf.keras.Model) and config_of(layer) is None:
      copy = _copy_without_layers(layer)
    else:
      copy = copy_layer(layer, self._custom_objects)
    self._remember(layer, copy)
    self._copy_attributes(layer, copy)
    return copy

  def _copy_network(self, network: tf.keras.Model, inputs: Any = None) -> tf.keras.Model:
    """Copies a functional model or a Sequential with the `call` of Keras."""
    # pylint: disable=protected-access
    source = network
    if network._is_graph_network and len(network._network_nodes) > len(network._layers):
      # clone_model drops the second use of a layer in a Sequential, but not in a functional model.
      source = object.__new__(tf.keras.Model)
      vars(source).update(vars(network))
    copy = tf.keras.models.clone_model(source, inputs, self._copy_layer)
    if inputs is None and not copy.inputs and getattr(network, '_build_input_shape', None):
      copy.build(network._build_input_shape)
    return copy

  def _remember(self, layer: Layer, copy: Layer) -> None:
    self._copies[id(layer)] = copy
    self.pairs.append((layer, copy))

  def _copy_attributes(self, layer: Layer, copy: Layer) -> None:
    """Copies layers in attributes, and notes other attributes of a new copy that differ."""
    if _is_functional_or_sequential(layer):
      return
    has_new_layers, differences = False, {}
    for name in _attribute_names(layer):
      value, new_value = vars(layer)[name], vars(copy).get(name, MISSING)
      if _contains_layer(value):
        if not self._adopt_if_constructed(value, new_value):
          setattr(copy, name, self._copy_structure(value))
          has_new_layers = True
      elif not is_of_library(type(layer)) and not is_equal(value, new_value):
        differences[name] = new_value
    if has_new_layers:
      _sort_layers(layer, copy)
    for name, value in self._lost_attributes.get(id(layer), {}).items():
      setattr(copy, name, value)
    if differences:
      self._differences.append((layer, copy, differences))

  def _adopt_if_constructed(self, value: Any, new_value: Any) -> bool:
    """Returns whether the constructor has created the same layers in an attribute of a new copy.

    If it has, these layers are remembered as the copies.
    """
    if not isinstance(value, tf.keras.layers.Layer):
      items, new_items = _items(value), _items(new_value)
      return list(items) == list(new_items) and all(
          self._adopt_if_constructed(item, new_items[key]) for key, item in items.items())
    if id(value) in self._copies:
      return self._copies[id(value)] is new_value
    if (type(value) is not type(new_value) or isinstance(value, tf.keras.Model)
        or not is_equal(config_of(value), config_of(new_value))):
      return False
    self._remember(value, new_value)
    self._copy_attributes(value, new_value)
    return True

  def _copy_structure(self, value: Any) -> Any:
    """Copies a layer, or a list, tuple or dict with layers."""
    if isinstance(value, tf.keras.layers.Layer):
      return self._copy_layer(value)
    if not isinstance(value, (list, tuple, dict)):
      return value
    copies = {key: self._copy_structure(item) for key, item in _items(value).items()}
    return copies if isinstance(value, dict) else (
        tuple if isinstance(value, tuple) else list)(copies.values())


def _is_functional_or_sequential(layer: Layer) -> bool:
  """Returns whether a layer is a functional model or a Sequential with the `call` of Keras."""
  return isinstance(layer, tf.keras.Model) and (
      layer._is_graph_network  # pylint: disable=protected-access
      or isinstance(layer, tf.keras.Sequential) and type(layer).call is tf.keras.Sequential.call)


def _copy_without_layers(model: tf.keras.Model) -> tf.keras.Model:
  """Copies a subclass of tf.keras.Model by its attributes, except those that contain layers.

  Raises:
    ValueError: the model has weights that only its constructor can create.
  """
  if model._trainable_weights or model._non_trainable_weights:  # pylint: disable=protected-access
    raise ValueError('a subclass of tf.keras.Model that has weights outside of its layers must '
                     'define get_config and from_config: {}: define both methods'.format(
                         type(model).__name__))
  copy: Any = object.__new__(type(model))
  vars(copy).update({name: value for name, value in vars(model).items()
                     if name not in _TRACKING and not name.startswith('_self_')
                     and not _contains_layer(value)}, optimizer=None)
  tf.keras.Model.__init__(copy, name=model.name)
  return copy


def _attribute_names(layer: Layer) -> List[str]:
  """Returns the names of the attributes of a layer that its copy must have.

  Models have many public attributes that only Keras uses.
  """
  used = names_in_code(type(layer))
  return [name for name, value in vars(layer).items() if name not in _TRACKING and (
      name in used or not name.startswith('_')
      and (not isinstance(layer, tf.keras.Model) or _contains_layer(value)))]


def _contains_layer(value: Any) -> bool:
  """Returns whether a value is a layer, or a list, tuple or dict with a layer."""
  return (isinstance(value, tf.keras.layers.Layer)
          or any(map(_contains_layer, _items(value).values())))


def _items(value: Any) -> Dict[Any, Any]:
  """Returns the items of a list, tuple or dict by index or key; {} for any other value."""
  if isinstance(value, (list, tuple)):
    return dict(enumerate(value))
  return value if isinstance(value, dict) else {}


def _sort_layers(layer: Layer, copy: Layer) -> None:
  """Restores the order of the layers in a copy, on which the order of its weights depends."""
  # pylint: disable=protected-access
  names: Dict[int, str] = {id(value): name for name, value in vars(layer).items()}
  order = [id(vars(copy).get(names.get(id(item), ''))) for item in layer._layers]
  copy._layers.sort(key=lambda item: order.index(id(item)) if id(item) in order else len(order))


def _copy_added_losses(layer: Layer, copy: Layer, pairs: LayerPairs) -> None:
  """Adds the losses to a copy of a layer that were added to the layer as functions.

  Raises:
    ValueError: a loss was added to the layer as a tensor.
  """
  # pylint: disable=protected-access
  present = [_loss_code(loss) for loss in copy._callable_losses]
  for loss in layer._callable_losses:
    if _loss_code(loss) in present:
      present.remove(_loss_code(loss))
    else:
      copy.add_loss(functools.partial(_compute_loss, loss, pairs))
  if layer._losses and not copy._losses and is_of_library(type(layer)):
    raise ValueError('a tensor is a loss of a model, not of a layer, unless the call of the layer '
                     'adds it: layer {!r}: call model.add_loss'.format(layer.name))


def _compute_loss(loss: Callable[[], tf.Tensor], pairs: LayerPairs) -> tf.Tensor:
  """Calls a loss that may refer to layers of the original.

  During the call, each of these layers has the attributes of its copy.
  """
  attributes = [(original, vars(original)) for original, _ in pairs]
  try:
    for original, copy in pairs:
      object.__setattr__(original, '__dict__', vars(copy))
    return loss()
  finally:
    for original, own in attributes:
      object.__setattr__(original, '__dict__', own)


def _loss_code(loss: Any) -> Any:
  """Returns the code of a loss function, which identifies it, inside of Keras's partial objects."""
  while isinstance(loss, functools.partial):
    is_tag = loss.func.__name__ == '_tag_unconditional'
    loss = loss.args[0] if is_tag else loss.func
  return getattr(loss, '__code__', type(loss))
