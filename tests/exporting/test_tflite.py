"""Models that the converter to TFLite cannot convert."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.exporting import tflite


def with_columns():
  inputs = {'size': tf.keras.Input([1], name='size')}
  columns = [tf.feature_column.numeric_column('size')]
  return tf.keras.Model(inputs, tf.keras.layers.DenseFeatures(columns)(inputs))


def test_feature_columns_are_rejected_before_the_conversion(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session, pytest.raises(
      UserError, match='cannot convert the model: it has a layer DenseFeatures: give --export_for'):
    tflite.write_tflite(str(tmp_path), with_columns(), session, has_classes=False)
  assert not list(tmp_path.iterdir())


def test_layers_of_inner_models_are_found():
  with tf.Graph().as_default():
    inputs = tf.keras.Input([1], name='size')
    outer = tf.keras.Sequential([tf.keras.Sequential([tf.keras.layers.Dense(1)])])
    outer(inputs)
    assert not tflite.has_feature_columns(outer)
    outer = tf.keras.Model({'size': inputs}, with_columns()({'size': inputs}))
    assert tflite.has_feature_columns(outer)
