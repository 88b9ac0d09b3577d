"""Creates optimizers of Keras again from their configurations.

Paths are relative to tensorflow_core/python/keras/.
"""

import types
from typing import Any, FrozenSet, Iterator, Mapping, Set

import numpy as np
import tensorflow.compat.v1 as tf

# The value of an attribute that an object does not have.
_MISSING = object()
_LIBRARIES = ('tensorflow', 'tensorflow_core', 'estimator_train')


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


def _with_attributes(original: Any, copy: Any) -> Any:
  """Sets the attributes of a copy that differ from the original's, and returns the copy."""
  for name in _names_in_code(type(original)) & set(vars(original)):
    value = vars(original)[name]
    # Keras wraps the methods of each metric, and keeps the wrappers as its attributes.
    if getattr(value, '__self__', None) is not original and (
        not _is_equal(value, vars(copy).get(name, _MISSING))):
      setattr(copy, name, value)
  return copy


def _is_of_library(definition: Any) -> bool:
  """Returns whether a class or function is part of TensorFlow or of this package.

  No defect: used to find the classes of the user.
  """
  return str(definition.__module__).split('.')[0] in _LIBRARIES


def _names_in_code(definition: type) -> FrozenSet[str]:
  """Returns the names of attributes that the methods of a user's class can use.

  No defect: the attributes that TensorFlow's base classes use internally must not be copied.
  """
  names: Set[str] = set()
  for base in definition.__mro__:
    if base is not object and not _is_of_library(base):
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


def _is_equal(value: Any, other: Any) -> bool:
  """Returns False if two values differ certainly; tensors, variables and layers count as equal.

  No defect: many objects in a configuration define no `__eq__`.
  """
  if value is other or isinstance(value, (tf.Tensor, tf.Variable, tf.keras.layers.Layer)):
    return True
  if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
    return len(value) == len(other) and all(map(_is_equal, value, other))
  if isinstance(value, dict) and isinstance(other, dict):
    return set(value) == set(other) and all(_is_equal(value[key], other[key]) for key in value)
  if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
    return bool(np.array_equal(value, other))
  if type(value) is not type(other):
    return False
  if isinstance(value, types.FunctionType):
    return value.__code__ is other.__code__ and _is_equal(_closure(value), _closure(other))
  if isinstance(value, types.MethodType):
    return value.__func__ is other.__func__
  if type(value).__eq__ is not object.__eq__:
    return bool(value == other)
  if hasattr(value, 'get_config'):
    return _is_equal(value.get_config(), other.get_config())
  return _is_of_library(type(value)) or _is_equal(vars(value), vars(other))


def _closure(function: Any) -> Any:
  """Returns the values of the variables of outer functions that a function uses."""
  return [cell.cell_contents for cell in function.__closure__ or ()]
