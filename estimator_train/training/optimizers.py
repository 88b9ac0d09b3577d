"""The optimizers by name."""

import tensorflow.compat.v1 as tf

_MOMENTUM = 0.9


def make_optimizer(name: str, learning_rate: float) -> tf.keras.optimizers.Optimizer:
  """Makes the optimizer of that name, one of settings.OPTIMIZERS.

  They are Keras optimizers, never `tf.train` ones: under a strategy the latter divide the loss by
  the number of replicas once more than Keras has done already, and so take too short a step.
  Their names differ, so that a checkpoint tells which one wrote it.
  """
  optimizers = tf.keras.optimizers
  if name == 'adam':
    return optimizers.Adam(learning_rate, name='Adam')
  if name == 'sgd':
    return optimizers.SGD(learning_rate, name='SGD')
  if name == 'momentum':
    return optimizers.SGD(learning_rate, momentum=_MOMENTUM, name='Momentum')
  return optimizers.RMSprop(learning_rate, name='RMSprop')
