"""Files of TensorFlow 1.15 in each of the libraries of docs/exporting.md that load them."""

import json
from unittest import mock

import h5py
import load_h5_files
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import keras_session, run_process

from estimator_train.data import binary_files, mnist
from estimator_train.distribution.devices import Devices
from estimator_train.exporting import h5_model, keras_3_config, restored_model
from estimator_train.model import losses, networks
from estimator_train.model.networks import ScaledResidualSum
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import PACKAGE_MODELS
from estimator_train.system import temporary_files

layers = tf.keras.layers
IMAGE, SEQUENCE, NUM_CLASSES, BATCH = (9, 10, 3), (6, 4), 3, 4


def test_plain_keras_scores_the_same(finished_run):
  dataset = mnist.describe_data_set('fashion_mnist_sample')
  images, classes = binary_files.IdxSource(dataset.spec, dataset.test).load_arrays()
  with keras_session():
    found = tf.keras.models.load_model(str(finished_run / 'model.h5')).evaluate(
        images.astype(np.float32) / 255, np.eye(10)[classes], batch_size=1000, verbose=0)
  evaluation = json.loads((finished_run / 'evaluation.json').read_text())
  assert found == pytest.approx([evaluation['average_loss'], evaluation['accuracy']], rel=1e-5)


@pytest.mark.parametrize('needs_gpu', [False, True])
def test_models_with_operations_for_gpus_are_restored_on_a_gpu(finished_run, monkeypatch,
                                                               needs_gpu):
  monkeypatch.setattr(restored_model.graphs, 'requires_gpu', lambda graph: needs_gpu)
  monkeypatch.setattr(restored_model, 'find_devices', lambda flags: Devices(('/gpu:0',), ('GPU',)))
  settings = Settings(mode='export', dataset='fashion_mnist_sample', batch_size=50,
                      model='own_models:two_layers', model_dir=str(finished_run))
  with restored_model.open_trained_model(settings, RunDir(str(finished_run))) as trained, \
      trained.restore() as restored:
    assert restored.session is tf.get_default_session()
    assert ('GPU' in restored.session._config.device_count) != needs_gpu
    weights = restored.session.run(restored.keras_model.weights)
  with keras_session():
    saved = tf.keras.models.load_model(str(finished_run / 'model.h5')).get_weights()
  assert all((one == two).all() for one, two in zip(weights, saved))


def image_layers():
  return tf.keras.Sequential([
      layers.Conv2D(6, 3, activation='elu', kernel_regularizer='l2', input_shape=IMAGE),
      layers.BatchNormalization(), layers.PReLU(shared_axes=[1, 2]),
      layers.ZeroPadding2D(((1, 0), (0, 1))),
      layers.SeparableConv2D(6, 3, padding='same', depthwise_initializer='he_uniform'),
      layers.BatchNormalization(axis=2), layers.LeakyReLU(.2),
      layers.DepthwiseConv2D(3, depth_multiplier=2, dilation_rate=2, padding='same'),
      layers.LayerNormalization(), layers.SpatialDropout2D(0.),
      layers.UpSampling2D(interpolation='bilinear'), layers.AveragePooling2D(),
      layers.Conv2DTranspose(4, 3, strides=2, kernel_initializer='orthogonal'),
      layers.ReLU(6., negative_slope=.1), layers.MaxPooling2D(padding='same'),
      layers.TimeDistributed(layers.Conv1D(4, 3, input_shape=(9, 4))),
      layers.TimeDistributed(layers.LayerNormalization()), layers.TimeDistributed(
          tf.keras.Sequential([layers.Dense(5), layers.LayerNormalization()])),
      layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(NUM_CLASSES)])


def sequence_layers():
  return tf.keras.Sequential([
      layers.Masking(input_shape=SEQUENCE),
      layers.Bidirectional(layers.GRU(4, recurrent_activation='sigmoid', return_sequences=True)),
      layers.Bidirectional(layers.LSTM(3, recurrent_activation='sigmoid', return_sequences=True),
                           merge_mode='sum'),
      layers.RNN([layers.LSTMCell(4, recurrent_activation='sigmoid'), layers.SimpleRNNCell(3)],
                 return_sequences=True, go_backwards=True),
      layers.SimpleRNN(4), layers.Dense(NUM_CLASSES)])


def own_layer():
  scale = load_h5_files.make_own_layer(tf.keras)
  return tf.keras.Sequential([
      scale(4, .5, kernel_initializer=tf.keras.initializers.RandomNormal(), input_shape=SEQUENCE),
      layers.GlobalAveragePooling1D(), scale(NUM_CLASSES, 2.)])


def attention_and_scaled_sum():
  """Has the Lambda layer of InceptionResNetV2, and names with slashes as DenseNet."""
  inputs = tf.keras.Input(SEQUENCE)
  residual = layers.Conv1D(4, 2, padding='causal', name='block/residual')(inputs)
  keys = ScaledResidualSum(
      lambda inputs, scale: inputs[0] + inputs[1] * scale, output_shape=SEQUENCE,
      arguments={'scale': .17}, name='keys')([inputs, residual])
  hidden = layers.add([layers.Attention(use_scale=True)([inputs, keys]),
                       layers.AdditiveAttention()([inputs, keys])])
  return tf.keras.Model(inputs, layers.Dense(NUM_CLASSES)(layers.GlobalMaxPooling1D()(hidden)))


def _backbone(is_frozen=False):
  inputs = tf.keras.Input(IMAGE)
  convolution = layers.Conv2D(4, 3, trainable=not is_frozen)
  hidden = layers.BatchNormalization(momentum=.9)(convolution(inputs))
  return tf.keras.Model(inputs, layers.GlobalAveragePooling2D()(hidden))


def models_as_layers():
  """One is called twice, and one is the output."""
  images = [tf.keras.Input(IMAGE), tf.keras.Input(IMAGE)]
  backbone, frozen = _backbone(), _backbone(is_frozen=True)
  hidden = layers.subtract([backbone(image) for image in images])
  top = tf.keras.Sequential([layers.Dense(4, 'relu', input_shape=(4,)), layers.Dense(NUM_CLASSES)])
  return tf.keras.Model(images, top(layers.add([hidden, frozen(images[0])])))


def model_in_sequential():
  return tf.keras.Sequential([_backbone(), layers.Dense(NUM_CLASSES)])


PORTABLE = {build.__name__: build for build in (
    image_layers, sequence_layers, own_layer, attention_and_scaled_sum, models_as_layers,
    model_in_sequential)}


def compiled(name):
  """Returns a registered model or one of the above, compiled."""
  shape = (28, 28, 1) if name in PACKAGE_MODELS else (76, 76, 3)
  model = PORTABLE[name]() if name in PORTABLE else networks.build_named_model(
      name, shape, NUM_CLASSES)
  loss = losses.default_loss(model)
  loss = {'attention_and_scaled_sum': {model.output_names[0]: loss},  # As for several outputs.
          'models_as_layers': 'mae'}.get(name, loss)
  model.compile(tf.keras.optimizers.SGD(.05), h5_model.expand_loss_names(loss), ['accuracy'])
  return model


def draw_weights(model, random):
  """Draws weights that make each layer visible in the outputs; new ones would hide batch norm."""
  def draw(variable, value):
    if 'moving_variance' in variable.name or 'gamma' in variable.name:
      return random.uniform(.5, 1.5, value.shape)
    scale = 1 / np.sqrt(np.prod(value.shape[:-1])) if value.ndim > 1 else .2
    return random.normal(0, scale, value.shape)

  model.set_weights([draw(variable, value)
                     for variable, value in zip(model.weights, model.get_weights())])


def write(folder, name):
  """Writes a model and examples for load_h5_files.py; returns what TensorFlow 1.15 computes."""
  path, random = str(folder / (name + '.h5')), np.random.RandomState(sum(map(ord, name)))
  with keras_session():
    model = compiled(name)
    draw_weights(model, random)
    inputs = {'x{}'.format(index): random.normal(
        size=[BATCH] + tensor.shape.as_list()[1:]).astype(np.float32)
              for index, tensor in enumerate(model.inputs)}
    np.savez(path[:-len('.h5')] + '.npz', steps=2 if name in PORTABLE else 0,  # Others: dropout.
             labels=np.eye(NUM_CLASSES, dtype=np.float32)[np.arange(BATCH) % 3], **inputs)
    model.save(path, save_format='h5')
    expected = load_h5_files.compute(model, path)
  assert h5_model.rewrite_for_keras_3(path) is None, name
  return expected


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  """A folder of files, and what TensorFlow 1.15 computes with their models."""
  folder = tmp_path_factory.mktemp('h5')
  return folder, {name + '.h5': write(folder, name)
                  for name in PACKAGE_MODELS + tuple(PORTABLE)}


def assert_equal(found, expected, name):
  for loaded in found:  # Without and with its compilation.
    np.testing.assert_allclose(loaded['outputs'], expected['outputs'], err_msg=name, rtol=0,
                               atol=1e-6 * np.abs(expected['outputs']).max())
  assert found[0]['losses'] == []
  assert found[1]['losses'][0] == pytest.approx(expected['losses'][0], rel=1e-6), name
  assert found[1]['losses'] == pytest.approx(expected['losses'], rel=1e-5), name


@pytest.mark.slow
def test_tensorflow_1_evaluates_and_trains_alike(files):
  folder, expected = files
  for name in expected:
    with keras_session():
      found = load_h5_files.load_and_compute(tf.keras, str(folder / name), is_eager=False)
      assert_equal(found, expected[name], name)
      # Each call of a batch norm updates its statistics once per step.
      assert found[1]['updates'] == expected[name]['updates'], name


@pytest.mark.slow
def test_other_libraries_evaluate_and_train_alike(files, clients_python):
  folder, expected = files
  expected = dict(expected, **{'vgg16.h5': write(folder, 'vgg16')})
  done = run_process(clients_python, 'tests/load_h5_files.py', folder, timeout=900)
  assert done.returncode == 0, done.stderr
  results = json.loads(done.stdout.splitlines()[-1])
  assert len(results) == 2 * len(expected)
  for name, found in results.items():
    assert_equal(found, expected[name.split()[1]], name)


def initial_state(inputs):
  _, *state = layers.LSTM(3, recurrent_activation='sigmoid', return_state=True)(inputs)
  return layers.LSTM(3, recurrent_activation='sigmoid')(inputs, initial_state=state)


def regularized_activity():
  return tf.keras.Sequential([layers.InputLayer(SEQUENCE),
                              layers.Dense(2, name='own', activity_regularizer='l2')])


# What makes a layer, or another function of a sequence, and why Keras 3 cannot load its model.
NOT_PORTABLE = (
    (lambda: layers.LSTM(3), 'hard_sigmoid of lstm has another slope in Keras 3'),
    (lambda: layers.Lambda(lambda inputs: 2 * inputs),
     'a Lambda layer contains code for a version of Python'),
    (lambda: layers.LayerNormalization(axis=[1, 2]), 'layer_normalization has several axes'),
    (lambda: layers.LocallyConnected1D(2, 3), 'Keras 3 has no LocallyConnected1D'),
    (lambda: lambda inputs: layers.Attention(causal=True)([inputs, layers.Conv1D(4, 1)(inputs)]),
     'Keras 3 has no argument causal of Attention'),
    (lambda: layers.GRU(3, recurrent_activation='sigmoid', time_major=True),
     'Keras 3 has no argument time_major of GRU'),
    (lambda: layers.Dense(2, kernel_initializer=tf.keras.initializers.Ones(tf.float64)),
     'an initializer of dense_1 has the dtype float64'),
    (lambda: initial_state, 'lstm_1 has another layer as an argument'),
    (lambda: lambda inputs: 2 * inputs, 'Keras 3 has no TensorFlowOpLayer'),
    (lambda: tf.keras.Sequential([layers.Dense(2, name='a/b', input_shape=SEQUENCE)]),
     'the name a/b contains a slash'),
    (lambda: lambda inputs: layers.DenseFeatures([tf.feature_column.numeric_column('size')])(
        {'size': layers.Flatten()(inputs)}),
     'it lacks the feature columns of a layer DenseFeatures'),
    (regularized_activity, 'own in sequential may have an effect on training when it is called '
                           'twice'))


def test_why_a_file_cannot_be_loaded(tmp_path):
  column = tf.feature_column.numeric_column('size', normalizer_fn=lambda size: size / 2)
  path = str(tmp_path / 'model.h5')
  for layer, error in ((layers.Dense(2), None),
                       (layers.DenseFeatures([column]), 'AttributeError: ')):
    with tf.Graph().as_default(), tf.Session():
      inputs = tf.keras.Input([1])
      outputs = layer({'size': inputs} if error else inputs)
      tf.keras.Model(inputs, outputs).save(path, save_format='h5')
    found = h5_model.find_loading_error(path)
    assert found is None if error is None else found.startswith(error)


def test_a_file_that_keras_3_cannot_load_stays_as_it_is(tmp_path):
  path = tmp_path / 'model.h5'
  tf.keras.backend.set_session(None)
  for make, reason in NOT_PORTABLE:
    tf.keras.backend.clear_session()
    inputs = tf.keras.Input(SEQUENCE)
    model = tf.keras.Model(inputs, layers.Dense(2)(layers.Flatten()(make()(inputs))))
    model.save(str(path), save_format='h5')
    before = path.read_bytes()
    assert h5_model.rewrite_for_keras_3(str(path)) == reason
    assert path.read_bytes() == before
  tf.keras.backend.clear_session()
  rnn = {'class_name': 'RNN', 'config': {'name': 'r', 'cell': {}}}
  for class_name, reason in (('Own', 'Own is a subclass of tf.keras.Model'),
                             ('Sequential', 'the configuration of a layer is unknown')):
    with h5py.File(str(path), 'w') as file:
      file.attrs['model_config'] = json.dumps(
          {'class_name': class_name, 'config': {'name': 'model', 'layers': [rnn]}})
    assert reason in h5_model.rewrite_for_keras_3(str(path))


def test_a_layer_of_the_user_stays_as_it_is():
  """Even if it has the names of Keras's arguments, or of Keras's class."""
  own = {'class_name': 'Own', 'config': {
      'name': 'own', 'axis': [1, 2], 'time_major': True, 'return_sequences': True,
      'activation': 'hard_sigmoid', 'table': {'class_name': 'Zeros', 'dtype': 'float32'}}}
  same_name = {'class_name': 'SpatialDropout2D', 'config': {'name': 'drop', 'trainable': True}}
  model = {'class_name': 'Sequential', 'config': {'name': 'model', 'layers': [own, same_name]}}
  assert keras_3_config.rewrite_model_config(model) == model


def test_a_loss_by_another_name_is_the_same():
  labels, outputs = np.float32([[[.2, .8], [.6, .4]], [[.3, .7], [.9, .1]]])
  for name in ('mse', 'MAE', 'mape', 'msle', 'kld', 'logcosh', 'huber_loss',
               'kullback_leibler_divergence', 'cosine_proximity'):
    full_name = h5_model.expand_loss_names(name)
    assert full_name != name and h5_model.expand_loss_names({'a': [name]}) == {'a': [full_name]}
    with keras_session() as session:
      values = session.run([tf.reduce_mean(tf.keras.losses.get(loss)(labels, outputs))
                            for loss in (name, full_name)])
    assert values[0] == pytest.approx(values[1], rel=1e-6), name


def test_another_process_in_the_folder_leaves_the_unfinished_file(tmp_path, monkeypatch):
  """Its first atomic write removes what killed processes left."""
  def write(path, restored):
    with open(path, 'w') as file:
      file.write('model')
    temporary_files.remove_leftovers(str(tmp_path))

  monkeypatch.setattr(h5_model, 'write_h5_file', write)
  path = h5_model.save_model(mock.MagicMock(run_dir=RunDir(str(tmp_path))))
  assert path == str(tmp_path / 'model.h5') and (tmp_path / 'model.h5').read_text() == 'model'
  assert [entry.name for entry in tmp_path.iterdir()] == ['model.h5']
