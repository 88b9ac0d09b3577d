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
  keras_names: Set[str] = set()
  for layer in nested_layers(model):
    # A class of the user with the name of a Keras layer, such as `Dense`, is not added: Keras would
    # also use this class for its own layers of that name. Two layer classes may have the same name,
    # because Keras needs the name only to copy a layer inside another layer.
    if not hasattr(tf.keras.layers, type(layer).__name__):
      _add(found, type(layer), known_objects, may_conflict=True)
    for value in _values_in_config(layer):
      definition: Any = value if isinstance(value, types.FunctionType) else type(value)
      if _is_of_tensorflow(definition):
        keras_names.add(definition.__name__)
      _add(found, definition, known_objects)
  optimizers = model.optimizer if isinstance(model.optimizer, list) else [model.optimizer]
  for optimizer in optimizers:
    for value in getattr(optimizer, '_hyper', {}).values():
      if hasattr(value, 'get_config'):
        _add(found, type(value), known_objects)
  for name in keras_names & (set(found) - set(known_objects)):
    raise InvalidValue('a function or class in the model must not have the name of one of Keras\'s '
                       'that the model also uses', str(found[name]),
                       'rename it, or give custom_objects')
  return found


def _is_of_tensorflow(definition: Any) -> bool:
  return definition.__module__.split('.')[0] in ('tensorflow', 'tensorflow_core')


def _add(found: Dict[str, Any], definition: Any, known_objects: Mapping[str, Any],
         may_conflict: bool = False) -> None:
  """Adds a function or class of the user to the objects found so far."""
  name = definition.__name__
  if name in known_objects or _is_of_tensorflow(definition):
    return
  if found.setdefault(name, definition) is not definition and not may_conflict:
    raise InvalidValue('functions and classes of a model must have different names',
                       '{} and {}'.format(found[name], definition),
                       'rename one, or give custom_objects')


def _values_in_config(layer: tf.keras.layers.Layer) -> Iterator[Any]:
  """Yields the functions and objects of a layer that its configuration contains by name."""
  # The configuration of a Lambda layer contains the code of the function instead of a name.
  if isinstance(layer, (tf.keras.layers.Lambda, tf.keras.Model)):
    return
  try:
    names = {name for name in tf.nest.flatten(layer.get_config()) if isinstance(name, str)}
  except NotImplementedError:  # Keras reports this error when it copies the layer.
    return
  feature_columns = getattr(layer, '_feature_columns', ())  # Of tf.keras.layers.DenseFeatures.
  for value in [*vars(layer).values(), *_values_in_columns(feature_columns)]:
    if isinstance(value, types.FunctionType):
      if value.__name__ in names:
        yield value
    elif hasattr(value, 'get_config') and not isinstance(value, (type, tf.keras.layers.Layer)):
      yield value


def _values_in_columns(columns: Any) -> Iterator[Any]:
  """Yields the values in feature columns, which are nested named tuples."""
  for value in columns if isinstance(columns, (list, tuple)) else [columns]:
    if isinstance(value, (list, tuple)):
      yield from _values_in_columns(value)
    else:
      yield value


def nested_layers(layer: tf.keras.layers.Layer) -> Iterator[tf.keras.layers.Layer]:
  """Yields a layer and all layers inside it."""
  return _iter_layers(layer, set())


def _iter_layers(layer: tf.keras.layers.Layer,
                 seen_ids: Set[int]) -> Iterator[tf.keras.layers.Layer]:
  """Yields a layer and all layers inside it, except those whose `id` is in `seen_ids`."""
  if id(layer) not in seen_ids:
    seen_ids.add(id(layer))
    yield layer
    for value in vars(layer).values():
      for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, tf.keras.layers.Layer):
          yield from _iter_layers(item, seen_ids)
