"""`fashion_cnn` is the published network."""

import tensorflow.compat.v1 as tf

from estimator_train.models import registry


def test_parameters_and_shapes():
  with tf.Graph().as_default():
    model = registry.build('fashion_cnn', (28, 28, 1), 10)
    assert model.count_params() == 93322
    assert model.output_shape == (None, 10)
    assert model.outputs[0].op.type == 'Softmax'


def test_every_name_builds():
  for name in registry.NAMES:
    with tf.Graph().as_default():
      assert registry.build(name, (28, 28, 1), 7).output_shape == (None, 7)
