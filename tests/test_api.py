"""The package as users call it from Python: from scripts, notebooks and threads."""

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT

import estimator_train
from estimator_train import Settings, UserError

SECS = 300
QUICK = {'dataset': 'synthetic', 'image_size': [8, 8], 'batch_size': 4, 'report_page': False,
         'model': own_models.two_layers, 'mode': 'train'}

# What a notebook's kernel is like: an event loop that runs, arguments that are the kernel's, and
# cells that are executed in `__main__`.
KERNEL = '''
import asyncio, json, logging, os, signal, sys, threading, warnings
import numpy  # Has warnings filtered for good.
sys.argv = ['ipykernel_launcher.py', '-f', '/root/kernel-1.json']
folder, said = os.environ['FOLDER'], {}

def state():
  return repr([[signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
               logging.root.handlers, logging.root.level, warnings.filters, sys.argv,
               logging.getLogger('estimator_train').handlers, sorted(os.environ),
               hash(frozenset(os.environ.items()))])

async def run(cell):
  before = state()
  exec(compile(cell, '<cell>', 'exec'), globals())
  assert state() == before, (before, state())

CELLS = ["""
import numpy as np
import estimator_train
assert not [name for name in sys.modules if name.startswith(('tensorflow', 'absl'))]
def net(image_shape, num_classes):
  import tensorflow.compat.v1 as tf
  return tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=image_shape),
                              tf.keras.layers.Dense(num_classes)])
def data():
  images = np.arange(40 * 16).reshape(40, 4, 4, 1).astype(np.uint8)
  split = estimator_train.ArraySplit(images, np.arange(40) % 2)
  return estimator_train.DataSet('mine', ('a', 'b'), (4, 4, 1), split, split)
def settings(name, **values):
  return estimator_train.Settings(model=net, dataset=data, batch_size=4, report_page=False,
                                  model_dir=os.path.join(folder, name), **values)
""", """
first = estimator_train.train(settings('one', train_steps=3))
second = estimator_train.train(settings('two', train_steps=2))
said['runs'] = [first['steps_run'], second['steps_run'], first['examples']]
""", """
on = estimator_train.train(settings('one', train_steps=5))
said['went on'] = [on['steps_run'], on['global_step']]
said['evaluation'] = estimator_train.evaluate(settings('one', train_steps=5))['examples']
""", """
def in_a_thread():
  said['thread'] = estimator_train.train(settings('three', train_steps=2))['global_step']
thread = threading.Thread(target=in_a_thread)
thread.start()
thread.join()
""", """
again = settings('one', train_steps=6, mode='evaluate')
said['mode'] = estimator_train.train(again)['mode'], estimator_train.evaluate(again)['mode']
try:
  settings('one', train_steps=-1)
except ValueError as error:
  said['value'] = str(error)
try:
  settings('one', train_stepps=1)
except TypeError as error:
  said['keyword'] = str(error)
try:
  estimator_train.evaluate(settings('none'))
except estimator_train.UserError as error:
  said['no run'] = str(error).replace(folder, 'FOLDER')
"""]
async def main():
  for cell in CELLS:
    await run(cell)
asyncio.get_event_loop().run_until_complete(main())
print(json.dumps(said))
'''


def test_in_a_notebook(tmp_path):
  script = tmp_path / 'kernel.py'
  script.write_text(KERNEL)
  done = subprocess.run(
      [sys.executable, str(script)], cwd=str(tmp_path), timeout=SECS, universal_newlines=True,
      env=dict(os.environ, PYTHONPATH=str(ROOT), FOLDER=str(tmp_path)),
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout) == {
      'runs': [3, 2, 40], 'went on': [2, 5], 'evaluation': 40, 'thread': 2,
      'mode': ['train_and_evaluate', 'evaluate'],
      'value': 'train_steps is out of range: train_steps=-1: give an integer from 1 to 2147483647',
      'keyword': 'unknown keyword: train_stepps: did you mean train_steps or trace_steps or '
                 'train_epochs? help(estimator_train.Settings) lists all keywords',
      'no run': 'there is no checkpoint in model_dir: FOLDER/none: train first, or '
                'give the model_dir of a run with a checkpoint'}
  assert 'Traceback' not in done.stderr and 'deprecated' not in done.stderr, done.stderr
  assert '\n--model=__main__:net\n' in (tmp_path / 'one' / 'flags.txt').read_text()


def test_public_names_are_documented():
  pages = ''.join(path.read_text(encoding='utf-8') for path in (ROOT / 'docs').glob('*.md'))
  reference = (ROOT / 'docs' / 'reference' / 'api.md').read_text(encoding='utf-8')
  for name in estimator_train.__all__:
    assert getattr(estimator_train, name).__doc__
    assert '::: estimator_train.' + name in reference
    assert name in pages


def test_interrupting_saves_and_raises(tmp_path):
  class Interrupt(logging.Handler):
    def emit(self, record):
      if record.getMessage().startswith('step 3/'):
        os.kill(os.getpid(), signal.SIGINT)

  log, handler, before = logging.getLogger('estimator_train'), Interrupt(), signal.getsignal(2)
  log.addHandler(handler)
  log.setLevel(logging.INFO)
  try:
    with pytest.raises(estimator_train.StoppedBySignal, match='stopped by SIGINT at step [34], wh'):
      estimator_train.train(Settings(model_dir=tmp_path, train_steps=1000000, log_every_steps=1,
                                     **QUICK))
  finally:
    log.removeHandler(handler)
  assert signal.getsignal(signal.SIGINT) is before
  assert tf.train.load_variable(str(tmp_path), 'global_step') in (3, 4)


@pytest.mark.parametrize('members, is_refused', [(1, False), (2, True)])
def test_tf_config(tmp_path, monkeypatch, members, is_refused):
  config = json.dumps({
      'cluster': {'worker': ['localhost:{}'.format(port) for port in range(2222, 2222 + members)]},
      'task': {'type': 'worker', 'index': 0}})
  monkeypatch.setenv('TF_CONFIG', config)
  settings = Settings(model_dir=tmp_path, train_steps=1,
                      distribution_strategy='multi_worker_mirrored', **QUICK)
  if is_refused:
    with pytest.raises(UserError, match='of several tasks: TF_CONFIG has 2 worker: run python'):
      estimator_train.train(settings)
  else:
    assert estimator_train.train(settings)['global_step'] == 1
  assert os.environ['TF_CONFIG'] == config


def test_settings_take_what_python_has():
  settings = Settings(model=own_models.two_layers, model_dir=pathlib.Path('a') / 'b', labels=['x'],
                      image_size=[3, 4], learning_rate=1, train_steps=1, dataset='synthetic')
  assert settings.model == 'own_models:two_layers' and settings.model_dir == os.path.join('a', 'b')
  assert settings.labels == ('x',) and settings.image_size == (3, 4)


@pytest.mark.parametrize('values, message', [
    ({'model': lambda: None}, 'must be importable by its name: <function <lambda>'),
    ({'dataset': own_models.Hang().apply}, 'must be importable by its name: <bound method'),
    ({'train_steps': '10'}, "train_steps has the wrong type: train_steps='10': give an integer"),
    ({'train_steps': 1.5}, 'train_steps=1.5: give an integer or None$'),
    ({'batch_size': True}, 'batch_size=True: give an integer$'),
    ({'batch_size': None}, 'batch_size=None: give an integer$'),
    ({'report_page': 1}, 'report_page=1: give True or False$'),
    ({'learning_rate': 'fast'}, "learning_rate='fast': give a number$"),
    ({'image_size': '8,8'}, "image_size='8,8': give a tuple"),
    ({'labels': 'ab'}, "labels='ab': give a tuple$"),
    ({'model': 1}, 'model=1: give a string$'),
])
def test_settings_of_the_wrong_type(values, message):
  with pytest.raises(UserError, match=message):
    Settings(**dict({'model_dir': 'x', 'train_steps': 1}, **values))


def compiled(optimizer=None):
  """A model whose weights are its own: some are not trained, and one layer was set."""
  tf.set_random_seed(1)
  layers = tf.keras.layers
  model = tf.keras.Sequential([layers.Dense(8, activation='tanh', input_shape=(5,)),
                               layers.Dense(4, trainable=False),
                               layers.Dense(3, activation='softmax')])
  model.compile(optimizer or tf.train.GradientDescentOptimizer(0.1),
                'sparse_categorical_crossentropy', metrics=['accuracy'])
  model.layers[0].set_weights([value + .25 for value in model.layers[0].get_weights()])
  return model


def make_input_fn(batch_size):
  features = np.random.RandomState(1).uniform(size=(50, 5)).astype(np.float32)
  return lambda: tf.data.Dataset.from_tensor_slices(
      (features, np.arange(50) % 3)).repeat().batch(batch_size)


def test_converted_model_trains_alike_on_replicas(tmp_path):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.keras.backend.set_session(session)
    model = compiled()
    began = {weight.op.name: value for weight, value in zip(model.weights, model.get_weights())}
    reached = []
    for replicas in (1, 2):
      estimator = estimator_train.convert(model, model_dir=str(tmp_path / str(replicas)),
                                          num_cpu_replicas=replicas)
      assert isinstance(estimator, tf.estimator.Estimator)
      estimator.train(make_input_fn(12 // replicas), steps=3)
      reached.append({name: estimator.get_variable_value(name) for name in began})
    assert tf.keras.backend.get_session() is session
    tf.keras.backend.set_session(None)
    for name, value in zip(began, session.run(model.weights)):
      np.testing.assert_array_equal(value, began[name])  # The model is as it was.
  one, two = reached
  for name, value in one.items():
    np.testing.assert_allclose(two[name], value, atol=1e-6)
    is_frozen = name.startswith('dense_1/')
    assert np.array_equal(value, began[name]) == is_frozen, name
    assert np.abs(value - began[name]).max() < 0.2  # From there, not from other random weights.
  result = estimator.evaluate(
      lambda: make_input_fn(1)().unbatch().take(50).batch(20), name='whole')
  assert result['examples'] == 50 and result['confusion_matrix'].sum() == 50
  assert result['accuracy'] == result['confusion_matrix'].trace() / 50


def test_converted_model_goes_on_with_other_replicas(tmp_path):
  with tf.Graph().as_default():
    model = compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    for replicas in (2, 1):
      estimator = estimator_train.convert(model, model_dir=str(tmp_path), num_cpu_replicas=replicas)
      estimator.train(make_input_fn(12 // replicas), steps=2)
    tf.keras.backend.set_session(None)
  assert estimator.get_variable_value('global_step') == 4


def test_xla_of_a_call_does_not_outlast_it(tmp_path, monkeypatch):
  monkeypatch.setenv('TF_XLA_FLAGS', '--tf_xla_min_cluster_size=2')
  estimator_train.train(Settings(model_dir=tmp_path, train_steps=1, enable_xla=True, **QUICK))
  assert os.environ['TF_XLA_FLAGS'] == '--tf_xla_min_cluster_size=2'
