"""`train_and_evaluate`, `train` and `evaluate`, end to end, by what they leave behind."""

import json
import os
import shutil
from unittest import mock

import numpy as np
import own_models
import pytest
import tensorflow.compat.v1 as tf
from conftest import contents_of
from mode_runs import evaluated_steps, fails

from estimator_train.data.binary_files import IdxSource
from estimator_train.model.evaluation_metrics import classifier_metric_names
from estimator_train.settings import Settings, command_line
from estimator_train.training.preparation import (
  count_parameters,
  has_convolutions,
  log_parameters,
)

MODEL = '--model=own_models:two_layers'


def read(folder, name):
  return json.loads((folder / name).read_text())


@pytest.fixture
def arguments(tmp_path):
  return ['--model_dir={}'.format(tmp_path), '--batch_size=32', '--log_every_steps=5', MODEL]


@pytest.fixture
def copied(copied_run):
  """The flags of a copy of the finished run."""
  return ['--model_dir={}'.format(copied_run), '--batch_size=50', MODEL]


def test_train_and_evaluate(run_well, arguments, tmp_path):
  """The first checkpoint and the last, and the last evaluation, are outside of the timed span."""
  arguments += ['--train_steps=12', '--throughput_warmup_steps=4', '--eval_every_steps=5']
  done = run_well(*arguments)
  assert evaluated_steps(done) == [5, 10, 12]
  throughput = read(tmp_path, 'throughput.json')
  expected = {
      'steps_timed': 8, 'warmup_steps': 4, 'global_step': 12, 'global_batch_size': 32,
      'per_replica_batch_size': 32, 'num_replicas': 1, 'num_workers': 1, 'devices': ['/cpu:0'],
      'dataset': 'fashion_mnist_sample', 'model': 'own_models:two_layers',
      'distribution_strategy': 'mirrored', 'tensorflow_version': tf.version.VERSION}
  assert {key: throughput[key] for key in expected} == expected
  assert throughput['examples_per_sec'] == pytest.approx(8 * 32 / throughput['wall_secs'])
  assert throughput['session_run_secs']['mean'] <= throughput['step_secs']['mean']
  pauses = throughput['pauses']
  assert {what: of_kind['count'] for what, of_kind in pauses.items()} == {
      'checkpoint': 2, 'evaluation': 2}
  assert 0 < sum(of_kind['secs'] for of_kind in pauses.values()) < throughput['wall_secs']

  evaluation = read(tmp_path, 'evaluation.json')
  labels = (tmp_path / 'labels.txt').read_text().splitlines()
  assert labels[0] == 'T-shirt/top'
  assert {label: figures['support'] for label, figures in evaluation['per_class'].items()} == (
      dict.fromkeys(labels, 100))
  assert evaluation['examples'] == 1000 == np.sum(evaluation['confusion_matrix'])
  assert evaluation['accuracy'] == pytest.approx(np.trace(evaluation['confusion_matrix']) / 1000)
  assert {key for key, value in evaluation.items() if isinstance(value, float)} == set(
      classifier_metric_names(10))
  assert evaluation['global_step'] == 12
  assert evaluation['checkpoint'] == tf.train.latest_checkpoint(str(tmp_path))
  assert command_line.parse(['--flagfile={}'.format(tmp_path / 'flags.txt')]) == (
      command_line.parse(arguments))
  for name, value in (('mode', 'train_and_evaluate'), ('global_step', 12),
                      ('accuracy', evaluation['accuracy']),
                      ('examples_per_sec', throughput['examples_per_sec'])):
    assert done.result[name] == value


def test_train_then_evaluate(run_well, copied, copied_run, finished_run):
  trained = run_well('--mode=train', '--train_steps=22', '--num_cpu_replicas=2', *copied)
  assert 'accuracy' not in trained.result
  assert not trained.result['steady_state'] and 'no steady state' in trained.err
  throughput = read(copied_run, 'throughput.json')
  assert throughput['steps_timed'] == 2 and throughput['per_replica_batch_size'] == 25
  assert throughput['num_replicas'] == len(throughput['devices']) == 2
  # What an earlier step scored is left alone.
  assert read(copied_run, 'evaluation.json') == read(finished_run, 'evaluation.json')
  recorded = (copied_run / 'flags.txt').read_text()
  results = [run_well('--mode=evaluate', *copied, '--batch_size={}'.format(batch_size),
                      '--num_cpu_replicas={}'.format(replicas)).result
             for batch_size, replicas in ((1000, 1), (999, 3), (7, 1))]
  assert 'warning: --input has no effect in --mode=evaluate; to evaluate on other examples' in (
      run_well('--mode=evaluate', *copied, '--input=images').err)
  for result in results:
    assert (result['examples'], result['global_step']) == (1000, 22)
    assert result['accuracy'] == results[0]['accuracy']
    assert result['average_loss'] == pytest.approx(results[0]['average_loss'], abs=1e-6)
  assert (copied_run / 'flags.txt').read_text() == recorded


def test_resume_with_other_batch_sizes_continues_with_the_next_example(run_well, tmp_path):
  """60 examples in batches of 10 and 30; an epoch of 6,000 takes another 5,940."""
  common = ['--mode=train', MODEL, '--model_dir={}'.format(tmp_path)]
  for steps, batch_size, seen in ((3, 10, 30), (4, 30, 60)):
    done = run_well('--train_steps={}'.format(steps), '--batch_size={}'.format(batch_size),
                    *common)
    assert done.result['examples_seen'] == seen
    assert read(tmp_path, 'throughput.json')['examples_seen'] == seen
  done = run_well('--train_epochs=1', '--batch_size=594', *common)
  assert 'resuming from step 4, 60 examples' in done.err
  assert done.result['global_step'] == 14 and done.result['examples_seen'] == 6000
  assert read(tmp_path / 'report', 'curves.json')['epoch'] == [
      [0, 0.], [3, .005], [4, .01], [14, 1.]]
  figures = read(tmp_path, 'throughput.json')
  assert figures['start_step'] == 4 and figures['total_run_secs'] > 2 * figures['run_secs'] > 0
  again = run_well('--train_epochs=1', '--batch_size=10', *common)
  assert again.result['steps_run'] == 0 and again.result['examples_seen'] == 6000


@pytest.mark.parametrize('name', ['flags.txt', 'labels.txt', 'batch_sizes.json'])
def test_resume_without_a_record(run_well, copied, copied_run, name):
  """The steps so far are those of the flags of the run before, and this is recorded.

  tests/system/test_storage.py has damaged records.
  """
  (copied_run / name).unlink()
  done = run_well('--mode=train', '--train_steps=21', *copied, '--batch_size=30')
  assert 'lacks {} of its checkpoint of step 20'.format(name) in done.err
  assert done.result['examples_seen'] == 1030
  assert (copied_run / 'batch_sizes.json').read_text() == '[[0, 50], [20, 30]]\n'


def test_a_finished_run_is_evaluated(run_well, copied, copied_run):
  evaluation, throughput = (read(copied_run, name) for name in ('evaluation.json',
                                                                'throughput.json'))
  again = run_well('--train_steps=20', *copied)
  assert again.result['steps_run'] == 0
  assert 'nothing to train: {} is at step 20 of 20'.format(copied_run) in again.err
  assert again.result['accuracy'] == evaluation['accuracy']
  assert read(copied_run, 'throughput.json') == throughput
  recorded = (copied_run / 'flags.txt').read_text()
  again = run_well('--mode=train', '--train_steps=2', *copied)
  assert again.result['global_step'] == 20
  assert ('nothing to train: {} has already trained for 20 steps, and --train_steps counts from '
          'the start of the run: give --train_steps=22 for 2 more\n').format(
              copied_run) in again.err
  assert (copied_run / 'flags.txt').read_text() == recorded, 'those of the training'


def test_epochs_count_from_the_start_of_the_run(run_well, tmp_path):
  common = ['--mode=train', MODEL, '--batch_size=3000', '--lr_schedule=cosine',
            '--model_dir={}'.format(tmp_path)]
  run_well('--train_epochs=3', *common)
  recorded = (tmp_path / 'flags.txt').read_text()
  again = run_well('--train_epochs=2', *common)
  assert again.result['steps_run'] == 0 and 'decaying' not in again.err
  assert ('nothing to train: {} has already trained for 3 epochs (step 6), and --train_epochs '
          'counts from the start of the run: give --train_epochs=5 for 2 more\n').format(
              tmp_path) in again.err
  assert (tmp_path / 'flags.txt').read_text() == recorded


def test_resume_from_the_checkpoint_before_a_damaged_one(run_well, run_program, copied,
                                                         copied_run):
  os.truncate(str(copied_run / 'model.ckpt-20.index'), 10)
  done = run_well('--mode=train', '--train_steps=12', *copied)
  assert 'resuming from step 10' in done.err and done.result['steps_run'] == 2
  for index in copied_run.glob('model.ckpt-*.index'):
    os.truncate(str(index), 10)
  for mode in ('train', 'evaluate'):
    done = run_program('--mode=' + mode, '--train_steps=30', *copied)
    assert fails(done, 'error: no checkpoint in --model_dir can be')


def test_what_is_refused(run_program, copied, copied_run, tmp_path):
  """What does not fit the run in model_dir, the machine or the data, before any work."""
  shutil.rmtree(str(copied_run / 'best'))
  (tmp_path / 'file').write_text('')
  before = contents_of(copied_run)
  for extra, message in (
      ('--optimizer=momentum', 'was trained with --optimizer=adam, not --optimizer=momentum'),
      ('--model=own_models:with_dropout', '(dense/bias is [32] in the checkpoint and [16] in th'),
      ('--num_cpu_replicas=3', '--batch_size=50 for 3 replicas: use 48 or 51'),
      ('--mode=lr_finder --model=own_models:compiled_with_sgd',
       'a compiled model trains with its own learning rate: --mode=lr_finder --model='),
      ('--dataset=synthetic --model=fashion_cnn --image_size=5,5 --model_dir={0}/none',
       'larger --image_size'),
      ('--model_dir={0}/file/below', '--model_dir cannot be written to: {0}/file/below'),
      ('--model_dir={0}/new --export_dir={0}/file', '--export_dir cannot be written to: {0}/file'),
      ('--mode=evaluate --model_dir={0}/none', 'no checkpoint in --model_dir: {0}/none: train fi'),
      ('--mode=evaluate --model_dir={1}2/', 'in --model_dir: {1}2/: did you mean {1}?'),
      ('--mode=evaluate --checkpoint=best', 'or give one of {1}/model.ckpt-0, {1}/model.ckpt'),
      ('--mode=evaluate --checkpoint=bestt',
       'no such checkpoint: --checkpoint=bestt: give latest or best, or one of {1}/model.ckpt-0'),
      ('--mode=evaluate --checkpoint={1}/model.ckpt-7',
       '-7: give latest or best, or one of {1}/model.ckpt-0'),
      ('--mode=evaluate --model_dir={0}/other --model=own_models:with_dropout '
       '--checkpoint={1}/model.ckpt-10', 'the checkpoint does not fit --model: '),
      ('--mode=export --export_dir={0}/exports --dataset=synthetic --labels=a,b,c',
       'trained with other class names: T-shirt/top,'),
      ('--mode=export --export_dir={0}/exports --model=own_models:partly_frozen',
       'was trained with --model=own_models:two_layers, not'),
      ('--mode=export --export_dir={0}/exports --export_format=h5 --export_input=pictures',
       'an .h5 file contains no preprocessing: --export_format=h5 --export_input=')):
    done = run_program('--train_steps=30', *copied, *extra.format(tmp_path, copied_run).split())
    assert fails(done, message.format(tmp_path, copied_run))
  assert contents_of(copied_run) == before and not (tmp_path / 'none').exists()
  assert not list(tmp_path.glob('exports/*')) and not list(tmp_path.glob('new/model.ckpt-*'))


def test_an_evaluation_that_loses_examples(run_program, copied, monkeypatch):
  whole = IdxSource.make_eval_input_fn
  monkeypatch.setattr(IdxSource, 'make_eval_input_fn',
                      lambda *given: lambda: whole(*given)().take(3))
  assert fails(run_program('--mode=evaluate', *copied),
               'the evaluation did not read all examples: 75 of 1000')


def test_hooks(run_well, run_program, arguments, tmp_path, monkeypatch):
  hook = mock.Mock(spec=tf.train.SessionRunHook, **{'before_run.return_value': None})
  monkeypatch.setattr(own_models, 'hooks', lambda settings: [hook], raising=False)
  monkeypatch.setattr(own_models, 'no_list', lambda: hook, raising=False)
  run_well(*arguments, '--train_steps=3', '--mode=train', '--hooks=own_models:hooks')
  assert hook.after_run.call_count == 3
  hook.after_run.side_effect = lambda *given: tmp_path.read_bytes()
  for function, message in (
      ('own_models:hooks', ': IsADirectoryError: [Errno 21] Is a directory: '),
      ('own_models:no_list', 'the function of --hooks must return a list of SessionRunHooks: --h'),
      ('own_models', ': give package.module:function')):
    assert fails(run_program(*arguments, '--train_steps=5', '--mode=train', '--hooks=' + function),
                 message)


def test_young_averages_of_batch_normalization(run_well, tmp_path):
  for name, warns in (('large_activations', True), ('large_activations_with_low_momentum', False)):
    done = run_well('--model=own_models:' + name, '--model_dir={}'.format(tmp_path / name),
                    '--batch_size=64', '--train_steps=20', '--learning_rate=0.1')
    assert ('batch normalization still contain 82% of their initial values after 20 steps'
            in done.err) == warns


@pytest.mark.parametrize('name, weights, checkpoint, warns', [
    ('vgg16', 'none', None, True), ('vgg16', 'imagenet', None, False),
    ('vgg16', 'none', 'model.ckpt-1', False), ('own_models:partly_frozen', 'none', None, False)])
def test_parameters(own_graph, caplog, name, weights, checkpoint, warns):
  """Only a network of the package is known to be frozen with random weights."""
  caplog.set_level('INFO')
  run = mock.Mock(settings=Settings(model=name, weights=weights, model_dir='x', train_steps=1))
  run.start.checkpoint = checkpoint
  log_parameters(run, count_parameters(own_models.partly_frozen((28, 28, 1), 10)))
  line, *warnings = caplog.messages
  assert line == '15,866 parameters, 1,738 of them trained, 12,560 in frozen layers, 63.5 kB'
  assert [text.startswith('12,560 of 15,866 parameters are frozen with random weights: give')
          for text in warnings] == [True] * warns


def test_models_with_convolutions():
  layers = tf.keras.layers
  with tf.Graph().as_default():
    images = layers.Input([8, 8, 1])
    dense = tf.keras.Sequential([layers.InputLayer([8, 8, 1]), layers.Flatten(), layers.Dense(2)])
    outer = tf.keras.Model(images, tf.keras.Sequential([layers.DepthwiseConv2D(3)])(images))
    assert [has_convolutions(model) for model in (dense, outer)] == [False, True]
