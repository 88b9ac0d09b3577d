"""Creates layers, metrics and optimizers of Keras again from their configurations.

Paths are relative to tensorflow_core/python/keras/.
"""

import contextlib
import functools
import types
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Set

import numpy as np
import tensorflow as tf_v1
import tensorflow.compat.v1 as tf
from tensorflow.compat import v2 as tf_v2
from tensorflow.python.feature_column import serialization as feature_columns
from tensorflow.python.keras import activations, constraints, initializers, regularizers

Layer = Any  # A tf.keras.layers.Layer.

# The value of an attribute that an object does not have.
MISSING = object()
_LIBRARIES = ('tensorflow', 'tensorflow_core', 'estimator_train')


@contextlib.contextmanager
def by_reference() -> Iterator[None]:
  """Lets configurations contain functions and objects themselves instead of their names.

  Defect: the configuration of a layer contains the names of activations, initializers,
  regularizers and constraints, and the code of a `Lambda`. Symptoms: functions that Keras does not
  know by their names are not found, or others of the same name replace them; objects lose arguments
  that are missing in `get_config`; the module of the function of a `Lambda` overwrites the names of
  layers/core.py (line 889).

  The `with` block must not call layers: a layer can wait for other replicas, which run in threads.
  """
  lambda_layer = tf.keras.layers.Lambda
  replacements = [
      (feature_columns, 'serialize_feature_columns', _same),
      (feature_columns, 'deserialize_feature_columns', _same),
      (lambda_layer, '_serialize_function_to_config',
       lambda self, value, allow_raw=False: (value, 'raw', None)),
      (lambda_layer, '_parse_function_from_config', classmethod(_take_function))]
  for module in (activations, constraints, initializers, regularizers):
    name = module.__name__.rpartition('.')[2]
    deserialize = functools.partial(_deserialize, module.deserialize)
    # The layers of users call the functions of the public modules.
    for owner in (module, *(getattr(api.keras, name) for api in (tf_v1, tf, tf_v2))):
      replacements += [(owner, 'serialize', _same), (owner, 'deserialize', deserialize)]
  with contextlib.ExitStack() as stack:
    for owner, name, value in replacements:
      is_class = isinstance(owner, type)
      stack.callback(setattr, owner, name, vars(owner)[name] if is_class else getattr(owner, name))
      setattr(owner, name, value)
    yield


def _same(value: Any, **unused_options: Any) -> Any:
  return value


def _deserialize(deserialize: Callable[..., Any], config: Any, *args: Any, **options: Any) -> Any:
  """Returns an object that is its own configuration, or else deserializes the configuration."""
  return config if callable(config) else deserialize(config, *args, **options)


def _take_function(unused_class: type, config: Dict[str, Any], unused_custom_objects: Any,
                   name: str, module_name: str, type_name: str) -> Any:
  """Replaces the method by which a Lambda finds a function in its configuration."""
  config.pop(module_name, None)
  config.pop(type_name, None)
  return config.get(name)


def nested_layers(layer: Layer) -> List[Layer]:
  """Returns a layer or model and all layers inside it, the outer ones first.

  Private API: `_get_trainable_state` (tensorflow_core/python/keras/engine/base_layer.py:2167),
  because the public `layers` lacks layers inside other layers.
  """
  return list(layer._get_trainable_state())  # pylint: disable=protected-access


def config_of(layer: Layer) -> Optional[Dict[str, Any]]:
  """Returns the configuration of a layer without its name, or None if it has none.

  No defect: used to compare layers.
  """
  try:
    with by_reference():
      return {key: value for key, value in layer.get_config().items() if key != 'name'}
  except NotImplementedError:
    return None


def copy_layer(layer: Layer, custom_objects: Mapping[str, Any]) -> Layer:
  """Creates a layer or model again, with all layers inside it. See by_reference.

  Args:
    layer: the layer.
    custom_objects: functions and classes by name, which its `from_config` may need.

  Raises:
    ValueError: the layer has no configuration, or the configuration lacks a required argument.
  """
  # Keras finds layers inside layers, such as the cell of an RNN, by the names of their classes.
  by_name = dict(custom_objects)
  by_name.update((type(inner).__name__, type(inner)) for inner in nested_layers(layer)[1:]
                 if not is_of_library(type(inner)))
  by_name.update((value.__name__, value) for value in vars(layer).values()
                 if isinstance(value, types.FunctionType))
  try:
    with by_reference(), tf.keras.utils.CustomObjectScope(by_name):
      return type(layer).from_config(layer.get_config())
  except (NotImplementedError, TypeError) as error:
    raise ValueError(
        'a layer must return all arguments of its constructor from get_config: {!r} of class {} '
        '({}: {}): define get_config'.format(layer.name, type(layer).__name__,
                                             type(error).__name__, error)) from error


def copy_optimizer(optimizer: Any, config: Mapping[str, Any]) -> Any:
  """Creates an optimizer again, with the attributes that its configuration lacks.

  Defect: models.py:665 uses the configuration only. Symptom: an argument of the constructor that
  `get_config` lacks has its default.

  Args:
    optimizer: an optimizer of Keras.
    config: its configuration, read in the graph of the optimizer.
  """
  config = dict(config)
  for name, value in optimizer._hyper.items():  # pylint: disable=protected-access
    if isinstance(value, tf.keras.optimizers.schedules.LearningRateSchedule):
      config[name] = value
  return _with_attributes(optimizer, type(optimizer).from_config(config))


def copy_metrics(metrics: Any) -> Any:
  """Copies the metric objects among the metrics of a compiled model.

  Defect: metrics.py:2825 copies only the objects in a list or a dict, by their configurations.
  Symptoms: objects in nested lists belong to another graph; arguments of a constructor that
  `get_config` lacks have their defaults.
  """
  if isinstance(metrics, dict):
    return {name: copy_metrics(value) for name, value in metrics.items()}
  if isinstance(metrics, (list, tuple)):
    return [copy_metrics(value) for value in metrics]
  if not isinstance(metrics, tf.keras.metrics.Metric):
    return metrics
  with by_reference():
    return _with_attributes(metrics, type(metrics).from_config(metrics.get_config()))


def _with_attributes(original: Any, copy: Any) -> Any:
  """Sets the attributes of a copy that differ from the original's, and returns the copy."""
  for name in names_in_code(type(original)) & set(vars(original)):
    value = vars(original)[name]
    # Keras wraps the methods of each metric, and keeps the wrappers as its attributes.
    if getattr(value, '__self__', None) is not original and (
        not is_equal(value, vars(copy).get(name, MISSING))):
      setattr(copy, name, value)
  return copy


def is_of_library(definition: Any) -> bool:
  """Returns whether a class or function is part of TensorFlow or of this package.

  No defect: used to find the classes of the user.
  """
  return str(definition.__module__).split('.')[0] in _LIBRARIES


def names_in_code(definition: type) -> FrozenSet[str]:
  """Returns the names of attributes that the methods of a user's class can use.

  No defect: the attributes that TensorFlow's base classes use internally must not be copied.
  """
  names: Set[str] = set()
  for base in definition.__mro__:
    if base is not object and not is_of_library(base):
      for member in vars(base).values():
        function = getattr(member, '__func__', getattr(member, 'fget', member))
        names.update(_names_in_function(getattr(function, '__code__', None)))
  return frozenset(names)


def _names_in_function(code: Any) -> Iterator[str]:
  """Yields the names in the code of a function and of the functions inside it."""
  if isinstance(code, types.CodeType):
    yield from code.co_names
    for constant in code.co_consts:
      yield from _names_in_function(constant)


def is_equal(value: Any, other: Any) -> bool:
  """Returns False if two values differ certainly; tensors, variables and layers count as equal.

  No defect: many objects in a configuration define no `__eq__`.
  """
  if value is other or isinstance(value, (tf.Tensor, tf.Variable, tf.keras.layers.Layer)):
    return True
  if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
    return len(value) == len(other) and all(map(is_equal, value, other))
  if isinstance(value, dict) and isinstance(other, dict):
    return set(value) == set(other) and all(is_equal(value[key], other[key]) for key in value)
  if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
    return bool(np.array_equal(value, other))
  if type(value) is not type(other):
    return False
  if isinstance(value, types.FunctionType):
    return value.__code__ is other.__code__ and is_equal(_closure(value), _closure(other))
  if isinstance(value, types.MethodType):
    return value.__func__ is other.__func__
  if type(value).__eq__ is not object.__eq__:
    return bool(value == other)
  if hasattr(value, 'get_config'):
    return is_equal(value.get_config(), other.get_config())
  return is_of_library(type(value)) or is_equal(vars(value), vars(other))


def _closure(function: Any) -> Any:
  """Returns the values of the variables of outer functions that a function uses."""
  return [cell.cell_contents for cell in function.__closure__ or ()]
