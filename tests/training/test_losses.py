"""Losses per example, whatever form Keras takes them in."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training import losses

OUTPUTS = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], np.float32)
CLASSES = np.array([0, 1])
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
SOFTMAX = np.exp(OUTPUTS) / np.exp(OUTPUTS).sum(-1, keepdims=True)


@pytest.mark.parametrize('loss, labels, probabilities', [
    (tf.keras.losses.CategoricalCrossentropy(from_logits=True), ONE_HOT, SOFTMAX),
    ('sparse_categorical_crossentropy', CLASSES, OUTPUTS)])
def test_per_example_and_by_class(loss, labels, probabilities):
  expected = -np.log(probabilities[[0, 1], CLASSES])
  with tf.Graph().as_default(), tf.Session() as session:
    tensors = tf.constant(labels), tf.constant(OUTPUTS)
    assert session.run(losses.make_per_example_loss(loss)(*tensors)) == pytest.approx(expected)
    weighted = losses.ClassWeightedLoss(tf.keras.losses.get(loss), [3., 5., 7.])
    assert session.run(weighted.call(*tensors)) == pytest.approx(expected * [3, 5])
  assert losses.takes_class_indices(loss) == (labels is CLASSES)


def test_balanced_weights_even_classes_out():
  assert losses.balanced_class_weights([1, 3]) == [2., 4 / 6]
