"""The optimizers of this package, beside the same formulas in NumPy."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.optimizers import Lamb, make_optimizer


def lamb_by_numpy(weights, gradients, rate):
  """Returns the weights after a step with each of the gradients, in float64."""
  weights = weights.astype(np.float64)
  mean, squares = np.zeros_like(weights), np.zeros_like(weights)
  for step, gradient in enumerate(gradients, 1):
    mean = .9 * mean + .1 * gradient
    squares = .999 * squares + .001 * gradient ** 2
    update = mean / (1 - .9 ** step) / (np.sqrt(squares / (1 - .999 ** step)) + 1e-6)
    norms = np.linalg.norm(weights), np.linalg.norm(update)
    weights = weights - rate * (norms[0] / norms[1] if all(norms) else 1) * update
  return weights


@pytest.mark.parametrize('weights, gradients', [
    (np.array([[3., -4.], [0., 12.]]), [np.array([[1., 2.], [-3., .5]]), np.ones([2, 2]),
                                        np.array([[1e-8, 0.], [0., -1e-8]])]),
    (np.zeros(3), [np.array([1., -1., 2.])]),  # A bias of 0 has no norm to scale with,
    (np.ones(3), [np.zeros(3), np.ones(3)])])  # nor has an update of 0.
def test_lamb(weights, gradients):
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.Variable(weights.astype(np.float32), use_resource=True)
    gradient = tf.placeholder(tf.float32, weights.shape)
    step = Lamb(.1).apply_gradients([(gradient, variable)])
    session.run(tf.global_variables_initializer())
    for value in gradients:
      session.run(step, {gradient: value})
    np.testing.assert_allclose(session.run(variable), lamb_by_numpy(weights, gradients, .1),
                               rtol=1e-5, atol=1e-6)


def test_lamb_takes_sparse_gradients_and_configurations():
  rows, values = [2, 0, 2], np.array([[1., 2.], [3., 4.], [5., 6.]])
  dense = np.array([[3., 4.], [0., 0.], [6., 8.]])
  weights = np.arange(1., 7.).reshape(3, 2)
  with tf.Graph().as_default(), tf.Session() as session:
    variable = tf.Variable(weights.astype(np.float32), use_resource=True)
    optimizer = Lamb.from_config(make_optimizer('lamb', .1).get_config())
    step = optimizer.apply_gradients([(tf.IndexedSlices(
        tf.constant(values, tf.float32), tf.constant(rows), tf.constant([3, 2])), variable)])
    session.run(tf.global_variables_initializer())
    session.run(step)
    expected = lamb_by_numpy(weights, [dense], .1)
    np.testing.assert_allclose(session.run(variable), expected, rtol=1e-5)
