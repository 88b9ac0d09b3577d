"""Models and data of runs that are checked, and that the package and its examples do not have."""

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

NUM_WORDS, LENGTH, BATCH_SIZE = 20000, 200, 64


def _sentences():
  ids = np.random.RandomState(1).randint(1, NUM_WORDS, [256, LENGTH])
  return tf.data.Dataset.from_tensor_slices((ids, ids[:, 0] % 2))


def text_data():
  return estimator_train.DataSet('sentences', labels=('no', 'yes'), image_shape=None,
                                 train=estimator_train.ExampleSplit(_sentences, 256),
                                 test=estimator_train.ExampleSplit(_sentences, 256))


def lstm():
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer([LENGTH], dtype=tf.int64, name='ids'), layers.Embedding(NUM_WORDS, 128),
      layers.LSTM(128), layers.Dense(2, 'softmax')])


def masked_lstm():
  """Like lstm, but the identifier 0 is padding."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer([LENGTH], dtype=tf.int64, name='ids'),
      layers.Embedding(NUM_WORDS, 128, mask_zero=True), layers.LSTM(128),
      layers.Dense(2, 'softmax')])


def small_images():
  """A data set of few images, whose features are computed on the CPU of this machine."""
  pixels = np.random.RandomState(1).randint(0, 256, [64, 32, 32, 3]).astype(np.uint8)
  split = estimator_train.ArraySplit(pixels, np.arange(64) % 10)
  return estimator_train.DataSet('small images', labels=tuple('0123456789'),
                                 image_shape=(32, 32, 3), train=split, test=split)


def compiled_model():
  """A model as users give it to `convert`: with batch normalization and dropout."""
  layers = tf.keras.layers
  model = tf.keras.Sequential([
      layers.Conv2D(32, 3, input_shape=[32, 32, 3]), layers.BatchNormalization(), layers.ReLU(),
      layers.GlobalAveragePooling2D(), layers.Dropout(.5), layers.Dense(10, 'softmax')])
  model.compile(tf.keras.optimizers.SGD(.1, .9), 'sparse_categorical_crossentropy', ['accuracy'])
  return model


def batches():
  """An input_fn of images for the compiled model."""
  pixels = np.random.RandomState(1).randint(0, 256, [64, 32, 32, 3]).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((pixels, np.arange(64) % 10)).repeat().batch(
      BATCH_SIZE, drop_remainder=True).prefetch(2)
