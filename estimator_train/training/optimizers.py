"""Makes the Keras optimizer that `--optimizer` names."""

from typing import Union

import tensorflow.compat.v1 as tf

_MOMENTUM = 0.9

LearningRate = Union[float, tf.keras.optimizers.schedules.LearningRateSchedule]


def make_optimizer(name: str, learning_rate: LearningRate) -> tf.keras.optimizers.Optimizer:
  """Makes the optimizer that `--optimizer` names.

  Each optimizer has a unique Keras name, because checkpoints identify optimizers by their names.

  Args:
    name: one of choices.OPTIMIZERS.
    learning_rate: the learning rate, or a schedule of the learning rate.

  Raises:
    ValueError: there is no such optimizer.
  """
  optimizers = tf.keras.optimizers
  if name == 'adam':
    return optimizers.Adam(learning_rate, name='Adam')
  if name == 'sgd':
    return optimizers.SGD(learning_rate, name='SGD')
  if name == 'momentum':
    return optimizers.SGD(learning_rate, momentum=_MOMENTUM, name='Momentum')
  if name == 'rmsprop':
    return optimizers.RMSprop(learning_rate, name='RMSprop')
  raise ValueError('no optimizer is implemented for {!r}'.format(name))
