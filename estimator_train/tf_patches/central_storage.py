"""`CentralStorageStrategy` on several devices."""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values


def make_strategy(devices: Sequence[str], parameter_device: str) -> Any:
  """Makes the strategy, with the variables on one device and a replica on each of the others.

  Defect: with more than one replica its variables are `AggregatingVariable`s
  (tensorflow_core/python/distribute/values.py:1471), which wrap the real variables. Their
  `__getattr__` (line 1489) does not forward attributes that the base class defines, because Python
  calls it for missing attributes only. `trainable` raises NotImplementedError
  (tensorflow_core/python/ops/variables.py:477); initial weights from a checkpoint are set on the
  wrapper, where they are never read. Symptom: no Keras layer can be built; without this error,
  training would start from random weights.
  """
  for name in ('trainable', '_initializer_op', '_initial_value'):
    setattr(values.AggregatingVariable, name, _forwarded_property(name))
  return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device)


def _forwarded_property(name: str) -> property:
  """Returns a property that forwards to the wrapped variable."""
  return property(lambda wrapper: getattr(wrapper.get(), name),
                  lambda wrapper, value: setattr(wrapper.get(), name, value))
