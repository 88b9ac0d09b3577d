"""Data sets of records and of tf.data, as users write them."""

import os

import tensorflow.compat.v1 as tf

import estimator_train

SHAPE = (6, 6, 1)
FEATURES = {'pixels': tf.io.FixedLenFeature([], tf.string),
            'label': tf.io.FixedLenFeature([], tf.int64)}
FOLDER_VARIABLE = 'OWN_RECORDS_FOLDER'


def parse(record):
  values = tf.io.parse_single_example(record, FEATURES)
  return tf.reshape(tf.decode_raw(values['pixels'], tf.uint8), SHAPE), values['label']


def records():
  split = estimator_train.RecordSplit(os.path.join(os.environ[FOLDER_VARIABLE], '*-of-*'), parse)
  return estimator_train.DataSet('any', ('dark', 'bright'), SHAPE, split, split)


def standard_records():
  split = estimator_train.RecordSplit(os.path.join(os.environ[FOLDER_VARIABLE], 'train-*'))
  return estimator_train.DataSet('any', ('A', 'B'), (24, 24, 3), split, split)


def make_dataset():
  numbers = tf.data.Dataset.range(20)
  return numbers.map(lambda number: (
      tf.fill(SHAPE, tf.cast(100 * (number % 2) + number, tf.uint8)), number % 2))


def weighted():
  """The bright examples do not count."""
  return make_dataset().map(lambda pixels, label: (pixels, label,
                                                   1. - tf.cast(label, tf.float32)))


def examples():
  split = estimator_train.ExampleSplit(make_dataset)
  return estimator_train.DataSet('any', ('dark', 'bright'), SHAPE, split, split)


def weighted_examples():
  split = estimator_train.ExampleSplit(weighted)
  return estimator_train.DataSet('any', ('dark', 'bright'), SHAPE, split, split)
