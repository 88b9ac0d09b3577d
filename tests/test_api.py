"""The package as users call it from Python: from scripts, notebooks and threads."""

import concurrent.futures
import json
import os
import signal
import sys
import types

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, process_state
from PIL import Image

import estimator_train
from estimator_train import Settings, UserError

QUICK = {'dataset': 'synthetic', 'image_size': [8, 8], 'batch_size': 4, 'report_page': False,
         'model': own_models.two_layers, 'mode': 'train'}


def data():
  images = np.arange(40 * 16).reshape(40, 4, 4, 1).astype(np.uint8)
  split = estimator_train.ArraySplit(images, np.arange(40) % 2)
  return estimator_train.DataSet('mine', ('a', 'b'), (4, 4, 1), split, split)


def test_as_in_a_notebook(tmp_path, monkeypatch):
  """Functions of `__main__`, arguments of the kernel, several calls, and calls in a thread."""
  monkeypatch.setattr(sys, 'argv', ['ipykernel_launcher.py', '-f', '/root/kernel-1.json'])
  notebook = types.ModuleType('__main__')
  monkeypatch.setitem(sys.modules, '__main__', notebook)
  for function in (own_models.two_layers, data):
    monkeypatch.setattr(function, '__module__', '__main__')
    setattr(notebook, function.__name__, function)

  def settings(name, **values):
    return Settings(model=own_models.two_layers, dataset=data, batch_size=4, report_page=False,
                    model_dir=str(tmp_path / name), **values)

  before = process_state()
  first = estimator_train.train(settings('one', train_steps=3))
  assert first['steps_run'] == 3 and first['examples'] == 40
  assert estimator_train.train(settings('two', train_steps=2))['steps_run'] == 2
  resumed = estimator_train.train(settings('one', train_steps=5, mode='evaluate'))
  assert [resumed[key] for key in ('steps_run', 'global_step', 'mode')] == [
      2, 5, 'train_and_evaluate']
  evaluated = estimator_train.evaluate(settings('one', train_steps=5))
  assert evaluated['examples'] == 40 and evaluated['mode'] == 'evaluate'
  with concurrent.futures.ThreadPoolExecutor() as executor:
    result = executor.submit(estimator_train.train, settings('three', train_steps=2)).result()
  assert result['global_step'] == 2
  with pytest.raises(UserError, match='no checkpoint in model_dir: .*absent: train first, or give'):
    estimator_train.evaluate(settings('absent'))
  assert process_state() == before
  assert '\n--model=__main__:two_layers\n' in (tmp_path / 'one' / 'flags.txt').read_text()


def test_public_names_are_documented():
  pages = ''.join(path.read_text(encoding='utf-8') for path in (ROOT / 'docs').glob('*.md'))
  reference = (ROOT / 'docs' / 'reference' / 'api.md').read_text(encoding='utf-8')
  for name in estimator_train.__all__:
    assert getattr(estimator_train, name).__doc__
    assert '::: estimator_train.' + name in reference
    assert name in pages


USERS_KERAS = ('float64', .25, 'channels_first')


@pytest.fixture
def users_keras():
  """Changes Keras's settings as a script or keras.json does; returns a function that reads them."""
  backend = tf.keras.backend
  setters = backend.set_floatx, backend.set_epsilon, backend.set_image_data_format
  getters = backend.floatx, backend.epsilon, backend.image_data_format

  def read():
    return tuple(getter() for getter in getters)

  before = read()
  for setter, value in zip(setters, USERS_KERAS):
    setter(value)
  yield read
  for setter, value in zip(setters, before):
    setter(value)


def with_epsilon(image_shape, num_classes):
  """A model whose layers and outputs depend on each of Keras's settings."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(4, 3, input_shape=image_shape), layers.MaxPooling2D(), layers.Flatten(),
      layers.Lambda(lambda x: x + tf.keras.backend.epsilon()), layers.Dense(num_classes)])


def fails(image_shape, num_classes):
  raise KeyError(image_shape, num_classes)


def use_all_functions(folder):
  """Returns the results of the functions of the package, but convert."""
  values = dict(QUICK, model=with_epsilon, dataset=data, image_size=None, train_steps=2,
                optimizer='rmsprop', labels=['a', 'b'])
  settings = Settings(model_dir=folder / 'run', export_dir=folder / 'export', **values)
  trained = estimator_train.train(settings)
  evaluated = estimator_train.evaluate(settings)
  Image.fromarray(np.full([4, 4], 50, np.uint8)).save(str(folder / 'one.png'))
  predicted = list(estimator_train.predict(settings.evolve(input=str(folder / '*.png'))))
  exported = estimator_train.export(settings)
  with pytest.raises(UserError, match='the function of model failed: .*KeyError'):
    estimator_train.train(settings.evolve(model=fails, model_dir=str(folder / 'none')))
  return trained['train_loss'], evaluated['average_loss'], predicted[0]['probability'], exported


def test_settings_of_keras(tmp_path, users_keras):
  """The functions neither depend on the user's settings nor change them."""
  (tmp_path / 'users').mkdir()
  *found, _ = use_all_functions(tmp_path / 'users')
  assert users_keras() == USERS_KERAS
  for setter, value in (('floatx', 'float32'), ('epsilon', 1e-7),
                        ('image_data_format', 'channels_last')):
    getattr(tf.keras.backend, 'set_' + setter)(value)
  (tmp_path / 'default').mkdir()
  *expected, _ = use_all_functions(tmp_path / 'default')
  assert found == expected


def test_convert_uses_the_settings_of_keras(tmp_path, users_keras, own_graph):
  """The model is the user's: here of float64, and with another epsilon."""
  layers = tf.keras.layers
  model = tf.keras.Sequential([
      layers.Lambda(lambda x: x + tf.keras.backend.epsilon(), input_shape=(3,)), layers.Dense(1)])
  model.compile('sgd', 'mse')
  estimator = estimator_train.convert(model, model_dir=str(tmp_path))
  examples = np.ones([4, 3]), np.ones([4, 1])

  def input_fn():
    return tf.data.Dataset.from_tensor_slices(examples).batch(2)

  estimator.train(input_fn, steps=2)
  estimator.evaluate(input_fn)
  assert users_keras() == USERS_KERAS
  kernel, bias = (tf.train.load_variable(str(tmp_path), 'dense/' + name)
                  for name in ('kernel', 'bias'))
  assert kernel.dtype == bias.dtype == np.float64
  predicted = next(estimator.predict(input_fn))['dense']
  np.testing.assert_allclose(predicted, 1.25 * kernel.sum(0) + bias, rtol=1e-12)


class Interrupt(tf.train.SessionRunHook):

  def after_run(self, run_context, run_values):
    os.kill(os.getpid(), signal.SIGINT)


def interrupt():
  return [Interrupt()]


def test_interrupting_saves_and_raises(tmp_path):
  before = signal.getsignal(signal.SIGINT)
  with pytest.raises(estimator_train.StoppedBySignal, match='stopped by SIGINT at step 1, whose'):
    estimator_train.train(Settings(model_dir=tmp_path, train_steps=9, hooks=interrupt, **QUICK))
  assert signal.getsignal(signal.SIGINT) is before
  assert tf.train.load_variable(str(tmp_path), 'global_step') == 1


def test_tf_config(tmp_path, monkeypatch):
  settings = Settings(model_dir=tmp_path, train_steps=1,
                      distribution_strategy='multi_worker_mirrored', **QUICK)
  cluster, task = {'worker': ['localhost:2222']}, {'type': 'worker', 'index': 0}
  for more in ({}, {'evaluator': ['localhost:2224']}):
    config = json.dumps({'cluster': dict(cluster, **more), 'task': task})
    monkeypatch.setenv('TF_CONFIG', config)
    assert estimator_train.train(settings)['global_step'] == 1
    assert os.environ['TF_CONFIG'] == config
  cluster['worker'].append('localhost:2223')
  monkeypatch.setenv('TF_CONFIG', json.dumps({'cluster': cluster, 'task': task}))
  with pytest.raises(UserError, match='of several tasks: TF_CONFIG has 2 worker: run python'):
    estimator_train.train(settings)


def test_a_text_is_split_as_on_the_command_line():
  settings = Settings(dataset='synthetic', labels='a,"b, c"', runs='runs/a', model_dir='x')
  assert (settings.labels, settings.runs) == (('a', 'b, c'), ('runs/a',))


def test_settings_of_the_wrong_type():
  for values, message in (
      ({'model': lambda: None}, 'must be importable by its name: <function '),
      ({'dataset': own_models.Hang().apply}, 'must be importable by its name: <bound method'),
      ({'train_steps': '10'}, "train_steps has the wrong type: train_steps='10': give an integer"),
      ({'train_steps': -1}, 'train_steps is out of range: train_steps=-1: give an integer from 1 '),
      ({'batch_size': True}, 'batch_size=True: give an integer$'),
      ({'report_page': 1}, 'report_page=1: give True or False$'),
      ({'learning_rate': 'fast'}, "learning_rate='fast': give a number$"),
      ({'image_size': 64.}, 'image_size=64.0: give a tuple of 2 or 3 integers or None$'),
      ({'image_size': (8., 8)}, r'image_size=[(]8[.]0, 8[)]: give a tuple of 2 or 3 integers or'),
      ({'labels': 3}, 'labels=3: give a tuple of strings$'),
      ({'labels': ['a', 1]}, r"labels=[(]'a', 1[)]: give a tuple of strings$"),
      ({'lr_values': 3}, 'lr_values=3: give a tuple of numbers$'),
      ({'model': 1}, 'model=1: give a string$')):
    with pytest.raises(ValueError, match=message):
      Settings(**dict({'model_dir': 'x', 'train_steps': 1}, **values))
  with pytest.raises(TypeError, match='unknown keyword: train_stepps: did you mean train_steps'):
    Settings(train_stepps=1)


def test_xla_of_a_call_does_not_outlast_it(tmp_path, monkeypatch):
  monkeypatch.setenv('TF_XLA_FLAGS', '--tf_xla_min_cluster_size=2')
  estimator_train.train(Settings(model_dir=tmp_path, train_steps=1, enable_xla=True, **QUICK))
  assert os.environ['TF_XLA_FLAGS'] == '--tf_xla_min_cluster_size=2'
