"""Finds the user's functions and classes in a Keras model; copying the model requires them."""

import types
from typing import Any, Dict, Iterator, Mapping, Set

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue


def find_custom_objects(model: tf.keras.Model,
                        known_objects: Mapping[str, Any]) -> Dict[str, Any]:
  """Returns, by name, the user's functions and classes in the configuration of a model.

  The configuration of a layer contains only the name of a function, such as an activation. When
  Keras copies the layer, Keras finds its own functions by name, but not functions of the user.

  Args:
    model: the model.
    known_objects: functions and classes by name that the user has given; the result contains them.

  Raises:
    InvalidValue: two different functions or classes have the same name.
  """
  found: Dict[str, Any] = dict(known_objects)
  for value in _configured_objects(model):
    is_function = isinstance(value, types.FunctionType)
    definition = value if is_function else type(value)
    if definition.__name__ in known_objects or (
        definition.__module__.split('.')[0] in ('tensorflow', 'tensorflow_core', 'builtins')):
      continue
    if found.setdefault(definition.__name__, definition) is not definition:
      raise InvalidValue('functions and classes of a model must have different names',
                         '{} and {}'.format(found[definition.__name__], definition),
                         'rename one, or give custom_objects')
  return found


def _configured_objects(model: tf.keras.Model) -> Iterator[Any]:
  """Yields the layers and optimizer schedules of a model, and the values that configure layers."""
  for layer in _nested_layers(model, set()):
    yield layer
    # The configuration of a Lambda layer contains the code of the function instead of a name.
    if not isinstance(layer, tf.keras.layers.Lambda):
      yield from filter(_may_be_custom, vars(layer).values())
  optimizers = model.optimizer if isinstance(model.optimizer, list) else [model.optimizer]
  for optimizer in optimizers:
    yield from filter(_may_be_custom, getattr(optimizer, '_hyper', {}).values())


def _nested_layers(layer: tf.keras.layers.Layer,
                   seen_ids: Set[int]) -> Iterator[tf.keras.layers.Layer]:
  """Yields a layer and all layers inside it, except those whose `id` is in `seen_ids`."""
  if id(layer) not in seen_ids:
    seen_ids.add(id(layer))
    yield layer
    for value in vars(layer).values():
      for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, tf.keras.layers.Layer):
          yield from _nested_layers(item, seen_ids)


def _may_be_custom(value: Any) -> bool:
  """Returns whether a value can be a custom object: a function, or an object with get_config."""
  return isinstance(value, types.FunctionType) or (
      hasattr(value, 'get_config') and not isinstance(value, type))
