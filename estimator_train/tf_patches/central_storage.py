"""Makes a `CentralStorageStrategy` that can train on several devices."""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values


def make_strategy(devices: Sequence[str], parameter_device: str) -> Any:
  """Makes the strategy, with variables on `parameter_device` and a replica on each of `devices`.

  See forward_attributes for the defect.
  """
  forward_attributes()
  return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device)


def forward_attributes() -> None:
  """Makes the variables of every CentralStorageStrategy usable, even if the user has made it.

  Defect: with more than one replica, the variables of the strategy are `AggregatingVariable`s
  (tensorflow_core/python/distribute/values.py:1471), which wrap the real variables. The
  wrapper forwards attributes by `__getattr__` (line 1489). Python calls `__getattr__` for missing
  attributes only, so attributes that the wrapper's base class defines are not forwarded.
  `trainable` raises NotImplementedError (tensorflow_core/python/ops/variables.py:477), and initial
  weights from a checkpoint are set on the wrapper, where nothing reads the weights. Symptom: no
  Keras layer can be built; if layers could be built, training would start from random weights.
  """
  for name in ('trainable', '_initializer_op', '_initial_value'):
    setattr(values.AggregatingVariable, name, _forwarded_property(name))


def _forwarded_property(name: str) -> property:
  """Returns a property by which the wrapper gets and sets `name` of the wrapped variable."""
  return property(lambda wrapper: getattr(wrapper.get(), name),
                  lambda wrapper, value: setattr(wrapper.get(), name, value))
