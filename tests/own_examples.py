"""Data sets and models without images, as users write them."""

import os

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train

layers = tf.keras.layers
NUM_EXAMPLES = 37
WORDS = 12


def _numbers():
  generator = np.random.RandomState(1)
  numbers = generator.uniform(-1, 1, (NUM_EXAMPLES, 3)).astype(np.float32)
  words = generator.randint(1, WORDS, (NUM_EXAMPLES, 5)).astype(np.int32)
  price = numbers.sum(1) + .1 * words[:, 0]
  kind = (numbers[:, 0] > 0).astype(np.int64)
  weight = generator.uniform(.5, 2, NUM_EXAMPLES).astype(np.float32)
  return numbers, words, price.astype(np.float32), kind, weight


def _data_set(split, labels=()):
  return estimator_train.DataSet('any', labels, None, split, split)


def _of(convert, labels=()):
  """Returns a function that describes the examples that `convert` makes of the arrays."""
  return lambda: _data_set(estimator_train.ExampleSplit(
      lambda: tf.data.Dataset.from_tensor_slices(convert(*_numbers()))), labels)


two_inputs = _of(lambda numbers, words, price, kind, weight: (
    {'numbers': numbers, 'words': words}, {'price': price, 'kind': kind}))
weighted = _of(lambda numbers, words, price, kind, weight: (numbers, price, weight))
sequences = _of(lambda numbers, words, price, kind, weight: (words, np.roll(words, -1, 1)))
text = _of(lambda numbers, words, price, kind, weight: (words, kind), ('low', 'high'))
# Examples that a model with these inputs and outputs does not accept, or that are special.
of_other_names = _of(lambda numbers, words, price, kind, weight: (
    {'number': numbers, 'words': words}, {'price': price, 'kind': kind}))
of_a_third_kind = _of(lambda numbers, words, price, kind, weight: (
    {'numbers': numbers, 'words': words}, {'price': price, 'kind': kind * 0 + 2}))
of_five_numbers = _of(lambda numbers, words, price, kind, weight: (words, price))
of_wide_labels = _of(lambda numbers, words, price, kind, weight: (numbers, numbers))


def two_outputs():
  numbers = layers.Input([3], name='numbers')
  words = layers.Input([5], dtype=tf.int32, name='words')
  embedded = layers.GlobalAveragePooling1D()(layers.Embedding(WORDS, 4)(words))
  hidden = layers.Dense(8, 'relu', kernel_regularizer=tf.keras.regularizers.l2(.01))(
      layers.concatenate([numbers, embedded]))
  price = layers.Dense(1, name='price')(hidden)
  kind = layers.Dense(2, 'softmax', name='kind')(hidden)
  model = tf.keras.Model([numbers, words], [price, kind])
  model.compile(tf.keras.optimizers.Adam(.01),
                {'price': 'mse', 'kind': 'sparse_categorical_crossentropy'},
                {'price': ['mae'], 'kind': ['accuracy']}, {'price': 2., 'kind': .5})
  return model


def mean_error(labels, outputs):
  """A mean over the batch."""
  return tf.reduce_mean(tf.abs(labels - outputs))


def one_output():
  model = tf.keras.Sequential([layers.Dense(4, 'tanh', input_shape=[3]), layers.Dense(1)])
  metrics = [mean_error, tf.keras.metrics.RootMeanSquaredError(), 'cosine_proximity']
  model.compile('sgd', 'mse', metrics, weighted_metrics=['mae'])
  return model


def not_compiled():
  return tf.keras.Sequential([layers.Dense(1, input_shape=[3])])


def next_word():
  model = tf.keras.Sequential([
      layers.Embedding(WORDS, 8, input_length=5, mask_zero=True),
      layers.LSTM(8, return_sequences=True),
      layers.Dense(WORDS, 'softmax')])
  model.compile('adam', 'sparse_categorical_crossentropy', ['accuracy'])
  return model


def word_classifier():
  return tf.keras.Sequential([
      layers.InputLayer([5], dtype=tf.int64, name='ids'), layers.Embedding(WORDS, 8),
      layers.GlobalAveragePooling1D(),
      layers.Dense(2, 'softmax')])


FOLDER_VARIABLE = 'OWN_EXAMPLES_FOLDER'


def parse_numbers(record):
  values = tf.io.parse_single_example(record, {
      'numbers': tf.io.FixedLenFeature([3], tf.float32),
      'price': tf.io.FixedLenFeature([], tf.float32)})
  return values['numbers'], values['price']


def records():
  return _data_set(estimator_train.RecordSplit(
      os.path.join(os.environ[FOLDER_VARIABLE], 'train'), parse_numbers))


def arrays():
  return _data_set(estimator_train.ArraySplit(np.zeros((4, 3), np.uint8), np.zeros(4, int)))
