"""Models that the converter to TFLite cannot convert."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.exporting import tflite


def test_feature_columns_are_rejected_before_the_conversion(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    inputs = {'size': tf.keras.Input([1], name='size')}
    columns = [tf.feature_column.numeric_column('size')]
    with_columns = tf.keras.Model(inputs, tf.keras.layers.DenseFeatures(columns)(inputs))
    inner = tf.keras.Model(inputs, with_columns(inputs))
    for model in (with_columns, inner):
      with pytest.raises(UserError, match='cannot convert the model: it has a layer DenseFeatures: '
                                          'give --export_for'):
        tflite.write_tflite(str(tmp_path), model, session, has_classes=False)
    dense = tf.keras.Sequential([tf.keras.Sequential([tf.keras.layers.Dense(1)])])
    dense(inputs['size'])
    assert not tflite.has_feature_columns(dense)
  assert not list(tmp_path.iterdir())
