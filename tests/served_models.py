"""The models of docs/serving.md: small ones with given weights, so that their outputs are known."""

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

layers = tf.keras.layers
ITS_WEIGHTS = [[1., 0., -1.], [0., 1., 0.], [-1., .5, 2.], [.5, -.5, 0.]]


def shapes(image_shape, num_classes):
  """Classifies grey images of 2x2 pixels."""
  return tf.keras.Sequential([
      layers.Flatten(input_shape=(2, 2, 1)),
      layers.Dense(3, 'softmax', kernel_initializer=tf.constant_initializer(ITS_WEIGHTS))])


def homes():
  """Has the inputs `area`, a float, and `words`, three integers, and two outputs."""
  area, words = layers.Input([1], name='area'), layers.Input([3], dtype=tf.int32, name='words')
  embedded = layers.Embedding(5, 2, embeddings_initializer=tf.constant_initializer(
      np.arange(10).reshape(5, 2) / 10.))(words)
  both = layers.concatenate([area, layers.GlobalAveragePooling1D()(embedded)])
  price = layers.Dense(1, name='price', kernel_initializer=tf.constant_initializer(
      [[2.], [1.], [.5]]))(both)
  kind = layers.Dense(2, 'softmax', name='kind', kernel_initializer=tf.constant_initializer(
      [[1., -1.], [0., 1.], [.5, 0.]]))(both)
  model = tf.keras.Model([area, words], [price, kind])
  model.compile(tf.keras.optimizers.SGD(1e-9),
                {'price': 'mse', 'kind': 'sparse_categorical_crossentropy'})
  return model


def homes_data():
  split = estimator_train.ExampleSplit(lambda: tf.data.Dataset.from_tensor_slices((
      {'area': np.ones([4, 1], np.float32), 'words': np.ones([4, 3], np.int32)},
      {'price': np.ones([4, 1], np.float32), 'kind': np.zeros([4], np.int64)})))
  return estimator_train.DataSet('homes', (), None, split, split)
