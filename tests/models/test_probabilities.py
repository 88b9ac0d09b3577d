"""What outputs are: probabilities, or logits."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.models import probabilities
from estimator_train.training import losses


def own_loss(labels, outputs):
  return tf.reduce_sum(labels * outputs, -1)


@pytest.mark.parametrize('activation, loss, are_logits', [
    ('softmax', None, False),
    (None, None, True),
    ('softmax', 'categorical_crossentropy', False),
    (tf.identity, 'sparse_categorical_crossentropy', False),  # As Keras takes it.
    (tf.identity, tf.keras.losses.categorical_crossentropy, False),
    (tf.identity, tf.keras.losses.CategoricalCrossentropy(), False),
    (tf.identity, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), True),
    (tf.identity, own_loss, True),
    ('softmax', own_loss, False),
])
def test_outputs(activation, loss, are_logits):
  with tf.Graph().as_default(), tf.Session() as session:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation=activation, input_shape=(2,))])
    model.compile('sgd', loss or losses.default_loss(model))
    outputs = tf.constant([[.1, .2, .7]])
    found = session.run(probabilities.from_outputs(model, outputs))
  wanted = np.exp([.1, .2, .7]) / np.exp([.1, .2, .7]).sum() if are_logits else [.1, .2, .7]
  assert found[0] == pytest.approx(wanted, rel=1e-6)
