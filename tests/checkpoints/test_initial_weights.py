"""The weights that a run begins with are those of its Keras model, all of them."""

import shutil

import h5py
import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
import training_runs
from conftest import keras_session
from numpy.testing import assert_array_equal
from tensorflow.python.keras import utils as keras_utils

from estimator_train import modes
from estimator_train.checkpoints import pinned_files
from estimator_train.errors import UserError
from estimator_train.model import initial_weights, networks
from estimator_train.settings import Settings

MODEL, SHAPE = __name__ + ':with_frozen_inner_model', (28, 28, 1)


def with_inner_model(image_shape, num_classes, is_trained=True):
  layers = tf.keras.layers
  inner = tf.keras.Sequential([
      layers.Flatten(input_shape=image_shape), layers.BatchNormalization(), layers.Dense(3)])
  inner.trainable = is_trained
  return tf.keras.Sequential([inner, layers.Dense(num_classes, 'softmax', name='head')])


def with_frozen_inner_model(image_shape, num_classes):
  """Keras stores the weights of a frozen model in another order."""
  return with_inner_model(image_shape, num_classes, is_trained=False)


def train(folder, steps=1, model=MODEL, **values):
  """Trains, and returns the weights before the first step."""
  training_runs.train(folder, model=model, batch_size=8, dataset='synthetic', train_steps=steps,
                      **values)
  return training_runs.weights(folder, 0)


def by_variable(model):
  """Returns the weights of a model by the names of their variables."""
  return dict(zip([weight.op.name for weight in model.weights], model.get_weights()))


def load(weights, name=MODEL, num_classes=10, shape=SHAPE, **given):
  """Returns the weights of a model after it has loaded some, by variable."""
  settings = Settings(model=name, weights=str(weights), model_dir='x', **given)
  with keras_session():
    model = networks.build_named_model(name, shape, num_classes)
    initial_weights.load_initial_weights(model, settings.model, shape)
    return by_variable(model)


@pytest.fixture(scope='module')
def h5(tmp_path_factory):
  """A file of weights that no initializer makes, and the weights by variable."""
  path = tmp_path_factory.mktemp('weights') / 'odd.h5'
  with keras_session():
    model = with_frozen_inner_model(SHAPE, 10)
    model.set_weights([np.random.RandomState(index).uniform(2, 3, value.shape)
                       for index, value in enumerate(model.get_weights())])
    model.save_weights(str(path))
    return path, by_variable(model)


@pytest.fixture(scope='module')
def trained(h5, tmp_path_factory):
  """The folder of a run that began with the weights of the file."""
  path, expected = h5
  folder = tmp_path_factory.mktemp('runs') / 'run'
  training_runs.assert_same(train(folder, weights=str(path), distribution_strategy='off'),
                            expected, tolerance=0)
  return folder


def test_weights_arrive_on_all_replicas(h5, tmp_path):
  """Frozen layers and batch-norm statistics among them; random ones too, from the same seed."""
  path, expected = h5
  random = train(tmp_path / 'off', distribution_strategy='off')
  assert len(random) == 8
  for strategy, weights, values in (
      ('mirrored', 'none', random), ('central_storage', str(path), expected)):
    training_runs.assert_same(
        train(tmp_path / strategy, weights=weights, distribution_strategy=strategy,
              num_cpu_replicas=2), values, tolerance=0)


def test_another_optimizer_of_the_users_own_model(tmp_path):
  train(tmp_path / 'run', model='own_models:compiled_with_sgd')
  with pytest.raises(UserError, match='another model or optimizer: Key .* not found in checkpoint'):
    train(tmp_path / 'run', 2, model='own_models:compiled_with_adam')


def test_weights_that_cannot_be_loaded(h5, trained, tmp_path):
  (tmp_path / 'text.h5').write_bytes(b'no hdf5')
  there_are_none = 'there are no weights at this path: --weights='
  do_not_fit = 'the weights do not fit the model: --weights='
  for weights, message in (
      (tmp_path / 'none.h5', there_are_none), (tmp_path, there_are_none),
      ('imagenet', 'there are no ImageNet weights for this model: --weights='),
      (tmp_path / 'text.h5', do_not_fit), (h5[0], do_not_fit), (trained, do_not_fit)):
    with pytest.raises(UserError, match=message + str(weights)) as caught:
      load(weights, 'own_models:embedding')
    assert '\n' not in str(caught.value)
  with pytest.raises(UserError, match=there_are_none):
    train(tmp_path / 'run', weights=str(tmp_path / 'none.h5'))
  assert not (tmp_path / 'run' / 'flags.txt').exists()


def test_weights_of_another_head(h5, trained, tmp_path, caplog):
  """Of a file, a checkpoint, and the SavedModels of this package and of Keras."""
  caplog.set_level('INFO', 'estimator_train')
  (path, expected), checkpoint = h5, training_runs.weights(trained)
  exported = modes.run(Settings(
      mode='export', model=MODEL, dataset='synthetic', model_dir=str(trained),
      export_dir=str(tmp_path / 'exports')))['path']
  with keras_session():
    model = with_frozen_inner_model(SHAPE, 10)
    model.load_weights(str(path))
    tf.keras.experimental.export_saved_model(model, str(tmp_path / 'of_keras'))
  for weights, values in ((path, expected), (trained, checkpoint), (exported, checkpoint),
                          (trained / 'model.ckpt-1', checkpoint),
                          (tmp_path / 'of_keras', expected)):
    found = load(weights, __name__ + ':with_inner_model', num_classes=4)
    message, = [text for text in caplog.messages if 'start from random weights' in text]
    assert ' has weights for 2 of 3 layers; ' in message
    assert message.endswith(' not in the file: head')  # Which alone is random.
    caplog.clear()
    for name, value in found.items():
      if name.startswith('head/'):
        assert value.shape != values[name].shape and np.abs(value).max() < 2, name
      else:
        assert_array_equal(value, values[name], err_msg=name)
  assert load(tmp_path / 'of_keras').keys() == expected.keys()
  assert 'random weights' not in caplog.text  # All of them fit.


def numbered(image_shape, num_classes):
  """Its layer `dense_1` has the name and the shapes of one of `narrow`."""
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Flatten(input_shape=image_shape), layers.Dense(9),
                              layers.Dense(8), layers.BatchNormalization(),
                              layers.Dense(num_classes, 'softmax')])


def narrow(image_shape, num_classes):
  layers = tf.keras.layers
  return tf.keras.Sequential([layers.Flatten(input_shape=image_shape),
                              *map(layers.Dense, (9, 8, 7, num_classes))])


def test_layers_that_match_by_chance(tmp_path, caplog):
  """Keras numbers the layers of each model: the names mean nothing if few of them match."""
  caplog.set_level('INFO', 'estimator_train')
  with keras_session():
    numbered((7, 7, 1), 10).save_weights(str(tmp_path / 'numbered.h5'))
  with pytest.raises(UserError, match='only 1 of 4 layers have the name and the shapes of a saved '
                                      'layer, perhaps by chance, .*: dense_1'):
    load(tmp_path / 'numbered.h5', __name__ + ':narrow', shape=(28, 28, 1))
  load(tmp_path / 'numbered.h5', __name__ + ':narrow', shape=(7, 7, 1))  # Two of four.
  assert 'has weights for 2 of 4 layers' in caplog.text


def test_weights_of_a_run_that_is_training(trained, tmp_path, monkeypatch):
  """The latest checkpoint is deleted before it is read; its list has paths of another folder."""
  run = tmp_path / 'run'
  shutil.copytree(str(trained), str(run))
  text = 'model_checkpoint_path: "/elsewhere/model.ckpt-{}"\n'
  (run / 'checkpoint').write_text(text.format(0))
  open_files = pinned_files.pin_files

  def save_and_pin(path):
    for old in run.glob('model.ckpt-0.*'):
      old.unlink()
      (run / 'checkpoint').write_text(text.format(1))
    return open_files(path)

  monkeypatch.setattr(pinned_files, 'pin_files', save_and_pin)
  found, expected = load(run), training_runs.weights(trained, 1)
  assert all(np.array_equal(value, expected[name]) for name, value in found.items())


def test_published_weights_without_the_head(monkeypatch, tmp_path, capsys, caplog):
  """A file, and ImageNet weights, for which Keras looks in its cache before the network."""
  path, shape = str(tmp_path / 'notop.h5'), (32, 32, 3)
  with keras_session():
    backbone = tf.keras.applications.VGG16(input_shape=shape, weights=None, include_top=False)
    backbone.save_weights(path)
    expected = backbone.get_weights()
  with monkeypatch.context() as patch:
    patch.setattr(keras_utils, 'get_file', lambda name, origin, **rest: (
        path if 'vgg16' in name and 'notop' in name else None))
    for weights in (path, 'imagenet'):
      *found, kernel, _ = load(weights, 'vgg16', 4, shape).values()
      assert np.abs(kernel).max() > 0 and len(found) == len(expected)
      assert all(map(np.array_equal, found, expected))
    assert 'ImageNet' not in caplog.text
    load('imagenet', 'vgg16', 4, shape, preprocess='unit')
    assert ('--preprocess=unit, but the ImageNet weights of vgg16 were trained with --preprocess='
            'caffe') in caplog.text
  for name, value in (('KERAS_HOME', str(tmp_path)), ('HOME', str(tmp_path)),
                      ('https_proxy', 'http://127.0.0.1:9')):  # Nobody listens there.
    monkeypatch.setenv(name, value)
  capsys.readouterr()
  with pytest.raises(UserError, match='cannot be downloaded: --weights=imagenet .*: give '
                                      '--weights=PATH of .* or --weights=none'):
    load('imagenet', 'vgg16', 4, shape)
  assert capsys.readouterr().out == '' and list(tmp_path.rglob('*.h5')) == [tmp_path / 'notop.h5']


def run_code(inputs, path):
  """What an evil layer does; Keras stores the code itself."""
  import os
  os.makedirs(path, exist_ok=True)
  return inputs


def test_code_in_a_file_of_weights_does_not_run(tmp_path):
  evil, pwned = str(tmp_path / 'evil.h5'), tmp_path / 'pwned'
  with keras_session():
    model = own_models.two_layers(SHAPE, 10)
    model.add(tf.keras.layers.Lambda(run_code, arguments={'path': str(pwned)}))
    model.save(evil)
    expected = model.get_weights()
  pwned.rmdir()
  assert all(map(np.array_equal, load(evil, 'own_models:two_layers').values(), expected))
  assert not pwned.exists()


def lead_by_view(group, name, elsewhere):
  layout = h5py.VirtualLayout((10,), np.float32)
  layout[...] = h5py.VirtualSource(elsewhere, 'secret', (10,))
  group.create_virtual_dataset(name, layout)


@pytest.mark.parametrize('lead', [
    lambda group, name, elsewhere: group.create_dataset(
        name, (10,), np.float32, external=[(elsewhere, 0, h5py.h5f.UNLIMITED)]),
    lambda group, name, elsewhere: group.update({name: h5py.ExternalLink(elsewhere, '/secret')}),
    lead_by_view], ids=['to a raw file', 'to an HDF5 file', 'to a view'])
def test_weights_that_would_be_read_from_another_file(h5, tmp_path, lead):
  """They would be in checkpoints, and so in what the user hands on."""
  path, elsewhere = shutil.copy(str(h5[0]), str(tmp_path)), str(tmp_path / 'elsewhere')
  with h5py.File(elsewhere, 'w') as other:  # Its bytes serve as the raw ones, too.
    other['secret'] = np.full(10, 7, np.float32)
  with h5py.File(path, 'r+') as file:
    del file['head/head/bias:0']
    lead(file['head/head'], 'bias:0', elsewhere)
  with pytest.raises(UserError, match='must not refer to other files: --weights=' + path):
    load(path)
