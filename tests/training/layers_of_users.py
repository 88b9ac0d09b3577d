"""Layers, models and metrics as users write them, whose configurations lack arguments."""

import tensorflow.compat.v1 as tf

keras = tf.keras
layers = tf.keras.layers


class Scale(layers.Layer):
  """A layer whose configuration lacks its argument."""

  def __init__(self, factor=1., **options):
    super().__init__(**options)
    self.factor = factor

  def call(self, inputs):
    return inputs * self.factor

  def get_config(self):
    return super().get_config()


class ScaledMean(keras.metrics.Mean):
  """A metric whose configuration lacks its argument."""

  def __init__(self, factor=1., name='scaled_mean', **options):
    super().__init__(name, **options)
    self.factor = factor

  def update_state(self, y_true, y_pred, sample_weight=None):
    return super().update_state(self.factor * y_pred)


class Subclass(keras.Model):
  """A model that is defined by its `call`."""

  def __init__(self, units=4, has_first=False, outputs=1):
    super().__init__()
    self.hidden, self.top = [layers.Dense(units, activation='tanh')], layers.Dense(outputs)
    if has_first:
      self.first = layers.Dense(6)

  def call(self, inputs):
    return self.top(self.hidden[0](self.first(inputs) if hasattr(self, 'first') else inputs))


class Forgetful(Subclass):
  """A model whose configuration lacks the arguments that determine its layers."""

  def get_config(self):
    return {}

  @classmethod
  def from_config(cls, config):
    return cls(**config)
