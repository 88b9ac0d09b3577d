"""Our models are the published networks; a user's own is found and checked; pixels and outputs are
scaled as the networks and the losses need it."""

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import keras_session

from estimator_train.errors import UserError
from estimator_train.model import losses, networks
from estimator_train.model.inputs import MEANS_AND_SCALES, make_preprocess_function
from estimator_train.settings.flags import KERAS_MODELS, MODELS


def build(name, image_shape=(28, 28, 1), num_classes=10, **given):
  with tf.Graph().as_default():
    return networks.build_named_model(name, image_shape, num_classes, **given)


# Parameters by hand from the published layers: kernel height x width x inputs x filters + filters.
@pytest.mark.parametrize('name, parameters, ends_in_softmax', [
    ('fashion_cnn', 93322, True),  # As published.
    ('mnist_conv8', 3 * 3 * 8 + 8 + 28 * 28 * 8 * 10 + 10, True),
    ('mnist_deep', (9 * 32 + 32) + (9 * 32 * 256 + 256) + 4 * 256 + (9 * 256 * 128 + 128)
     + (11 * 11 * 128 * 128 + 128) + (128 * 10 + 10), True),
    ('mnist_dense', (9 * 32 + 32) + (26 * 26 * 32 * 128 + 128) + (128 * 10 + 10), False),
    ('mnist_practical', (9 * 32 + 32) + (13 * 13 * 32 * 64 + 64) + (64 * 10 + 10), False),
    ('residual_cnn', 9 * (32 + 32 * 64 + 64 * 64 + 64 * 128 + 2 * 128 * 128)
     + 4 * (32 + 2 * 64 + 3 * 128) + (128 * 10 + 10), True),
])
def test_networks_of_the_package(name, parameters, ends_in_softmax):
  model = build(name)
  assert model.count_params() == parameters and model.output_shape == (None, 10)
  assert (model.outputs[0].op.type == 'Softmax') == ends_in_softmax
  assert losses.default_loss(model).get_config()['from_logits'] != ends_in_softmax


def test_pretrained_networks():
  pretrained = {name for name in MODELS if networks.has_imagenet_weights(name)}
  assert pretrained == {name.lower() for name in dir(tf.keras.applications) if name[0].isupper()}
  model = build('vgg16', (224, 224, 3), 4)
  assert model.count_params() == 14714688 + 7 * 7 * 512 * 4 + 4
  trainable = [layer.name for layer in model.layers if layer.trainable_weights]
  assert trainable == ['block5_conv1', 'block5_conv2', 'block5_conv3', 'predictions']
  assert [layer.name for layer in model.layers[-3:]] == ['block5_pool', 'flatten', 'predictions']
  for count in (0, 1, 18, None):
    layers = build('vgg19', (64, 64, 3), 4, trainable_layers=count).layers[1:-2]
    assert [layer for layer in layers if layer.trainable] == (
        layers if count is None else layers[len(layers) - count:])
  for name, message in (('vgg16', '--trainable_layers=19 of vgg16: give a number up to 18'),
                        ('fashion_cnn', 'requires a pretrained network: --trainable_layers=19 ')):
    with pytest.raises(UserError, match=message):
      build(name, (64, 64, 3), 4, trainable_layers=19)


def test_frozen_batch_norm_leaves_the_batch_alone():
  """Frozen, it scales by its own statistics in training too; and is saved as Keras's own."""
  original = build('mobilenet', (32, 32, 1), 4, trainable_layers=0)
  assert original.output_shape == (None, 4)
  with keras_session() as session:
    model = tf.keras.models.clone_model(original)  # As model_to_estimator does.
    session.run(tf.global_variables_initializer())
    function = tf.keras.backend.function([model.input, tf.keras.backend.learning_phase()],
                                         [model.get_layer('conv1_relu').output])
    pixels = np.random.RandomState(1).uniform(size=(4,) + model.input_shape[1:])
    training, inference = function([pixels, 1])[0], function([pixels, 0])[0]
  np.testing.assert_array_equal(training, inference)
  assert not model.updates
  assert type(model.get_layer('conv1_bn')).__name__ == 'BatchNormalization'


def flattening(**shape):
  """Returns a function that makes a model of images of a shape."""
  return lambda: tf.keras.Sequential([
      tf.keras.layers.Flatten(**shape), tf.keras.layers.Dense(10)])


of_rgb_images = flattening(input_shape=(28, 28, 3))
of_batches_of_four = flattening(batch_input_shape=(4, 28, 28, 1))


def of_small_images(image_shape, num_classes):
  return own_models.two_layers((8, 9, 1), num_classes)


def with_a_sigmoid(image_shape, num_classes):
  return own_models.two_layers(image_shape, 1)


def test_two_classes_require_two_outputs():
  with pytest.raises(UserError, match='two outputs and a softmax in place of one output and a sig'):
    build(__name__ + ':with_a_sigmoid', num_classes=2)


def test_users_own(tmp_path, monkeypatch):
  assert build('own_models:two_layers', (20, 20, 1), 3).input_shape == (None, 20, 20, 1)
  for name in ('own_models:logits', __name__ + ':of_rgb_images'):
    assert build(name).output_shape == (None, 10)
  # A module is found that imports a missing name: its error is reported, not its name.
  (tmp_path / 'wrong_import.py').write_text('\nfrom json import missing_name\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  for name, message in (
      ('wrong_import:build', '/wrong_import.py:2: ImportError: cannot import name'),
      ('no_such_module:build', "cannot be found: --model=no_such_module:build (No module named 'n"),
      ('own_models:two_layer', 'own_models.py: did you mean two_layers'),
      ('own_models:of_three_arguments', "(missing a required argument: 'what_else'): define it wi"),
      ('own_models:raises', ": KeyError: 'no such key'): fix this code; --verbosity=1"),
      ('own_models:no_model', 'a tf.keras.Model: --model=own_models:no_model is of type str'),
      ('own_models:subclassed', 'cannot be converted to an Estimator: --model=own_models:subclass'),
      ('own_models:without_input_shape', 'must have an input shape'),
      ('own_models:of_two_inputs', '_inputs: (None, 28, 28, 1), (None, 3) to (None, 10), expected'),
      ('own_models:of_two_outputs', ' to (None, 10), (None, 10), expected'),
      (__name__ + ':of_batches_of_four', '(4, 28, 28, 1) to (4, 10), expected'),
      ('own_models:of_another_shape', '(None, 5) to (None, 3), expected a Keras model of (None, '),
      (__name__ + ':of_small_images', ': give --image_size=8,9, or change the input of the model')):
    with pytest.raises(UserError) as caught:
      build(name)
    assert message in str(caught.value), name


@pytest.mark.parametrize('name, network', [
    ('caffe', 'vgg16'), ('tf', 'mobilenet'), ('torch', 'densenet'), ('unit', None)])
def test_preprocessing_as_keras_does(name, network):
  pixels = np.random.RandomState(1).randint(0, 256, (2, 3, 4, 3)).astype(np.uint8)
  keras = (getattr(tf.keras.applications, network).preprocess_input if network
           else lambda pixels: pixels / 255)
  for given, channels in ((pixels, 3), (pixels[..., :1], 3), (pixels[..., :1], 1)):
    if channels == 3 or not network:
      with tf.Graph().as_default(), tf.Session() as session:
        scaled = make_preprocess_function(name, 3, 4, channels)(tf.constant(given))
        assert scaled.shape.as_list()[1:] == [3, 4, channels] and scaled.dtype == tf.float32
        expected = np.repeat(given, channels // given.shape[3], -1).astype(np.float32)
        np.testing.assert_allclose(session.run(scaled), keras(expected), atol=1e-5)


def test_preprocessing_of_imagenet_weights():
  """Each network has that of its module in Keras."""
  pixels = np.random.RandomState(1).randint(0, 256, (1, 2, 3, 3)).astype(np.float32)
  applications, found = tf.keras.applications, {}
  for module in ('densenet', 'inception_resnet_v2', 'inception_v3', 'mobilenet', 'mobilenet_v2',
                 'nasnet', 'resnet', 'resnet_v2', 'vgg16', 'vgg19', 'xception'):
    expected = getattr(applications, module).preprocess_input(pixels.copy())
    for network in dir(getattr(applications, module)):
      for name, (mean, scale) in MEANS_AND_SCALES.items():
        ordered = pixels[..., ::-1] if name == 'caffe' else pixels
        if network.lower() in MODELS and np.allclose((ordered - mean) * scale, expected, atol=1e-4):
          found[network.lower()] = name
  assert found == KERAS_MODELS
