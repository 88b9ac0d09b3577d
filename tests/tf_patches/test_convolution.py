"""Gradients of single-channel convolutions with padded images."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import estimator_train
from estimator_train.settings import Settings
from estimator_train.system import machine
from estimator_train.tf_patches import sessions


def gradients(pads, channels, padding, strides, dtype):
  """Returns the gradients of the images and the filters, and the channels of padded images."""
  random = np.random.RandomState(1)
  with tf.Graph().as_default() as graph, tf.Session() as session:
    if pads:
      sessions.pad_filter_gradients(graph)
    images = tf.constant(random.normal(size=(4, 12, 11, channels)), dtype)
    filters = tf.constant(random.normal(size=(3, 2, channels, 5)), dtype)
    outputs = tf.nn.conv2d(images, filters, [1, strides, strides, 1], padding)
    found = tf.gradients(tf.square(outputs), [images, filters])
    padded = [operation for operation in graph.get_operations() if operation.type == 'Pad']
    return session.run(found), [operation.outputs[0].shape[-1] for operation in padded]


@pytest.mark.parametrize('channels, padding, strides, dtype, is_padded', [
    (1, 'SAME', 1, tf.float32, True), (1, 'VALID', 2, tf.float32, True),
    (2, 'SAME', 1, tf.float32, False), (1, 'SAME', 1, tf.float64, False)])
def test_gradients_are_those_without_padding(channels, padding, strides, dtype, is_padded):
  plain, _ = gradients(False, channels, padding, strides, dtype)
  found, padded = gradients(True, channels, padding, strides, dtype)
  assert padded == [3] * is_padded
  for gradient, expected in zip(found, plain):
    assert gradient.shape == expected.shape
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('needs_padding', [False, True])
def test_training_pads_where_it_is_faster(monkeypatch, tmp_path, needs_padding):
  monkeypatch.setattr(machine, 'needs_padded_gradients', lambda: needs_padding)
  result = estimator_train.train(Settings(
      mode='train', model_dir=str(tmp_path), dataset='synthetic', model='fashion_cnn',
      batch_size=8, train_steps=2, num_cpu_replicas=2, report_page=False))
  assert result['global_step'] == 2
  (graph,) = tmp_path.glob('*-2.meta')
  assert (b'EstimatorTrainPaddedConv2D' in graph.read_bytes()) == needs_padding
