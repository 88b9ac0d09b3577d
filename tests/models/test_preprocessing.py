"""Pixels as networks take them, against Keras's own functions."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.models.preprocessing import make_preprocess

PIXELS = np.random.RandomState(1).randint(0, 256, (2, 3, 4, 3)).astype(np.uint8)


def preprocess(name, pixels, channels=3):
  with tf.Graph().as_default(), tf.Session() as session:
    scaled = make_preprocess(name, 3, 4, channels)(tf.constant(pixels))
    assert scaled.shape.as_list()[1:] == [3, 4, channels]
    return session.run(scaled)


@pytest.mark.parametrize('name, network', [
    ('caffe', 'vgg16'), ('tf', 'mobilenet'), ('torch', 'densenet')])
def test_as_keras_does(name, network):
  keras = getattr(tf.keras.applications, network).preprocess_input
  expected = keras(PIXELS.astype(np.float32))
  np.testing.assert_allclose(preprocess(name, PIXELS), expected, atol=1e-5)
  grey = PIXELS[..., :1]
  np.testing.assert_allclose(preprocess(name, grey), keras(np.repeat(grey, 3, -1).astype('f')),
                             atol=1e-5)


@pytest.mark.parametrize('channels', [1, 3])
def test_unit(channels):
  grey = PIXELS[..., :1]
  scaled = preprocess('unit', grey, channels)
  np.testing.assert_allclose(scaled, np.repeat(grey / 255., channels, -1), atol=1e-7)
  assert scaled.dtype == np.float32
