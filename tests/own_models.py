"""Models as a user of the package writes them, for `--model=own_models:NAME`."""

import json
import os
import time

import tensorflow.compat.v1 as tf


def two_layers(image_shape, num_classes):
  """Smooth everywhere, so that rounding stays rounding: ReLUs and poolings can flip on it."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Dense(32, activation='tanh'),
      layers.Dense(num_classes, activation='softmax'),
  ])


class Wait(tf.keras.layers.Layer):
  """Waits in every step, for as long as the test says that planted it here."""
  delay = None

  def call(self, inputs):
    return inputs + 0 * tf.stop_gradient(self.delay.apply(inputs))


def slow(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Dense(8, activation='tanh'),
      Wait(),
      layers.Dense(num_classes, activation='softmax'),
  ])


def one_over_all_replicas(weight):
  return tf.ones_like(weight) / tf.distribute.get_strategy().num_replicas_in_sync


class Probe(tf.keras.layers.Layer):
  """Has a weight that each SGD step takes just the learning rate from; changes nothing else."""
  gradient = staticmethod(one_over_all_replicas)

  def build(self, input_shape):
    self.weight = self.add_weight('weight', (), initializer='zeros')

  def call(self, inputs):
    @tf.custom_gradient
    def pass_on(inputs, weight):
      return tf.identity(inputs), lambda upstream: (upstream, self.gradient(weight))

    return pass_on(inputs, tf.identity(self.weight))


def probe(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), Probe(),
      layers.Dense(num_classes, activation='softmax')])


class Hang:
  """Waits for ever in the twentieth step of worker 1."""

  def __init__(self):
    self.steps = 0

  def apply(self, tensor):
    def wait(value):
      self.steps += 1
      if self.steps == 20 and json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:
        time.sleep(3600)
      return value

    waited = tf.numpy_function(wait, [tensor], tensor.dtype)
    waited.set_shape(tensor.shape)
    return waited


def hangs(image_shape, num_classes):
  Wait.delay = Hang()
  return slow(image_shape, num_classes)


def compiled_with_sgd(image_shape, num_classes):
  model = two_layers(image_shape, num_classes)
  model.compile(tf.train.GradientDescentOptimizer(0.1), 'categorical_crossentropy')
  return model


def compiled_with_momentum(image_shape, num_classes):
  model = two_layers(image_shape, num_classes)
  model.compile(tf.train.MomentumOptimizer(0.05, 0.9), 'sparse_categorical_crossentropy')
  return model


def compiled_with_adam(image_shape, num_classes):
  model = two_layers(image_shape, num_classes)
  model.compile(tf.train.AdamOptimizer(0.001), 'categorical_crossentropy')
  return model


def partly_frozen(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.BatchNormalization(),
      layers.Dense(16, activation='tanh', trainable=False),
      layers.Dense(num_classes, activation='softmax'),
  ])


def _with_first_layers(image_shape, num_classes, *first):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(4, 3, activation='tanh', input_shape=image_shape, trainable=False)
  ] + list(first) + [layers.Flatten(), layers.Dense(num_classes, activation='softmax')])


def frozen_first(image_shape, num_classes):
  return _with_first_layers(image_shape, num_classes,
                            tf.keras.layers.Conv2D(3, 3, activation='tanh', trainable=False))


def frozen_dropout(image_shape, num_classes):
  return _with_first_layers(image_shape, num_classes, tf.keras.layers.Dropout(0.5))


def frozen_batch_norm(image_shape, num_classes):
  """Keras's own, which takes the statistics of the batch in training, frozen or not."""
  return _with_first_layers(image_shape, num_classes,
                            tf.keras.layers.BatchNormalization(trainable=False))


def frozen_last(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), layers.Dense(16),
      layers.Dense(num_classes, activation='softmax', trainable=False)])


def logits():
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Flatten(input_shape=(28, 28, 1)), layers.Dense(10)])


def of_another_shape(image_shape, num_classes):
  return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(5,))])


def no_model():
  return 'a string'
