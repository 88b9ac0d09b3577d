"""Finds the user's functions and classes in a Keras model, with which it can be copied."""

import types
from typing import Any, Dict, Iterator, Set

import tensorflow.compat.v1 as tf

from estimator_train.errors import InvalidValue


def find_custom_objects(model: tf.keras.Model) -> Dict[str, Any]:
  """Returns the user's functions and classes that the configuration of a model contains, by name.

  Keras writes the name of a function, such as an activation, into the configuration of a layer, and
  finds Keras's own functions only when it creates the layer again.

  Raises:
    InvalidValue: two of them have the same name.
  """
  found: Dict[str, Any] = {}
  for value in _configured_objects(model):
    is_function = isinstance(value, types.FunctionType)
    item = value if is_function else type(value)
    if item.__module__.split('.')[0] in ('tensorflow', 'tensorflow_core', 'builtins'):
      continue
    if found.setdefault(item.__name__, item) is not item:
      raise InvalidValue('functions and classes of a model must have different names',
                         '{} and {}'.format(found[item.__name__], item),
                         'rename one, or give custom_objects')
  return found


def _configured_objects(model: tf.keras.Model) -> Iterator[Any]:
  """Yields the layers, and the functions, initializers, regularizers and schedules in them."""
  for layer in _layers(model, set()):
    yield layer
    # The configuration of a Lambda layer contains the code of its function.
    if not isinstance(layer, tf.keras.layers.Lambda):
      yield from filter(_is_configured, vars(layer).values())
  optimizers = model.optimizer if isinstance(model.optimizer, list) else [model.optimizer]
  for optimizer in optimizers:
    yield from filter(_is_configured, getattr(optimizer, '_hyper', {}).values())


def _layers(layer: tf.keras.layers.Layer, seen: Set[int]) -> Iterator[tf.keras.layers.Layer]:
  """Yields a layer and the layers that it contains, such as those of a model or a wrapper."""
  if id(layer) not in seen:
    seen.add(id(layer))
    yield layer
    for value in vars(layer).values():
      for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, tf.keras.layers.Layer):
          yield from _layers(item, seen)


def _is_configured(value: Any) -> bool:
  return isinstance(value, types.FunctionType) or (
      hasattr(value, 'get_config') and not isinstance(value, type))
