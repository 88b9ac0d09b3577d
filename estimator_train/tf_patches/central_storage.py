"""CentralStorageStrategy on several devices, mended where TensorFlow 1.15 left it unfinished."""

from typing import Any, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import values


def make(devices: Sequence[str], parameter_device: str) -> Any:
  """Makes the strategy: variables on one device, a replica on each of the others.

  With more than one replica its variables are `AggregatingVariable`s, which wrap the real ones but
  do not pass on two things. Without `trainable` no Keras layer can be built. And initial weights
  from a checkpoint are set on the wrapper, where nothing reads them: the training would begin
  with random ones.
  """
  for name in ('trainable', '_initializer_op', '_initial_value'):
    setattr(values.AggregatingVariable, name, _passed_on(name))
  return tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device)


def _passed_on(name: str) -> property:
  """Returns a property that is the wrapped variable's."""
  return property(lambda wrapper: getattr(wrapper.get(), name),
                  lambda wrapper, value: setattr(wrapper.get(), name, value))
