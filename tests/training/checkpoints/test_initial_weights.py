"""The weights that a run begins with are those of its Keras model, all of them."""

import os

import h5py
import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from tensorflow.python.keras import utils as keras_utils

from estimator_train.errors import UserError
from estimator_train.models import registry
from estimator_train.settings import Settings
from estimator_train.training.checkpoints import initial_weights

MODEL = 'own_models:partly_frozen'


@pytest.fixture
def run_once(tmp_path):
  """Trains a step, and returns the weights before it."""
  def run(name='run', steps=1, **values):
    settings = Settings(**dict(
        dict(mode='train', model_dir=str(tmp_path / name), model=MODEL,  # noqa: C408
             dataset='synthetic', image_size=(28, 28), batch_size=8, train_steps=steps), **values))
    training_runs.train(settings)
    before = str(tmp_path / name / 'model.ckpt-0')
    return {key: tf.train.load_variable(before, key)
            for key, shape in tf.train.list_variables(before)
            if shape and not key.startswith('training')}

  return run


@pytest.fixture
def odd_weights(tmp_path):
  """An .h5 file of weights that no initializer makes, and the weights by name."""
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = own_models.partly_frozen((28, 28, 1), 10)
    model.set_weights([np.random.RandomState(index).uniform(2, 3, value.shape)
                       for index, value in enumerate(model.get_weights())])
    path = str(tmp_path / 'odd.h5')
    model.save_weights(path)
    weights = dict(zip([weight.op.name for weight in model.weights], model.get_weights()))
    tf.keras.backend.set_session(None)
  return path, weights


@pytest.mark.parametrize('strategy, replicas', [
    ('off', 1), ('mirrored', 2), ('central_storage', 2)])
def test_h5_arrives(run_once, odd_weights, strategy, replicas):
  path, expected = odd_weights
  found = run_once(weights=path, distribution_strategy=strategy, num_cpu_replicas=replicas)
  assert set(found) == set(expected) and len(found) == 8
  for name in expected:  # Frozen layers and batch-norm statistics among them.
    np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize('suffix', ['', '/model.ckpt-1'])
def test_checkpoint_arrives(run_once, tmp_path, suffix):
  run_once('first')
  folder = str(tmp_path / 'first')
  found = run_once('second', weights=folder + suffix)
  for name, value in found.items():
    np.testing.assert_array_equal(value, tf.train.load_variable(folder, name), err_msg=name)


def test_every_replica_begins_alike(run_once):
  """Random ones too: from the same seed, under every strategy."""
  expected = run_once('off', distribution_strategy='off')
  for strategy in ('mirrored', 'central_storage'):
    found = run_once(strategy, distribution_strategy=strategy, num_cpu_replicas=2)
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize('make, message', [
    (lambda folder: folder / 'none.h5', 'there are no weights at this path: --weights='),
    (lambda folder: folder, 'there are no weights at this path: --weights='),
    (lambda folder: write(folder / 'text.h5', b'no hdf5'), 'the weights do not fit the model'),
    (lambda folder: save_h5(folder / 'other.h5'), 'the weights do not fit the model'),
], ids=['missing', 'folder without a checkpoint', 'not hdf5', 'of another model'])
def test_wrong_file(run_once, tmp_path, make, message):
  with pytest.raises(UserError, match=message) as caught:
    run_once(weights=str(make(tmp_path)))
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'run' / 'flags.txt').exists()


def write(path, content):
  path.write_bytes(content)
  return path


def save_h5(path):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    own_models.two_layers((28, 28, 1), 10).save_weights(str(path))
    tf.keras.backend.set_session(None)
  return path


def test_another_models_checkpoint_as_weights(run_once, tmp_path):
  run_once('first', model='own_models:two_layers')
  with pytest.raises(UserError, match='the weights do not fit the model'):
    run_once('second', weights=str(tmp_path / 'first'))


def test_another_optimizer_of_the_users_own_model(run_once):
  run_once(model='own_models:compiled_with_sgd')
  with pytest.raises(UserError, match='another model or optimizer: Key .* not found in checkpoint'):
    run_once(model='own_models:compiled_with_adam', steps=2)


def test_left_over_weights_are_replaced(run_once, odd_weights, tmp_path):
  path, expected = odd_weights
  run_once()
  for file in list((tmp_path / 'run').glob('model.ckpt-*')) + [tmp_path / 'run' / 'checkpoint']:
    file.unlink()
  assert (tmp_path / 'run' / 'keras' / 'keras_model.ckpt.index').exists()
  found = run_once(weights=path)
  np.testing.assert_array_equal(found['dense/kernel'], expected['dense/kernel'])


def test_other_weights_are_reported_after_it(run_once, odd_weights, caplog, monkeypatch):
  run_once()
  run_once(steps=2)
  assert 'initial weights' not in caplog.text
  run_once(steps=3, weights=odd_weights[0])
  assert 'resuming from the checkpoint of step 2, whose run began with --model={} --seed=1'.format(
      MODEL) in caplog.text
  assert 'are ignored' in caplog.text


@pytest.fixture(scope='module')
def no_top(tmp_path_factory):
  """The file of a network's weights without its head, as Keras publishes them, and the values."""
  path = str(tmp_path_factory.mktemp('keras') / 'vgg16_notop.h5')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    backbone = tf.keras.applications.VGG16(weights=None, include_top=False)
    backbone.save_weights(path)
    values = backbone.get_weights()
    tf.keras.backend.set_session(None)
  return path, values


def built(weights, image_shape=(32, 32, 3)):
  """Returns the weights of vgg16 after `load`, by variable."""
  settings = Settings(model='vgg16', weights=weights, model_dir='x', train_steps=1)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = registry.build('vgg16', image_shape, 4)
    initial_weights.load_initial_weights(model, settings, image_shape)
    values = dict(zip([weight.op.name for weight in model.weights], model.get_weights()))
    tf.keras.backend.set_session(None)
  return values


def test_a_file_without_the_head(no_top):
  path, expected = no_top
  found = built(path)
  assert list(found)[-2:] == ['predictions/kernel', 'predictions/bias']
  for value, original in zip(list(found.values())[:-2], expected):
    np.testing.assert_array_equal(value, original)
  assert np.abs(found['predictions/kernel']).max() > 0


def test_imagenet_weights(no_top, monkeypatch):
  """Keras looks for the file in its cache first; the network behind that is not there in a test."""
  path, expected = no_top
  asked = []

  def get_file(name, origin, **rest):
    asked.append((name, origin))
    return path

  monkeypatch.setattr(keras_utils, 'get_file', get_file)
  found = built('imagenet')
  assert len(asked) == 1 and 'vgg16' in asked[0][0] and 'notop' in asked[0][0]
  for value, original in zip(list(found.values())[:-2], expected):
    np.testing.assert_array_equal(value, original)


def test_imagenet_weights_without_a_network(monkeypatch, tmp_path, capsys):
  monkeypatch.setenv('KERAS_HOME', str(tmp_path))
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('https_proxy', 'http://127.0.0.1:9')  # Nobody listens there.
  with pytest.raises(UserError, match='cannot be downloaded: --weights=imagenet .*: give '
                                      '--weights=PATH of .* or --weights=none'):
    built('imagenet')
  assert capsys.readouterr().out == ''
  assert not list(tmp_path.rglob('*.h5'))


def test_a_file_of_another_network(tmp_path):
  path = str(tmp_path / 'vgg19.h5')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    tf.keras.applications.VGG19(weights=None, include_top=False).save_weights(path)
    tf.keras.backend.set_session(None)
  with pytest.raises(UserError, match='the weights do not fit the model: --weights=.*vgg19.h5'):
    built(path)


def run_code(inputs, path):
  """What an evil layer does; Keras stores the code itself."""
  import os
  os.makedirs(path, exist_ok=True)
  return inputs


@pytest.fixture
def evil_model(tmp_path):
  """A whole model in a file whose code makes a folder, and that folder."""
  pwned = str(tmp_path / 'pwned')
  path = str(tmp_path / 'evil.h5')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = own_models.two_layers((28, 28, 1), 10)
    model.add(tf.keras.layers.Lambda(run_code, arguments={'path': pwned}))
    model.save(path)
    tf.keras.backend.set_session(None)
  os.rmdir(pwned)
  return path, pwned


def test_code_in_a_file_of_weights_does_not_run(evil_model):
  path, pwned = evil_model
  settings = Settings(model='own_models:two_layers', weights=path, model_dir='x', train_steps=1)
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = own_models.two_layers((28, 28, 1), 10)
    initial_weights.load_initial_weights(model, settings, (28, 28, 1))
    found = model.get_weights()
    assert not os.path.exists(pwned)
    evil = tf.keras.models.load_model(path)  # This runs it, which is why nothing here does this.
    assert os.path.exists(pwned)
    for value, expected in zip(found, evil.get_weights()):
      np.testing.assert_array_equal(value, expected)
    tf.keras.backend.set_session(None)


def to_raw_file(group, name, shape, elsewhere):
  group.create_dataset(name, shape, np.float32, external=[(str(elsewhere), 0, h5py.h5f.UNLIMITED)])


def to_hdf5_file(group, name, shape, elsewhere):
  group[name] = h5py.ExternalLink(str(elsewhere), '/secret')


def to_view(group, name, shape, elsewhere):
  layout = h5py.VirtualLayout(shape, np.float32)
  layout[...] = h5py.VirtualSource(str(elsewhere), 'secret', shape)
  group.create_virtual_dataset(name, layout)


@pytest.mark.parametrize('lead', [to_raw_file, to_hdf5_file, to_view])
def test_weights_that_would_be_read_from_another_file(run_once, odd_weights, tmp_path, lead):
  """They would be in checkpoints, and so in what the user hands on."""
  path, _ = odd_weights
  elsewhere = tmp_path / 'elsewhere'
  with h5py.File(path, 'r+') as file:
    group = file['dense/dense']
    shape = group['bias:0'].shape
    if lead == to_raw_file:
      elsewhere.write_bytes(b'secret..' * 100)
    else:
      with h5py.File(str(elsewhere), 'w') as other:
        other['secret'] = np.full(shape, 7, np.float32)
    del group['bias:0']
    lead(group, 'bias:0', shape, elsewhere)
  with h5py.File(path, 'r') as file:
    assert np.all(file['dense/dense/bias:0'][...] != 0)  # The attack is one.
  with pytest.raises(UserError, match='must not refer to other files: --weights=' + path):
    run_once(weights=path)
