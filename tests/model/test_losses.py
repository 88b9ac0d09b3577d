"""Probabilities and losses per example, whatever form Keras takes the loss in."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.model import losses

keras = tf.keras.losses
OUTPUTS = np.array([[.7, .2, .1], [.1, .1, .8]], np.float32)
CLASSES = np.array([0, 1])
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
SOFTMAX = np.exp(OUTPUTS) / np.exp(OUTPUTS).sum(-1, keepdims=True)


def own_loss(labels, outputs):
  return -tf.reduce_sum(labels * tf.log(outputs), -1)


@pytest.mark.parametrize('activation, loss, labels, are_logits', [
    ('softmax', None, ONE_HOT, False), (None, None, ONE_HOT, True),
    ('softmax', 'categorical_crossentropy', ONE_HOT, False),
    (tf.identity, 'sparse_categorical_crossentropy', CLASSES, False),  # As Keras takes it.
    (tf.identity, keras.categorical_crossentropy, ONE_HOT, False),
    (tf.identity, keras.CategoricalCrossentropy(), ONE_HOT, False),
    (tf.identity, keras.SparseCategoricalCrossentropy(from_logits=True), CLASSES, True),
    (tf.identity, own_loss, ONE_HOT, True), ('softmax', own_loss, ONE_HOT, False)])
def test_probabilities_and_losses(activation, loss, labels, are_logits):
  probabilities = SOFTMAX if are_logits else OUTPUTS
  expected = -np.log((OUTPUTS if loss is own_loss else probabilities)[[0, 1], CLASSES])
  with tf.Graph().as_default(), tf.Session() as session:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation, input_shape=(2,))])
    loss = loss or losses.default_loss(model)
    model.compile('sgd', loss)
    tensors = tf.constant(labels), tf.constant(OUTPUTS)
    found = session.run([losses.class_probabilities(model, tensors[1]),
                         losses.make_per_example_loss(loss)(*tensors),
                         losses.ClassWeightedLoss(loss, [3., 5., 7.]).call(*tensors)])
  for values, wanted in zip(found, (probabilities, expected, expected * [3, 5])):
    np.testing.assert_allclose(values, wanted, rtol=1e-5)
  assert losses.takes_class_indices(loss, 3) == (labels is CLASSES)


class OwnSparseLoss(keras.SparseCategoricalCrossentropy):
  pass


def sparsemax(labels, outputs):
  return tf.reduce_sum(tf.square(labels - outputs), -1)


def focal(labels, outputs):
  return -tf.log(tf.where(tf.equal(labels, 1), outputs, tf.ones_like(outputs)))


def focal_of_class_indices(labels, outputs):
  indices = tf.squeeze(tf.cast(labels, tf.int32), -1)
  return focal(tf.one_hot(indices, outputs.shape[-1].value), outputs)


def sparse_of_unknown_shape(labels, outputs):
  indices = tf.cast(tf.reshape(labels, [-1]), tf.int32)
  indices = tf.stack([tf.range(tf.shape(outputs)[0]), indices], 1)
  return -tf.log(tf.gather_nd(outputs, indices))


def no_loss_of_batches(labels, outputs):
  raise ValueError('only of the data of the user')


def sparse_no_loss_of_batches(labels, outputs):
  raise ValueError('only of the data of the user')


@pytest.mark.parametrize('num_classes', [2, 3, 5, 6, 7, 1000])
@pytest.mark.parametrize('loss, expected', [
    ('sparse_categorical_crossentropy', True), ('categorical_crossentropy', False), ('mse', False),
    ('categorical_hinge', False), (keras.CategoricalCrossentropy(label_smoothing=.1), False),
    (functools.partial(keras.sparse_categorical_crossentropy, from_logits=True), True),
    (lambda *args: keras.sparse_categorical_crossentropy(*args, from_logits=True), True),
    (OwnSparseLoss(), True), (focal, False), (focal_of_class_indices, True),
    (sparse_of_unknown_shape, True),
    (sparsemax, False), (own_loss, False), (None, False), (['mse', 'mse'], False),
    (no_loss_of_batches, False), (sparse_no_loss_of_batches, True)])
def test_the_labels_that_a_loss_takes(loss, expected, num_classes):
  """They do not depend on what a loss of the user is called."""
  assert losses.takes_class_indices(loss, num_classes) == expected


def test_balanced_weights_even_classes_out():
  assert losses.balanced_class_weights([1, 3]) == [2., 4 / 6]
  assert losses.balanced_class_weights([0, 1, 3]) == [0., 2., 4 / 6]
