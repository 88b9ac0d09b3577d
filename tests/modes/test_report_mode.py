"""The page that a run leaves, and `--mode=report`: that of any run, and comparisons of several."""

import json
import os
import pathlib
import re
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mode_runs import fails

from estimator_train.modes import report as report_mode
from estimator_train.reports import page


@pytest.mark.page
def test_training_and_evaluation_are_on_the_page(run_well, tmp_path, monkeypatch):
  arguments = ['--model=own_models:two_layers', '--batch_size=50', '--train_steps=8',
               '--throughput_warmup_steps=2', '--log_every_steps=2',
               '--model_dir={}'.format(tmp_path)]
  folder = tmp_path / 'report'
  run_well('--eval_every_steps=4', *arguments)
  text = (folder / 'index.html').read_text()
  for part in ('own_models:two_layers', 'Ankle boot', '--throughput_warmup_steps', 'bound'):
    assert part in text
  for name in ('loss', 'accuracy', 'step-time', 'step-histogram', 'confusion-matrix', 'sample-00'):
    assert (folder / (name + '.png')).exists(), name
  curves = json.loads((folder / 'curves.json').read_text())
  assert [step for step, _ in curves['eval_accuracy']] == [4, 8]
  assert len(curves['train_loss']) >= 3

  shutil.rmtree(str(folder))
  run_well('--noreport_page', *arguments)
  assert not (folder / 'index.html').exists()
  arguments.append('--report_page')  # Evaluations take the flags of the run.
  with monkeypatch.context() as patch:
    patch.setattr(page, 'write_page', mock.Mock(side_effect=OSError(28, 'No space left')))
    done = run_well('--mode=evaluate', *arguments)
  assert 'the report page could not be written: [Errno 28] No space left' in done.err
  run_well('--mode=evaluate', *arguments)
  text = (folder / 'index.html').read_text()
  assert 'onfusion matrix' in text and 'examples/sec' in text


@pytest.fixture(scope='module')
def keras_run(tmp_path_factory):
  """The model_dir of a Keras model that was trained without the program."""
  folder = tmp_path_factory.mktemp('runs') / 'keras'
  numbers = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)

  def make_input():
    return tf.data.Dataset.from_tensor_slices(
        ({'dense_input': numbers}, (numbers[:, :1] > 0).astype(np.int32))).repeat().batch(16)

  with tf.Graph().as_default():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, 'sigmoid', input_shape=[4])])
    model.compile('sgd', 'binary_crossentropy', ['accuracy'])
    config = tf.estimator.RunConfig(str(folder), save_summary_steps=5)
    estimator = tf.keras.estimator.model_to_estimator(model, config=config)
  estimator.train(make_input, steps=20)
  estimator.evaluate(make_input, steps=4, name='held_out')
  return folder


@pytest.fixture
def report(run_well, tmp_path):
  """Makes the page of some runs; returns the result and the text of the page."""
  def run(*runs, model_dir=tmp_path / 'out'):
    done = run_well('--mode=report', '--runs={}'.format(','.join(map(str, runs))),
                    '--model_dir={}'.format(model_dir))
    assert done.result['page'] == str(model_dir / 'report' / 'index.html')
    assert [run['folder'] for run in done.result['runs']] == list(map(str, runs))
    text = (model_dir / 'report' / 'index.html').read_text(encoding='utf-8')
    # Without its images and style.
    text = re.sub('base64,[^"]*', '', re.sub('<style>.*</style>', '', text, flags=re.DOTALL))
    assert not re.search(r'>\s*(None|nan)', text)
    return done.result['runs'], text

  return run


def test_one_run(report, keras_run, copied_run, tmp_path):
  (run,), text = report(keras_run)  # Whose tag of the training loss is `loss_1`.
  assert run['examples_per_sec'] is None and run['steps_per_sec'] > 0
  assert 0 <= run['accuracy'] <= 1 and 'steps/sec' in text and 'at step 20' in text
  # Each save of TensorFlow's summary hook, of which there are 4, may be a step early.
  assert re.search('"Line chart of the loss: training, .* to .* at step (1[3-9]|20); '
                   'evaluation, ', text)
  assert (tmp_path / 'out' / 'report' / 'loss.png').exists()
  assert '–' not in text  # What is unknown is left out.
  assert not (keras_run / 'report').exists()  # Only the output is written.
  _, text = report(copied_run, model_dir=copied_run)
  assert 'examples/sec' in text and '--train_steps=20' in text


def test_a_comparison(report, finished_run, copied_run, keras_run, tmp_path):
  """Runs with the same folder name are distinguished, and hostile names are text."""
  links = [tmp_path / name for name in ('a/run', 'b/run', '<script>alert(1)<_script>$x$')]
  for link, folder in zip(links, (finished_run, copied_run, keras_run)):
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(folder)
  figures = json.loads((copied_run / 'throughput.json').read_text())
  figures['examples_per_sec'] *= 1.5
  (copied_run / 'throughput.json').write_text(json.dumps(figures))
  found, text = report(*links)
  assert all(run['accuracy'] and run['average_loss'] > 0 for run in found[:2])
  assert re.search('<h1>Comparison of 3 runs on fashion_mnist_sample <small>a/run, b/run', text)
  assert 'Line chart of the loss: a/run,' in text
  for part in ('>a/run<', '>b/run<', '&lt;script&gt;', '1.00×', '1.50×', 'steps/sec'):
    assert part in text and '<script>' not in text
  assert {'rates.png', 'compared-loss.png'} <= set(os.listdir(str(tmp_path / 'out' / 'report')))


def test_the_table_marks_the_best_and_has_each_flag_once():
  empty = page.PageData(*[{} for _ in page.PageData._fields])
  runs = [page.ComparedRun(name, name, empty._replace(
      flags={'batch_size': str(batch_size), 'model': 'm'},
      throughput={'global_batch_size': batch_size, 'model': 'm', 'examples_per_sec': rate,
                  'step_secs': {'p50': .5}},
      evaluation=evaluation)) for name, batch_size, rate, evaluation in (
          ('a', 10, 100., {'accuracy': .5, 'average_loss': 2.}),
          ('b', 20, 150., {'accuracy': .75, 'average_loss': 3.}), ('c', 20, 50., {}))]
  rows = {row.title: (list(row.cells), row.are_best) for row in report_mode._make_table(runs)}
  assert rows == {
      'accuracy': (['50.0\u00a0%', '75.0\u00a0%', '–'], [False, True, False]),
      'average loss': (['2', '3', '–'], [True, False, False]),
      '--batch_size': (['10', '20', '20'], [False] * 3),
      'examples/sec': (['100', '150 (1.50×)', '50 (0.500×)'], [False, True, False]),
      'step, median': (['500\u00a0ms'] * 3, [False] * 3), 'model': (['m'] * 3, [False] * 3)}


@pytest.mark.parametrize('flags, digests, is_marked', [
    (['d', 'e'], [None, None], False), (['d', 'd'], [None, None], True),
    # The same data in two folders, and another seed of a held-out part.
    (['./f', './f/'], ['1', '1'], True), (['d', 'd'], ['1', '2'], False),
    (['d', 'e'], ['1', None], False)])
def test_results_with_other_examples_are_not_better(flags, digests, is_marked):
  empty = page.PageData(*[{} for _ in page.PageData._fields])
  runs = [page.ComparedRun(name, name, empty._replace(
      flags={'dataset': dataset}, throughput={'examples_per_sec': rate},
      evaluation={'accuracy': rate, 'examples_digest': digest}))
          for name, dataset, digest, rate in zip('ab', flags, digests, (.5, .75))]
  are_best = {row.title: any(row.are_best) for row in report_mode._make_table(runs)}
  assert are_best['accuracy'] == is_marked and are_best['examples/sec']


def test_the_patterns_of_a_folder_have_no_rows():
  """Nobody gave them, and the row of --dataset shows the difference."""
  empty = page.PageData(*[{} for _ in page.PageData._fields])
  flags = [{'dataset': './' + name, 'train_pattern': './{}/train'.format(name),
            'eval_pattern': None, 'validation_fraction': '0.2'} for name in 'ab']
  flags.append({'dataset': 'mnist', 'train_pattern': None, 'eval_pattern': None,
                'validation_fraction': None})

  def find_titles():
    runs = [page.ComparedRun('', '', empty._replace(flags=each)) for each in flags]
    return [row.title for row in report_mode._make_table(runs)]

  assert find_titles() == ['--dataset']
  flags[0]['train_pattern'] = 'c'
  assert find_titles() == ['--dataset', '--train_pattern']


def test_the_charts_show_the_best_of_many_runs(tmp_path):
  empty = page.PageData(*[{} for _ in page.PageData._fields])
  runs = [page.ComparedRun('run {}'.format(number), 'folder', empty._replace(
      throughput={'steps_per_sec': 1.}, curves={'train_loss': [(1, 2.), (2, 1.)]},
      evaluation={} if number == 0 else {'accuracy': number // 2 / 50, 'average_loss': 2. - number}
  )) for number in range(100)]
  text = pathlib.Path(page.write_comparison(runs, report_mode._make_table(runs), str(tmp_path))
                      ).read_text(encoding='utf-8')
  assert 'The 12 of 100 runs with the highest accuracy' in text and '<li>run 5: ' in text
  for numbers, chart in ((range(88, 100), 'Line chart of the loss: '),
                         (range(88, 100), 'Bar chart of the rates: ')):
    assert re.findall(r'run (\d+)', re.search(chart + '.*?"', text).group()) == [
        str(number) for number in numbers]


def test_wrong_runs(run_program, keras_run, finished_run, tmp_path):
  for arguments, message in (
      (['--mode=report', '--runs=/nothing/here'], '--runs must be existing folders: /nothing/here'),
      (['--mode=report', '--runs={}'.format(tmp_path)],
       'has neither throughput.json nor event files with a loss'),
      (['--mode=report', '--runs={},{}'.format(keras_run, finished_run),
        '--model_dir={}/.'.format(finished_run)],
       '--model_dir must not be one of the compared runs')):
    assert fails(run_program('--model_dir={}'.format(tmp_path / 'out'), *arguments), message)
