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


def embedding(image_shape, num_classes):
  """Has a sparse gradient."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Lambda(lambda pixels: tf.cast(8 * pixels, tf.int32)),
      layers.Embedding(9, 2),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax', name='dense'),
  ])


def with_dropout(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Dense(16, activation='tanh'),
      layers.Dropout(0.5),
      layers.Dense(num_classes, activation='softmax'),
  ])


def with_captured_tensor(image_shape, num_classes):
  """Has an error that appears only in the Estimator."""
  factor = tf.constant(2.)
  model = two_layers(image_shape, num_classes)
  model.compile('sgd', lambda true, outputs: factor * tf.square(true - outputs))
  return model


def with_failing_metric(image_shape, num_classes):
  def fail_in_the_copy(true, outputs):
    if tf.train.get_global_step() is not None:
      raise KeyError('no such output')
    return true

  model = two_layers(image_shape, num_classes)
  model.compile('sgd', 'mse', [fail_in_the_copy])
  return model


def with_repeated_layer(image_shape, num_classes):
  layers = tf.keras.layers
  layer = layers.Dense(8, activation='tanh')
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), layers.Dense(8), layer, layer,
      layers.Dense(num_classes, activation='softmax')])


class Wait(tf.keras.layers.Layer):
  """Waits in every step, for as long as the test says that added it here."""
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


def embeddings(image_shape, num_classes):
  """Has sparse gradients."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.Lambda(lambda pixels: tf.cast(pixels * 9, tf.int32)),
      layers.Embedding(10, 2),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax')])


def batch_norm(image_shape, num_classes):
  """Has statistics that each replica updates, and frozen ones that no replica updates."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape),
      layers.BatchNormalization(momentum=0.9),
      layers.Dense(8, activation='tanh'),
      layers.BatchNormalization(trainable=False),
      layers.Dense(num_classes, activation='softmax'),
  ])


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


def frozen_dropout_head(image_shape, num_classes):
  """The usual head after frozen layers."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(4, 3, activation='tanh', input_shape=image_shape, trainable=False),
      layers.Flatten(), layers.Dropout(0.5, trainable=False), layers.Dense(8, activation='tanh'),
      layers.Dropout(0.2), layers.Dense(num_classes, activation='softmax')])


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


def functional(image_shape, num_classes):
  inputs = tf.keras.Input(image_shape)
  hidden = tf.keras.layers.Flatten()(inputs)
  return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes, activation='softmax')(hidden))


def of_any_size(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(4, 3, input_shape=(None, None, image_shape[2])),
      layers.GlobalAveragePooling2D(), layers.Dense(num_classes, activation='softmax')])


def with_metrics(image_shape, num_classes):
  model = functional(image_shape, num_classes)
  model.compile('sgd', ['categorical_crossentropy'],
                metrics=['accuracy', tf.keras.metrics.CategoricalAccuracy('top')])
  return model


def with_loss_weight(image_shape, num_classes):
  model = frozen_first(image_shape, num_classes)
  model.compile('sgd', ['sparse_categorical_crossentropy'], metrics=['acc'], loss_weights=[3.])
  return model


def with_loss_by_name(image_shape, num_classes):
  model = functional(image_shape, num_classes)
  model.compile('sgd', {model.output_names[0]: 'sparse_categorical_crossentropy'})
  return model


def _scalar_loss(labels, outputs):
  return tf.reduce_mean(tf.keras.losses.categorical_crossentropy(labels, outputs))


def with_scalar_loss(image_shape, num_classes):
  model = functional(image_shape, num_classes)
  model.compile('sgd', _scalar_loss)
  return model


class OwnLoss(tf.keras.losses.Loss):

  def __init__(self, factor):
    super().__init__()
    self.factor = factor

  def call(self, y_true, y_pred):
    return self.factor * tf.keras.losses.categorical_crossentropy(y_true, y_pred)


class Scale(tf.keras.layers.Layer):

  def __init__(self, factor, **options):
    super().__init__(**options)
    self.factor = factor

  def call(self, inputs):
    return inputs * self.factor


class DescribedScale(Scale):

  def get_config(self):
    return dict(super(Scale, self).get_config(), factor=self.factor)


def _scaled(image_shape, num_classes, scale):
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Flatten(input_shape=image_shape), scale,
                              layers.Dense(num_classes, activation='softmax')])


def with_own_layer_and_loss(image_shape, num_classes):
  model = _scaled(image_shape, num_classes, DescribedScale(.5))
  model.compile('sgd', OwnLoss(1.))
  return model


def with_undescribed_layer(image_shape, num_classes):
  return _scaled(image_shape, num_classes, Scale(.5))


class SumScale(Scale):
  """Described by a set, which no JSON can hold."""

  def __init__(self, factors, **options):
    super().__init__(sum(factors), **options)
    self.factors = factors

  def get_config(self):
    return dict(super(Scale, self).get_config(), factors=self.factors)


def with_unsaveable_layer(image_shape, num_classes):
  return _scaled(image_shape, num_classes, SumScale({.25, .5}))


class Subclass(tf.keras.Model):

  def __init__(self, num_classes):
    super().__init__()
    self.dense = tf.keras.layers.Dense(num_classes)

  def call(self, inputs):
    return self.dense(inputs)


def subclassed(image_shape, num_classes):
  return Subclass(num_classes)


def without_input_shape(image_shape, num_classes):
  return tf.keras.Sequential([tf.keras.layers.Dense(num_classes)])


def of_two_inputs(image_shape, num_classes):
  inputs = [tf.keras.Input(image_shape), tf.keras.Input((3,))]
  hidden = tf.keras.layers.concatenate([tf.keras.layers.Flatten()(inputs[0]), inputs[1]])
  return tf.keras.Model(inputs, tf.keras.layers.Dense(num_classes)(hidden))


def of_two_outputs(image_shape, num_classes):
  inputs = tf.keras.Input(image_shape)
  hidden = tf.keras.layers.Flatten()(inputs)
  return tf.keras.Model(inputs, [tf.keras.layers.Dense(num_classes)(hidden) for _ in range(2)])


def of_three_arguments(image_shape, num_classes, what_else):
  raise AssertionError


def raises(image_shape, num_classes):
  return {}['no such key']


def of_another_shape(image_shape, num_classes):
  return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(5,))])


def no_model():
  return 'a string'


class TooLarge(tf.keras.layers.Layer):
  """Asks for 4 TiB, which no machine gives."""

  def call(self, inputs):
    # Told by the images, so that TensorFlow does not work it out, and abort, before the first step.
    rows = tf.cast(2 ** 18 * tf.cast(tf.reduce_all(tf.is_finite(inputs)), tf.int64), tf.int32)
    return inputs + tf.reduce_sum(tf.fill([rows, 4194304], inputs[0, 0]))


def too_large(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), TooLarge(),
      layers.Dense(num_classes, activation='softmax')])
