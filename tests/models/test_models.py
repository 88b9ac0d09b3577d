"""Our models are the published networks; a user's own is found and checked."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.models import registry
from estimator_train.training import losses


def build(name, image_shape=(28, 28, 1), num_classes=10):
  with tf.Graph().as_default():
    return registry.build(name, image_shape, num_classes)


# Parameters by hand from the published layers: kernel height x width x inputs x filters + filters.
@pytest.mark.parametrize('name, parameters, ends_in_softmax', [
    ('fashion_cnn', 93322, True),  # As published.
    ('mnist_conv8', 3 * 3 * 8 + 8 + 28 * 28 * 8 * 10 + 10, True),
    ('mnist_deep', (9 * 32 + 32) + (9 * 32 * 256 + 256) + 4 * 256 + (9 * 256 * 128 + 128)
     + (11 * 11 * 128 * 128 + 128) + (128 * 10 + 10), True),
    ('mnist_dense', (9 * 32 + 32) + (26 * 26 * 32 * 128 + 128) + (128 * 10 + 10), False),
    ('mnist_practical', (9 * 32 + 32) + (13 * 13 * 32 * 64 + 64) + (64 * 10 + 10), False),
])
def test_published_networks(name, parameters, ends_in_softmax):
  model = build(name)
  assert model.count_params() == parameters
  assert model.output_shape == (None, 10)
  assert (model.outputs[0].op.type == 'Softmax') == ends_in_softmax
  assert losses.default_loss(model).get_config()['from_logits'] != ends_in_softmax


def test_every_name_builds():
  for name in registry.NAMES:
    assert build(name, num_classes=7).output_shape == (None, 7)


def test_users_own():
  assert build('own_models:two_layers', (20, 20, 1), 3).input_shape == (None, 20, 20, 1)
  assert build('own_models:logits').output_shape == (None, 10)


@pytest.mark.parametrize('name, message', [
    ('no_such_module:build', 'cannot be imported: --model=no_such_module:build (No module named'),
    ('own_models:no_such', "(module 'own_models' has no attribute 'no_such')"),
    (':build', 'cannot be imported: --model=:build'),
    ('own_models:no_model', '--model=own_models:no_model: None to None, expected a Keras model of'),
    ('own_models:of_another_shape', '(None, 5) to (None, 3), expected a Keras model of '
     '(None, 28, 28, 1) to (None, 10)'),
])
def test_wrong_function(name, message):
  with pytest.raises(UserError) as caught:
    build(name)
  assert message in str(caught.value)
