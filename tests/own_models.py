"""Models as a user of the package writes them, for `--model=own_models:NAME`."""

import itertools
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

layers = tf.keras.layers


def tiny_images():
  """A data set of images of three classes, one of which is rare."""
  numbers = np.random.RandomState(1)
  split = estimator_train.ArraySplit(
      numbers.randint(0, 256, (60, 6, 6, 3)).astype(np.uint8), np.minimum(np.arange(60) % 5, 2))
  return estimator_train.DataSet('tiny', ('a', 'b', 'c'), (6, 6, 3), split, split)


def _network(image_shape, num_classes, *hidden, **options):
  """Returns a classifier that flattens its images, with hidden layers between."""
  return tf.keras.Sequential([layers.Flatten(input_shape=image_shape), *hidden,
                              layers.Dense(num_classes, activation='softmax', **options)])


def _dense(units, **options):
  return layers.Dense(units, activation='tanh', **options)


def _compiled(model, *arguments, **options):
  model.compile(*arguments, **options)
  return model


def two_layers(image_shape, num_classes):
  """Smooth everywhere, so that rounding stays rounding: ReLUs and poolings can flip on it."""
  return _network(image_shape, num_classes, _dense(32))


def embedding(image_shape, num_classes):
  """Has a sparse gradient."""
  return _network(
      image_shape, num_classes, layers.Lambda(lambda pixels: tf.cast(8 * pixels, tf.int32)),
      layers.Embedding(9, 2), layers.Flatten(), name='dense')


def with_dropout(image_shape, num_classes):
  return _network(image_shape, num_classes, _dense(16), layers.Dropout(0.5))


def with_loaded_weights(image_shape, num_classes):
  model = two_layers(image_shape, num_classes)
  model.set_weights([np.full(weight.shape, .25) for weight in model.weights])
  return model


class FailingOptimizer(tf.keras.optimizers.SGD):
  """Fails in the graph of a step."""

  def get_gradients(self, loss, params):
    raise KeyError('no such slot')


def with_failing_optimizer(image_shape, num_classes):
  return _compiled(two_layers(image_shape, num_classes), FailingOptimizer(), 'mse')


def _computed(function, tensor):
  """Returns a tensor of what a function of arrays makes of a tensor of the same shape and type."""
  result = tf.numpy_function(function, [tensor], tensor.dtype)
  result.set_shape(tensor.shape)
  return result


def nan_in_run(bad_run):
  """Returns a function that makes zeros of a tensor, but nan in one of its runs."""
  runs = itertools.count(1)
  return lambda tensor: _computed(lambda value: np.full_like(
      value, np.nan if next(runs) == bad_run else 0), tensor)


class Wait(layers.Layer):
  """Waits in every step, for as long as the test says that added it here."""
  delay = None

  def call(self, inputs):
    return inputs + 0 * tf.stop_gradient(self.delay.apply(inputs))


def slow(image_shape, num_classes):
  return _network(image_shape, num_classes, _dense(8), Wait())


class Probe(layers.Layer):
  """Has a weight that each SGD step takes just the learning rate from; changes no output.

  Also has a mask that is not finite.
  """
  gradient = staticmethod(tf.ones_like)

  def build(self, input_shape):
    self.weight = self.add_weight('weight', (), initializer='zeros')
    self.add_weight('mask', (2,), initializer=tf.constant_initializer(-np.inf), trainable=False)

    @tf.custom_gradient
    def compute_loss(weight):
      return tf.zeros_like(weight), lambda upstream: upstream * self.gradient(weight)

    self.add_loss(lambda: compute_loss(tf.identity(self.weight)))

  def call(self, inputs):
    return inputs


def probe(image_shape, num_classes):
  return _network(image_shape, num_classes, Probe())


class Pause:
  """Waits in every step, so that a run that others wait for leaves them the processor."""

  def wait(self, value):
    time.sleep(.1)
    return value

  def apply(self, tensor):
    return _computed(self.wait, tensor)


def pauses(image_shape, num_classes):
  Wait.delay = Pause()
  return slow(image_shape, num_classes)


class Hang(Pause):
  """Waits for ever in the twentieth step of worker 1."""
  steps = 0

  def wait(self, value):
    self.steps += 1
    if self.steps == 20 and json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1:
      time.sleep(3600)
    return value


def hangs(image_shape, num_classes):
  Wait.delay = Hang()
  return slow(image_shape, num_classes)


class NanOnWorker1:
  """The loss of worker 1 is not finite in the second step."""

  def apply(self, tensor):
    is_worker_1 = json.loads(os.environ['TF_CONFIG'])['task']['index'] == 1
    return nan_in_run(2 if is_worker_1 else None)(tensor)


def nan_on_worker_1(image_shape, num_classes):
  Wait.delay = NanOnWorker1()
  return slow(image_shape, num_classes)


def _compiled_with(make_optimizer, loss='categorical_crossentropy'):
  return lambda image_shape, num_classes: _compiled(
      two_layers(image_shape, num_classes), make_optimizer(), loss)


compiled_with_clipnorm = _compiled_with(lambda: tf.keras.optimizers.SGD(0.1, clipnorm=0.01))
compiled_with_sgd = _compiled_with(lambda: tf.train.GradientDescentOptimizer(0.1))
compiled_with_momentum = _compiled_with(lambda: tf.train.MomentumOptimizer(0.05, 0.9),
                                        'sparse_categorical_crossentropy')
compiled_with_adam = _compiled_with(lambda: tf.train.AdamOptimizer(0.001))


def batch_norm(image_shape, num_classes):
  """Has statistics that each replica updates, and frozen ones that no replica updates."""
  return _network(image_shape, num_classes, layers.BatchNormalization(momentum=0.9), _dense(8),
                  layers.BatchNormalization(trainable=False))


def large_activations(image_shape, num_classes, momentum=.99):
  return _network(
      image_shape, num_classes,
      layers.Dense(32, kernel_initializer=tf.random_normal_initializer(stddev=9.)),
      layers.BatchNormalization(momentum=momentum))


def large_activations_with_low_momentum(image_shape, num_classes):
  return large_activations(image_shape, num_classes, momentum=.5)


def partly_frozen(image_shape, num_classes):
  return _network(image_shape, num_classes, layers.BatchNormalization(), _dense(
      16, trainable=False))


def _after_frozen(make_layers):
  """Returns a model function: a frozen convolution, then these layers and the outputs."""
  return lambda image_shape, num_classes: tf.keras.Sequential([
      layers.Conv2D(4, 3, activation='tanh', input_shape=image_shape, trainable=False),
      *make_layers(), layers.Dense(num_classes, activation='softmax')])


frozen_first = _after_frozen(lambda: [
    layers.Conv2D(3, 3, activation='tanh', trainable=False), layers.Flatten()])
frozen_dropout = _after_frozen(lambda: [layers.Dropout(0.5), layers.Flatten()])
# The usual head after frozen layers.
frozen_dropout_head = _after_frozen(lambda: [
    layers.Flatten(), layers.Dropout(0.5, trainable=False), _dense(8), layers.Dropout(0.2)])
# Keras's own, which takes the statistics of the batch in training, frozen or not.
frozen_batch_norm = _after_frozen(lambda: [
    layers.BatchNormalization(trainable=False), layers.Flatten()])


def logits():
  return tf.keras.Sequential([layers.Flatten(input_shape=(28, 28, 1)), layers.Dense(10)])


def of_any_size(image_shape, num_classes):
  return tf.keras.Sequential([
      layers.Conv2D(4, 3, input_shape=(None, None, image_shape[2])),
      layers.GlobalAveragePooling2D(), layers.Dense(num_classes, activation='softmax')])


def with_loss_weight(image_shape, num_classes):
  return _compiled(frozen_first(image_shape, num_classes), 'sgd',
                   ['sparse_categorical_crossentropy'], metrics=['acc'], loss_weights=[3.])


def with_scalar_loss(image_shape, num_classes):
  return _compiled(
      two_layers(image_shape, num_classes), 'sgd', lambda labels, outputs: tf.reduce_mean(
          tf.keras.losses.categorical_crossentropy(labels, outputs)))


class OwnLoss(tf.keras.losses.Loss):

  def __init__(self, factor):
    super().__init__()
    self.factor = factor

  def call(self, y_true, y_pred):
    return self.factor * tf.keras.losses.categorical_crossentropy(y_true, y_pred)


class Scale(layers.Layer):

  def __init__(self, factor, **options):
    super().__init__(**options)
    self.factor = factor

  def call(self, inputs):
    return inputs * self.factor


class DescribedScale(Scale):

  def get_config(self):
    return dict(super(Scale, self).get_config(), factor=self.factor)


def with_own_layer_and_loss_by_name(image_shape, num_classes):
  inputs, scale = tf.keras.Input(image_shape), DescribedScale(.5)
  hidden = scale(_dense(8)(scale(layers.Flatten()(inputs))))
  outputs = layers.Dense(num_classes, activation='softmax', name='class')(hidden)
  return _compiled(tf.keras.Model(inputs, outputs), 'sgd', {'class': OwnLoss(1.)}, metrics=[
      'accuracy', tf.keras.metrics.CategoricalAccuracy('top')])


def with_undescribed_layer(image_shape, num_classes):
  return _network(image_shape, num_classes, Scale(.5))


class SumScale(DescribedScale):
  """Described by a set, which no JSON can hold."""

  def call(self, inputs):
    return inputs * sum(self.factor)


def with_unsaveable_layer(image_shape, num_classes):
  return _network(image_shape, num_classes, SumScale({.25, .5}))


class Subclass(tf.keras.Model):

  def call(self, inputs):
    return inputs


def subclassed(image_shape, num_classes):
  return Subclass()


def without_input_shape(image_shape, num_classes):
  return tf.keras.Sequential([layers.Dense(num_classes)])


def of_two_inputs(image_shape, num_classes):
  inputs = [tf.keras.Input(image_shape), tf.keras.Input((3,))]
  hidden = layers.concatenate([layers.Flatten()(inputs[0]), inputs[1]])
  return tf.keras.Model(inputs, layers.Dense(num_classes)(hidden))


def of_two_outputs(image_shape, num_classes):
  inputs = tf.keras.Input(image_shape)
  hidden = layers.Flatten()(inputs)
  return tf.keras.Model(inputs, [layers.Dense(num_classes)(hidden) for _ in range(2)])


def of_three_arguments(image_shape, num_classes, what_else):
  raise AssertionError


def raises(image_shape, num_classes):
  return {}['no such key']


def of_another_shape(image_shape, num_classes):
  return tf.keras.Sequential([layers.Dense(3, input_shape=(5,))])


def no_model():
  return 'a string'


class TooLarge(tf.keras.layers.Layer):
  """Asks for 4 TiB, which no machine gives."""

  def call(self, inputs):
    # Told by the images, so that TensorFlow does not work it out, and abort, before the first step.
    rows = tf.cast(2 ** 18 * tf.cast(tf.reduce_all(tf.is_finite(inputs)), tf.int64), tf.int32)
    return inputs + tf.reduce_sum(tf.fill([rows, 4194304], inputs[0, 0]))


def too_large(image_shape, num_classes):
  return _network(image_shape, num_classes, TooLarge())
