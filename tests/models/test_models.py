"""Our models are the published networks; a user's own is found and checked."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.models import registry
from estimator_train.settings import choices
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


def test_vgg16_is_the_published_network():
  model = build('vgg16', (224, 224, 3), 4)
  assert model.count_params() == 14714688 + 7 * 7 * 512 * 4 + 4
  trainable = [layer.name for layer in model.layers if layer.trainable_weights]
  assert trainable == ['block5_conv1', 'block5_conv2', 'block5_conv3', 'predictions']
  assert [layer.name for layer in model.layers[-3:]] == ['block5_pool', 'flatten', 'predictions']


def test_every_pretrained_network_is_there():
  pretrained = [name for name in choices.MODELS if registry.has_imagenet_weights(name)]
  functions = {name.lower() for name in dir(tf.keras.applications) if name[0].isupper()}
  assert set(pretrained) == functions
  assert build('mobilenet', (96, 96, 1), 7).output_shape == (None, 7)


@pytest.mark.parametrize('trainable_layers', [0, 1, 18, None])
def test_trainable_layers(trainable_layers):
  with tf.Graph().as_default():
    model = registry.build('vgg19', (64, 64, 3), 4, trainable_layers)
  layers = model.layers[1:-2]
  expected = layers if trainable_layers is None else layers[len(layers) - trainable_layers:]
  assert [layer for layer in layers if layer.trainable] == expected


@pytest.mark.parametrize('name, trainable_layers, message', [
    ('vgg16', 19, '--trainable_layers=19 of VGG16: give a number up to 18'),
    ('fashion_cnn', 2, 'requires a pretrained network: --trainable_layers=2 --model=fashion_cnn'),
])
def test_trainable_layers_that_cannot_be(name, trainable_layers, message):
  with tf.Graph().as_default(), pytest.raises(UserError, match=message):
    registry.build(name, (64, 64, 3), 4, trainable_layers)


def test_frozen_batch_norm_leaves_the_batch_alone():
  """Frozen, it scales by its own statistics in training too; and is saved as Keras's own."""
  with tf.Graph().as_default():
    original = registry.build('mobilenet', (32, 32, 3), 4, 0)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = tf.keras.models.clone_model(original)  # As model_to_estimator does.
    session.run(tf.global_variables_initializer())
    function = tf.keras.backend.function([model.input, tf.keras.backend.learning_phase()],
                                         [model.get_layer('conv1_relu').output])
    pixels = np.random.RandomState(1).uniform(size=(4, 32, 32, 3))
    training, inference = function([pixels, 1])[0], function([pixels, 0])[0]
    tf.keras.backend.set_session(None)
  np.testing.assert_array_equal(training, inference)
  assert not model.updates
  assert type(model.get_layer('conv1_bn')).__name__ == 'BatchNormalization'


def test_users_own():
  assert build('own_models:two_layers', (20, 20, 1), 3).input_shape == (None, 20, 20, 1)
  assert build('own_models:logits').output_shape == (None, 10)


def test_module_that_exists_but_imports_a_missing_name(tmp_path, monkeypatch):
  """The module is found, so that its error is reported, not its name."""
  package = tmp_path / 'package_with_a_wrong_import'
  package.mkdir()
  (package / '__init__.py').write_text('')
  models = package / 'models.py'
  models.write_text('\nfrom package_with_a_wrong_import import missing_name\n')
  monkeypatch.syspath_prepend(str(tmp_path))
  name = 'package_with_a_wrong_import.models:build'
  with pytest.raises(UserError) as caught:
    build(name)
  message = str(caught.value)
  assert message.startswith('the module of --model failed: --model={} ({}:2: ImportError: cannot '
                            "import name 'missing_name'".format(name, models))
  assert message.endswith('): fix this code; --verbosity=1 shows the traceback')

  # A module of the same package that does not exist is still a wrong name.
  with pytest.raises(UserError, match='^--model names a module that cannot be found: '):
    build('package_with_a_wrong_import.no_such_module:build')


@pytest.mark.parametrize('name, message', [
    ('no_such_module:build', 'names a module that cannot be found: --model=no_such_module:build '
     "(No module named 'no_such_module')"),
    (':build', 'names a module that cannot be found: --model=:build (Empty module name)'),
    ('own_models:two_layer', 'names a function that does not exist: --model=own_models:two_layer: '
     'did you mean two_layers'),
    ('own_models:', 'names a function that does not exist: --model=own_models:: did you mean '),
    ('json:decoder', 'names a function that does not exist: --model=json:decoder'),
    ('own_models:of_three_arguments', 'has the wrong parameters: '
     "--model=own_models:of_three_arguments (missing a required argument: 'what_else'): define it "
     'without parameters or with (image_shape, num_cl'),
    ('own_models:raises', "own_models.py:"),
    ('own_models:raises', ": KeyError: 'no such key'): fix this code; --verbosity=1"),
    ('own_models:no_model', 'must be a tf.keras.Model: --model=own_models:no_model is of type str'),
    ('own_models:subclassed', 'cannot be converted to an Estimator: --model=own_models:subclassed '
     'is of type Subclass: give a tf.keras.Sequential'),
    ('own_models:without_input_shape', 'must have an input shape'),
    ('own_models:of_two_inputs', 'one input and one output: --model=own_models:of_two_inputs has 2 '
     'input(s) and 1 output(s): give labels=() and image_shape=None'),
    ('own_models:of_two_outputs', 'own_models:of_two_outputs has 1 input(s) and 2 output(s): '),
    ('own_models:of_another_shape', '(None, 5) to (None, 3), expected a Keras model of '
     '(None, 28, 28, 1) to (None, 10)'),
])
def test_wrong_function(name, message):
  with pytest.raises(UserError) as caught:
    build(name)
  assert message in str(caught.value)
