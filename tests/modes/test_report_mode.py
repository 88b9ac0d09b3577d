"""`--mode=report`: the page of any run, and the comparison of several runs."""

import json
import os
import re

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from test_training_modes import fails

import estimator_train


def shown(folder):
  """Returns the text of a report page, without its images and style."""
  text = (folder / 'report' / 'index.html').read_text(encoding='utf-8')
  text = re.sub('base64,[^"]*', '', re.sub('<style>.*</style>', '', text, flags=re.DOTALL))
  assert not re.search(r'>\s*(None|nan)', text)
  return text


def train_keras(folder):
  """Trains the Estimator of a Keras model, without any file of this package."""
  with tf.Graph().as_default():
    tf.keras.backend.set_session(None)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile('sgd', 'mse', metrics=['mae'])
    estimator = tf.keras.estimator.model_to_estimator(
        model, config=tf.estimator.RunConfig(model_dir=str(folder), save_summary_steps=2))
    tf.keras.backend.set_session(None)
  numbers = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
  estimator.train(lambda: tf.data.Dataset.from_tensor_slices(
      (numbers, numbers[:, :1])).repeat().batch(16), steps=10)


def train_canned(folder, *hooks):
  numbers = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
  classes = (numbers[:, 0] > 0).astype(np.int32)

  def make_input():
    return tf.data.Dataset.from_tensor_slices(({'x': numbers}, classes)).repeat().batch(16)

  estimator = tf.estimator.DNNClassifier(
      [8], [tf.feature_column.numeric_column('x', shape=4)], model_dir=str(folder),
      config=tf.estimator.RunConfig(save_summary_steps=5))
  estimator.train(make_input, steps=20, hooks=hooks)
  estimator.evaluate(make_input, steps=4, name='held_out')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Three runs: of a plain Estimator, of one with TimeHistory, and of this program."""
  base = tmp_path_factory.mktemp('runs')
  train_canned(base / 'plain')
  train_canned(base / 'timed', estimator_train.TimeHistory(
      batch_size=16, report_dir=base / 'timed', warmup_steps=2))
  estimator_train.train(estimator_train.Settings(
      dataset='synthetic', image_size=[8, 8], batch_size=4, model=own_models.two_layers,
      model_dir=base / 'program', train_steps=12, report_page=False))
  return base


def test_a_plain_estimator(run_program, folders, tmp_path):
  done = run_program('--mode=report', '--runs={}'.format(folders / 'plain'),
                     '--model_dir={}'.format(tmp_path))
  assert done.code == 0, done.err
  run, = done.result['runs']
  assert done.result['page'] == str(tmp_path / 'report' / 'index.html')
  assert run['examples_per_sec'] is None and run['steps_per_sec'] > 0
  assert 0 <= run['accuracy'] <= 1 and run['average_loss'] > 0
  text = shown(tmp_path)
  assert 'steps/sec' in text and 'at step 20' in text
  assert (tmp_path / 'report' / 'loss.png').exists()
  assert not os.path.exists(str(folders / 'plain' / 'report'))  # Only the output is written.


def test_the_estimator_of_a_keras_model(run_program, tmp_path):
  train_keras(tmp_path / 'keras')  # It logs the loss as `loss_1`.
  done = run_program('--mode=report', '--runs={}'.format(tmp_path / 'keras'),
                     '--model_dir={}'.format(tmp_path / 'out'))
  assert done.code == 0, done.err
  assert done.result['runs'][0]['steps_per_sec'] > 0
  assert (tmp_path / 'out' / 'report' / 'loss.png').exists()
  assert '–' not in shown(tmp_path / 'out')  # What is unknown is left out.


def test_a_comparison_does_not_replace_the_page_of_a_run(run_program, folders):
  fails(run_program('--mode=report', '--runs={0}/plain,{0}/timed'.format(folders),
                    '--model_dir={}/timed/.'.format(folders)),
        '--model_dir must not be one of the compared runs')


def test_a_run_of_the_program(run_program, folders):
  done = run_program('--mode=report', '--runs={}'.format(folders / 'program'),
                     '--model_dir={}'.format(folders / 'program'))
  assert done.code == 0, done.err
  text = shown(folders / 'program')
  assert 'examples/sec' in text and '--train_steps=12' in text


def test_a_comparison(run_program, folders, tmp_path):
  runs = [folders / name for name in ('program', 'timed', 'plain')]
  done = run_program('--mode=report', '--runs={}'.format(','.join(map(str, runs))),
                     '--model_dir={}'.format(tmp_path))
  assert done.code == 0, done.err
  assert [run['folder'] for run in done.result['runs']] == list(map(str, runs))
  text = shown(tmp_path)
  assert '<h1>Comparison of 3 runs</h1>' in text
  for name in ('program', 'timed', 'plain', 'synthetic', '1.00×', 'steps/sec'):
    assert name in text or name == 'synthetic'
  rates = [json.loads((folder / 'throughput.json').read_text())['examples_per_sec']
           for folder in runs[:2]]
  assert '{:.2f}×'.format(rates[1] / rates[0]) in text
  assert (tmp_path / 'report' / 'rates.png').exists()
  assert (tmp_path / 'report' / 'compared-loss.png').exists()


def test_names_of_runs_with_the_same_last_part(run_program, folders, tmp_path):
  for name in ('a', 'b'):
    (tmp_path / name).mkdir()
    os.symlink(str(folders / 'timed'), str(tmp_path / name / 'run'))
  done = run_program('--mode=report', '--runs={0}/a/run,{0}/b/run'.format(tmp_path),
                     '--model_dir={}'.format(tmp_path / 'out'))
  assert done.code == 0, done.err
  assert '>a/run<' in shown(tmp_path / 'out') and '>b/run<' in shown(tmp_path / 'out')


def test_hostile_names_are_text(run_program, folders, tmp_path):
  name = '<script>alert(1)</script>$x$'.replace('/', '_')
  os.symlink(str(folders / 'timed'), str(tmp_path / name))
  done = run_program('--mode=report', '--runs={},{}'.format(folders / 'plain', tmp_path / name),
                     '--model_dir={}'.format(tmp_path / 'out'))
  assert done.code == 0, done.err
  assert '<script>' not in shown(tmp_path / 'out') and '&lt;script&gt;' in shown(tmp_path / 'out')


@pytest.mark.parametrize('arguments, message', [
    (['--mode=report'], '--mode=report requires --runs'),
    (['--mode=report', '--runs=/nothing/here'], '--runs must be existing folders: /nothing/here'),
    (['--mode=report', '--runs={tmp}'], 'has neither throughput.json nor event files with a loss'),
    (['--mode=train', '--train_steps=1', '--runs=x'], '--runs is only for --mode=report'),
])
def test_wrong_runs(run_program, tmp_path, arguments, message):
  fails(run_program(*[argument.format(tmp=tmp_path) for argument in arguments],
                    '--model_dir={}'.format(tmp_path / 'out')), message)
