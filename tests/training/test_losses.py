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
    ('categorical_crossentropy', ONE_HOT, OUTPUTS),
    ('sparse_categorical_crossentropy', CLASSES, OUTPUTS),
    (tf.keras.losses.CategoricalCrossentropy(), ONE_HOT, OUTPUTS),
    (tf.keras.losses.CategoricalCrossentropy(from_logits=True), ONE_HOT, SOFTMAX),
    (tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), CLASSES, SOFTMAX),
    (tf.keras.losses.sparse_categorical_crossentropy, CLASSES, OUTPUTS),
])
def test_per_example(loss, labels, probabilities):
  with tf.Graph().as_default(), tf.Session() as session:
    compute_losses = losses.make_per_example_loss(loss)
    found = session.run(compute_losses(tf.constant(labels), tf.constant(OUTPUTS)))
  assert found == pytest.approx(-np.log(probabilities[[0, 1], CLASSES]), rel=1e-5)
  assert losses.takes_class_indices(loss) == (labels is CLASSES)


def test_balanced_weights_even_classes_out():
  assert losses.balanced_class_weights([1, 3]) == [2., 4 / 6]
  counts = [342, 108, 81, 460]
  weights = losses.balanced_class_weights(counts)
  assert sum(weight * count for weight, count in zip(weights, counts)) == pytest.approx(991)
  assert len({round(weight * count, 6) for weight, count in zip(weights, counts)}) == 1


@pytest.mark.parametrize('name, labels', [
    ('categorical_crossentropy', np.eye(3, dtype=np.float32)[[0, 2]]),
    ('sparse_categorical_crossentropy', np.array([[0], [2]], np.float32))])
def test_each_example_counts_by_its_class(name, labels):
  outputs = np.array([[.5, .25, .25], [.1, .1, .8]], np.float32)
  with tf.Graph().as_default(), tf.Session() as session:
    weighted = losses.ClassWeightedLoss(tf.keras.losses.get(name), [3., 5., 7.])
    found = session.run(weighted.call(tf.constant(labels), tf.constant(outputs)))
  np.testing.assert_allclose(found, [-3 * np.log(.5), -7 * np.log(.8)], rtol=1e-5)
