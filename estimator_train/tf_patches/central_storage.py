"""`CentralStorageStrategy` on several devices."""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values


def make(devices: Sequence[str], parameter_device: str) -> Any:
  """Makes the strategy: variables on one device, a replica on each of the others.

  Defect: with more than one replica its variables are `AggregatingVariable`s
  (tensorflow_core/python/distribute/values.py:1471), which wrap the real ones but do not pass on
  two things, as `__getattr__` (line 1489) is not asked for what the base class has. `trainable`
  raises NotImplementedError (tensorflow_core/python/ops/variables.py:477); initial weights from a
  checkpoint are set on the wrapper, where nothing reads them. Symptom: no Keras layer can be built;
  and if it could, training would begin with random weights.
  """
  for name in ('trainable', '_initializer_op', '_initial_value'):
    setattr(values.AggregatingVariable, name, _passed_on(name))
  return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device)


def _passed_on(name: str) -> property:
  """Returns a property that is the wrapped variable's."""
  return property(lambda wrapper: getattr(wrapper.get(), name),
                  lambda wrapper, value: setattr(wrapper.get(), name, value))
