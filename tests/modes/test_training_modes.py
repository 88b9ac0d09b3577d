"""`train_and_evaluate`, `train` and `evaluate`, end to end, by what they leave behind."""

import json
import os
import traceback

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT

from estimator_train import flags
from estimator_train.datasets import fashion_mnist_sample, registry
from estimator_train.datasets.description import IdxSplit
from estimator_train.inputs import factory

THROUGHPUT_KEYS = {
    'examples_per_sec', 'examples_per_sec_per_replica', 'step_secs', 'session_run_secs',
    'wall_secs', 'steps_timed', 'warmup_steps', 'time_to_first_step_secs', 'global_batch_size',
    'per_replica_batch_size', 'num_replicas', 'num_workers', 'global_step', 'dataset', 'model',
    'distribution_strategy', 'devices', 'tensorflow_version'}
EVALUATION_KEYS = {'accuracy', 'average_loss', 'examples', 'per_class', 'confusion_matrix',
                   'global_step', 'checkpoint'}


def read(folder, name):
  return json.loads((folder / name).read_text())


@pytest.fixture
def arguments(tmp_path):
  return ['--model_dir={}'.format(tmp_path), '--batch_size=32', '--log_every_steps=5',
          '--model=own_models:two_layers']


def test_train_and_evaluate(run_program, arguments, tmp_path):
  done = run_program('--train_steps=12', '--throughput_warmup_steps=4', *arguments)
  assert done.code == 0, done.err
  throughput = read(tmp_path, 'throughput.json')
  assert set(throughput) >= THROUGHPUT_KEYS
  assert set(throughput['step_secs']) == set(throughput['session_run_secs']) == {
      'mean', 'p50', 'p90', 'p99', 'max'}
  assert throughput['steps_timed'] == 8 and throughput['warmup_steps'] == 4
  assert throughput['examples_per_sec'] == pytest.approx(8 * 32 / throughput['wall_secs'])
  assert throughput['session_run_secs']['mean'] <= throughput['step_secs']['mean']
  assert throughput['global_step'] == 12 and throughput['dataset'] == 'fashion_mnist_sample'

  evaluation = read(tmp_path, 'evaluation.json')
  assert set(evaluation) >= EVALUATION_KEYS
  assert evaluation['examples'] == 1000 == sum(map(sum, evaluation['confusion_matrix']))
  correct = sum(evaluation['confusion_matrix'][index][index] for index in range(10))
  assert evaluation['accuracy'] == pytest.approx(correct / 1000)
  assert [figures['support'] for figures in evaluation['per_class'].values()] == [100] * 10
  labels = (tmp_path / 'labels.txt').read_text().splitlines()
  assert list(evaluation['per_class']) == labels and labels[0] == 'T-shirt/top'
  assert evaluation['checkpoint'] == tf.train.latest_checkpoint(str(tmp_path))

  flagfile = '--flagfile={}'.format(tmp_path / 'flags.txt')
  assert flags.parse([flagfile]) == flags.parse(
      ['--train_steps=12', '--throughput_warmup_steps=4'] + arguments)
  assert done.result['accuracy'] == evaluation['accuracy']
  assert done.result['examples_per_sec'] == throughput['examples_per_sec']
  assert done.result['global_step'] == 12 and done.result['mode'] == 'train_and_evaluate'
  assert not list(tmp_path.glob('*.part'))


def test_resume_continues_the_global_step_and_the_data(run_program, arguments, tmp_path):
  straight, halved = tmp_path / 'straight', tmp_path / 'halved'
  common = arguments[1:] + ['--mode=train', '--optimizer=sgd', '--learning_rate=0.1']
  assert run_program('--model_dir', straight, '--train_steps=6', *common).code == 0
  assert run_program('--model_dir', halved, '--train_steps=3', *common).code == 0
  done = run_program('--model_dir', halved, '--train_steps=6', *common)
  assert done.result['global_step'] == 6 and done.result['steps_run'] == 3
  assert 'resuming from step 3' in done.err
  for name in ('dense/kernel', 'dense_1/bias'):
    values = [tf.train.load_variable(str(folder), name) for folder in (straight, halved)]
    assert abs(values[0] - values[1]).max() < 1e-6, name


def test_resume_with_other_batch_sizes_goes_on_with_the_next_example(run_program, tmp_path):
  """90 examples in batches of 10, 30 and 10; an epoch of 6,000 takes another 5,910."""
  common = ['--mode=train', '--model=own_models:two_layers', '--model_dir={}'.format(tmp_path)]
  for steps, batch_size, seen in ((3, 10, 30), (4, 30, 60), (7, 10, 90)):
    done = run_program('--train_steps={}'.format(steps), '--batch_size={}'.format(batch_size),
                       *common)
    assert done.code == 0 and done.result['examples_seen'] == seen, done.err
    assert read(tmp_path, 'throughput.json')['examples_seen'] == seen
  done = run_program('--train_epochs=1', '--batch_size=591', *common)
  assert 'resuming from step 7, 90 examples' in done.err
  assert done.result['global_step'] == 17 and done.result['examples_seen'] == 6000
  again = run_program('--train_epochs=1', '--batch_size=10', *common)
  assert again.result['steps_run'] == 0 and again.result['examples_seen'] == 6000


@pytest.mark.parametrize('content', [None, '', '[[0, 1', '[[0, -1]]', 'folder'])
def test_resume_without_the_record_of_the_batch_sizes(run_program, tmp_path, content):
  """The flags of the run before tell what the steps so far took, and this is recorded."""
  common = ['--mode=train', '--model=own_models:two_layers', '--model_dir={}'.format(tmp_path)]
  assert run_program('--train_steps=3', '--batch_size=10', *common).code == 0
  record = tmp_path / 'batch_sizes.json'
  record.unlink()
  if content == 'folder':
    record.mkdir()
  elif content is not None:
    record.write_text(content)
  done = run_program('--train_steps=4', '--batch_size=30', *common)
  assert done.code == 0 and done.result['examples_seen'] == 60, done.err
  assert 'batch_sizes.json cannot be used' in done.err or (
      'lacks batch_sizes.json of its checkpoint of step 3' in done.err)
  assert record.read_text() == '[[0, 10], [3, 30]]\n'


@pytest.mark.parametrize('name', ['flags.txt', 'labels.txt'])
def test_resume_without_the_flags_or_the_class_names(run_program, arguments, tmp_path, name):
  assert run_program('--mode=train', '--train_steps=2', *arguments).code == 0
  (tmp_path / name).unlink()
  done = run_program('--mode=train', '--train_steps=3', *arguments)
  assert done.code == 0 and 'lacks {} of its checkpoint'.format(name) in done.err


def test_a_finished_run_says_so_and_evaluates(run_program, arguments, tmp_path):
  first = run_program('--train_steps=3', *arguments)
  throughput = (tmp_path / 'throughput.json').read_text()
  again = run_program('--train_steps=3', *arguments)
  assert again.code == 0
  assert 'nothing to train: {} is at step 3 of 3'.format(tmp_path) in again.err
  assert again.result['steps_run'] == 0
  assert again.result['accuracy'] == first.result['accuracy']
  assert (tmp_path / 'throughput.json').read_text() == throughput


def test_a_checkpoint_past_the_last_step_is_not_step_3_of_2(run_program, arguments, tmp_path):
  assert run_program('--mode=train', '--train_steps=3', *arguments).code == 0
  again = run_program('--mode=train', '--train_steps=2', *arguments)
  assert again.code == 0, again.err
  assert 'nothing to train: {} is at step 3, past --train_steps=2\n'.format(tmp_path) in again.err
  assert again.result['steps_run'] == 0 and again.result['global_step'] == 3


def test_train_then_evaluate(run_program, arguments, tmp_path):
  trained = run_program('--mode=train', '--train_steps=2', *arguments)
  assert trained.code == 0 and 'accuracy' not in trained.result
  assert not trained.result['steady_state'] and 'no steady state' in trained.err
  assert read(tmp_path, 'throughput.json')['steps_timed'] == 2
  assert not (tmp_path / 'evaluation.json').exists()
  recorded = (tmp_path / 'flags.txt').read_text()

  losses = set()
  for batch_size in (1000, 999, 7):
    done = run_program('--mode=evaluate', *arguments + ['--batch_size={}'.format(batch_size)])
    assert done.code == 0, done.err
    evaluation = read(tmp_path, 'evaluation.json')
    assert evaluation['examples'] == 1000 and evaluation['global_step'] == 2
    losses.add(evaluation['average_loss'])
  assert max(losses) - min(losses) < 1e-6
  assert (tmp_path / 'flags.txt').read_text() == recorded


def test_strategies_train_alike(run_program, arguments, tmp_path):
  losses = []
  for number, (strategy, replicas) in enumerate((('off', 1), ('one_device', 1), ('mirrored', 2))):
    folder = tmp_path / str(number)
    done = run_program(
        '--mode=train', '--train_steps=4', '--optimizer=sgd', '--learning_rate=0.1',
        '--model_dir', folder, '--distribution_strategy', strategy,
        '--num_cpu_replicas={}'.format(replicas), *arguments[1:])
    assert done.code == 0, done.err
    throughput = read(folder, 'throughput.json')
    assert throughput['num_replicas'] == len(throughput['devices']) == replicas
    assert throughput['per_replica_batch_size'] == 32 // replicas
    losses.append(done.result['train_loss'])
  # The fourth step's loss depends on the three updates before it.
  assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def test_evaluates_every_so_many_steps(run_program, arguments):
  done = run_program('--train_steps=7', '--eval_every_steps=3', *arguments)
  assert done.code == 0
  evaluated = [line.rpartition(' ')[2] for line in done.err.splitlines()
               if line.startswith('accuracy')]
  assert evaluated == ['3', '6', '7']


def test_pauses_are_told(run_program, arguments, tmp_path):
  """The first checkpoint and the last, and the last evaluation, are outside of the timed span."""
  done = run_program('--train_steps=7', '--eval_every_steps=3', '--throughput_warmup_steps=1',
                     *arguments)
  assert done.code == 0
  figures = read(tmp_path, 'throughput.json')
  pauses = figures['pauses']
  assert {what: of_kind['count'] for what, of_kind in pauses.items()} == {
      'checkpoint': 2, 'evaluation': 2}
  paused = sum(of_kind['secs'] for of_kind in pauses.values())
  assert pauses['checkpoint']['secs'] > 0 and paused < figures['wall_secs']
  assert figures['steady_examples_per_sec'] == pytest.approx(
      6 * 32 / (figures['wall_secs'] - paused))
  assert '2 checkpoint(s) of' in done.err and '2 evaluation(s) of' in done.err


def test_synthetic(run_program, arguments):
  done = run_program('--dataset=synthetic', '--image_size=20,24', '--train_steps=2', *arguments)
  assert done.code == 0 and done.result['examples'] == 320


@pytest.fixture
def trained(run_program, arguments):
  assert run_program('--mode=train', '--train_steps=1', *arguments).code == 0


def fails(done, message):
  assert done.code == 2 and done.out == ''
  last = done.err.splitlines()[-1]
  assert last.startswith('error: ') and message in last
  return True


def test_another_optimizers_checkpoint(run_program, arguments, trained, tmp_path):
  recorded = (tmp_path / 'flags.txt').read_text()
  assert fails(run_program('--train_steps=2', '--optimizer=momentum', *arguments),
               'was trained with --optimizer=adam, not --optimizer=momentum')
  assert (tmp_path / 'flags.txt').read_text() == recorded


def test_another_models_checkpoint(run_program, arguments, tmp_path):
  assert run_program('--mode=train', '--train_steps=1', '--dataset=synthetic', *arguments).code == 0
  flagfile = tmp_path / 'flags.txt'
  flagfile.write_text(flagfile.read_text().replace('--model=own_models:two_layers',
                                                   '--model=mnist_deep'))
  done = run_program('--train_steps=2', '--dataset=synthetic', '--image_size=32,32', *arguments)
  assert fails(done, 'at step 1 was trained with --model=mnist_deep, not '
                     '--model=own_models:two_layers (dense/kernel is [784, 32] in the checkpoint '
                     'and [1024, 32] in the model)')


@pytest.mark.parametrize('extra, message', [
    (['--num_cpu_replicas=3'], '--batch_size=32 for 3 replicas: use 30 or 33'),
    (['--num_gpus=64'], '--num_gpus=64, and '),
    (['--dataset=synthetic', '--train_epochs=1'], 'an infinite data set has no epochs'),
    (['--dataset=synthetic', '--model=fashion_cnn', '--image_size=5,5', '--train_steps=1'],
     'larger --image_size'),
    (['--dataset=fashion_mnist'], '--data_dir is required'),
])
def test_wrong_together_with_the_machine_or_the_data(run_program, arguments, extra, message,
                                                     tmp_path):
  length = [] if 'train_' in ' '.join(extra) else ['--train_steps=1']
  assert fails(run_program(*(arguments + length + extra)), message)
  assert not (tmp_path / 'flags.txt').exists()


def test_another_data_sets_labels(run_program, arguments, trained):
  assert fails(run_program('--train_steps=2', '--dataset=synthetic', *arguments),
               'trained with other class names: T-shirt/top,Trouser')


def test_model_dir_that_cannot_be(run_program, tmp_path):
  (tmp_path / 'file').write_text('')
  done = run_program('--train_steps=1', '--model_dir', tmp_path / 'file' / 'below')
  assert fails(done, '--model_dir cannot be written to: {}'.format(tmp_path / 'file' / 'below'))


def test_nothing_to_evaluate(run_program, tmp_path):
  done = run_program('--mode=evaluate', '--model_dir', tmp_path / 'none')
  assert fails(done, 'there is no checkpoint in --model_dir')
  assert not (tmp_path / 'none').exists()


def test_wrong_data_is_named(run_program, arguments, write_idx, monkeypatch, tmp_path):
  images, labels = write_idx(np.zeros((9, 28, 28)), np.zeros(8))
  sample = fashion_mnist_sample.describe()
  monkeypatch.setattr(registry, 'describe', lambda *given: sample._replace(
      train=IdxSplit(images, labels)))
  assert fails(run_program('--train_steps=1', *arguments),
               '{} has 9 images, {} has 8 labels'.format(images, labels))
  assert not (tmp_path / 'flags.txt').exists()


def test_an_evaluation_that_loses_examples(run_program, arguments, trained, monkeypatch):
  whole = factory.make_eval_input_fn
  monkeypatch.setattr(factory, 'make_eval_input_fn',
                      lambda *given: lambda: whole(*given)().take(3))
  assert fails(run_program('--mode=evaluate', *arguments),
               'the evaluation did not read all examples: 96 of 1000')


@pytest.mark.slow
def test_the_quickstart_learns(run_program, tmp_path):
  """In a fifth of its epochs; scripts/check_quickstart trains them all."""
  done = run_program('--flagfile=estimator_train/configs/quickstart.flags',
                     '--model_dir={}'.format(tmp_path), '--train_epochs=2')
  assert done.code == 0 and done.result['accuracy'] >= 0.7


def test_goes_on_from_the_checkpoint_before_a_damaged_one(run_program, arguments, tmp_path):
  assert run_program('--mode=train', '--train_steps=4', '--save_checkpoints_steps=2',
                     *arguments).code == 0
  os.truncate(str(tmp_path / 'model.ckpt-4.index'), 10)
  done = run_program('--mode=train', '--train_steps=5', *arguments)
  assert done.code == 0, done.err
  assert 'skipping a checkpoint that cannot be loaded: {}/model.ckpt-4: '.format(
      tmp_path) in done.err
  assert 'resuming from step 2' in done.err and done.result['steps_run'] == 3
  for index in tmp_path.glob('model.ckpt-*.index'):
    os.truncate(str(index), 10)
  for mode in ('train', 'evaluate'):
    done = run_program('--mode=' + mode, '--train_steps=9', *arguments)
    assert done.code == 2 and done.err.startswith('error: no checkpoint in --model_dir can be')


def test_at_most_six_functions_between_the_program_and_the_estimator(run_program, arguments,
                                                                     monkeypatch):
  names = []

  def train(self, *unused_args, **unused_kwargs):
    names.extend(frame.name for frame in traceback.extract_stack()
                 if str(ROOT / 'estimator_train') in frame.filename)
    raise KeyboardInterrupt

  monkeypatch.setattr(tf.estimator.Estimator, 'train', train)
  assert run_program(*arguments, '--train_steps=3').code == 130
  assert len(names[names.index('main') + 1:]) <= 6, names
