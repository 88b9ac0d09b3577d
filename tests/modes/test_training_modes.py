"""`train_and_evaluate`, `train` and `evaluate`, end to end, by what they leave behind."""

import json
import os
import shutil
import threading
import types

import pytest
import tensorflow.compat.v1 as tf
from mode_runs import evaluated_steps, fails

from estimator_train.data.binary_files import IdxSource
from estimator_train.settings import Settings, command_line
from estimator_train.training.evaluation_metrics import classifier_metric_names
from estimator_train.training.model import count_parameters, log_parameters

THROUGHPUT_KEYS = {
    'examples_per_sec', 'examples_per_sec_per_replica', 'step_secs', 'session_run_secs',
    'wall_secs', 'steps_timed', 'warmup_steps', 'time_to_first_step_secs', 'global_batch_size',
    'per_replica_batch_size', 'num_replicas', 'num_workers', 'global_step', 'dataset', 'model',
    'distribution_strategy', 'devices', 'tensorflow_version'}
EVALUATION_KEYS = {'accuracy', 'average_loss', 'examples', 'per_class', 'confusion_matrix',
                   'global_step', 'checkpoint'}
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
  assert set(throughput) >= THROUGHPUT_KEYS
  assert set(throughput['step_secs']) == set(throughput['session_run_secs']) == {
      'mean', 'p50', 'p90', 'p99', 'max'}
  assert throughput['steps_timed'] == 8 and throughput['warmup_steps'] == 4
  assert throughput['examples_per_sec'] == pytest.approx(8 * 32 / throughput['wall_secs'])
  assert throughput['session_run_secs']['mean'] <= throughput['step_secs']['mean']
  pauses = throughput['pauses']
  assert {what: of_kind['count'] for what, of_kind in pauses.items()} == {
      'checkpoint': 2, 'evaluation': 2}
  paused = sum(of_kind['secs'] for of_kind in pauses.values())
  assert pauses['checkpoint']['secs'] > 0 and paused < throughput['wall_secs']
  assert throughput['steady_examples_per_sec'] == pytest.approx(
      8 * 32 / (throughput['wall_secs'] - paused))

  evaluation = read(tmp_path, 'evaluation.json')
  assert set(evaluation) >= EVALUATION_KEYS
  assert evaluation['examples'] == 1000 == sum(map(sum, evaluation['confusion_matrix']))
  correct = sum(evaluation['confusion_matrix'][index][index] for index in range(10))
  assert evaluation['accuracy'] == pytest.approx(correct / 1000)
  assert [figures['support'] for figures in evaluation['per_class'].values()] == [100] * 10
  assert {key for key, value in evaluation.items() if isinstance(value, float)} == set(
      classifier_metric_names(10))
  labels = (tmp_path / 'labels.txt').read_text().splitlines()
  assert list(evaluation['per_class']) == labels and labels[0] == 'T-shirt/top'
  assert evaluation['checkpoint'] == tf.train.latest_checkpoint(str(tmp_path))
  assert command_line.parse(['--flagfile={}'.format(tmp_path / 'flags.txt')]) == (
      command_line.parse(arguments))
  assert done.result['accuracy'] == evaluation['accuracy']
  assert done.result['examples_per_sec'] == throughput['examples_per_sec']
  assert done.result['global_step'] == 12 and done.result['mode'] == 'train_and_evaluate'


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
  found = set()
  for batch_size, replicas in ((1000, 1), (999, 3), (7, 1)):
    run_well('--mode=evaluate', *copied, '--batch_size={}'.format(batch_size),
             '--num_cpu_replicas={}'.format(replicas))
    evaluation = read(copied_run, 'evaluation.json')
    assert evaluation['examples'] == 1000 and evaluation['global_step'] == 22
    found.add((evaluation['accuracy'], evaluation['average_loss']))
  accuracies, losses = zip(*found)
  assert len(set(accuracies)) == 1 and max(losses) - min(losses) < 1e-6
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
  again = run_well('--mode=train', '--train_steps=2', *copied)
  assert again.result['global_step'] == 20
  assert 'nothing to train: {} is at step 20, past --train_steps=2\n'.format(
      copied_run) in again.err


def test_resume_from_the_checkpoint_before_a_damaged_one(run_well, run_program, copied,
                                                         copied_run):
  os.truncate(str(copied_run / 'model.ckpt-20.index'), 10)
  done = run_well('--mode=train', '--train_steps=12', *copied)
  assert 'skipping a checkpoint that cannot be loaded: {}/model.ckpt-20: '.format(
      copied_run) in done.err
  assert 'resuming from step 10' in done.err and done.result['steps_run'] == 2
  for index in copied_run.glob('model.ckpt-*.index'):
    os.truncate(str(index), 10)
  for mode in ('train', 'evaluate'):
    done = run_program('--mode=' + mode, '--train_steps=30', *copied)
    assert fails(done, 'error: no checkpoint in --model_dir can be')


def test_what_does_not_fit_the_model_dir(run_program, copied, copied_run):
  before = (copied_run / 'flags.txt').read_text()
  shutil.rmtree(str(copied_run / 'best'))
  for extra, message in (
      (['--optimizer=momentum'], 'was trained with --optimizer=adam, not --optimizer=momentum'),
      (['--dataset=synthetic'], 'trained with other class names: T-shirt/top,Trouser'),
      (['--model=own_models:with_dropout'], '(dense/bias is [32] in the checkpoint and [16] in th'),
      (['--mode=evaluate', '--checkpoint=best'], 'or give one of {0}/model.ckpt-0, {0}/model.ckpt'),
      (['--mode=evaluate', '--checkpoint={0}/model.ckpt-7'], '-7: give one of {0}/model.ckpt-0'),
      (['--mode=evaluate', '--model_dir={0}/other', '--model=own_models:with_dropout',
        '--checkpoint={0}/model.ckpt-10'], 'the checkpoint does not fit --model: ')):
    done = run_program('--train_steps=30', *copied,
                       *[argument.format(copied_run) for argument in extra])
    assert fails(done, message.format(copied_run))
  assert (copied_run / 'flags.txt').read_text() == before


def test_wrong_together_with_the_machine_or_the_data(run_program, arguments, tmp_path):
  (tmp_path / 'file').write_text('')
  for extra, message in (
      (['--train_steps=1', '--num_cpu_replicas=3'], '--batch_size=32 for 3 replicas: use 30 or 33'),
      (['--train_steps=1', '--num_gpus=64'], '--num_gpus=64, and '),
      (['--dataset=synthetic', '--train_epochs=1'], 'an infinite data set has no epochs'),
      (['--dataset=synthetic', '--model=fashion_cnn', '--image_size=5,5', '--train_steps=1'],
       'larger --image_size'),
      (['--train_steps=1', '--model_dir={}/file/below'],
       '--model_dir cannot be written to: {}/file/below'),
      (['--mode=evaluate', '--model_dir={}/none'], 'there is no checkpoint in --model_dir')):
    done = run_program(*arguments, *[argument.format(tmp_path) for argument in extra])
    assert fails(done, message.format(tmp_path))
  assert not (tmp_path / 'flags.txt').exists() and not (tmp_path / 'none').exists()


def test_an_evaluation_that_loses_examples(run_program, copied, monkeypatch):
  whole = IdxSource.make_eval_input_fn
  monkeypatch.setattr(IdxSource, 'make_eval_input_fn',
                      lambda *given: lambda: whole(*given)().take(3))
  assert fails(run_program('--mode=evaluate', *copied),
               'the evaluation did not read all examples: 75 of 1000')


class Logger(tf.train.SessionRunHook):
  """A hook of a user: appends the global step to a file, and fails if the file is a folder."""

  def __init__(self, path):
    self.path = path

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(tf.train.get_global_step())

  def after_run(self, run_context, run_values):
    with open(self.path, 'a') as file:
      file.write('{}\n'.format(run_values.results))


def loggers(settings):
  return [Logger(os.path.join(settings.run.model_dir, 'steps.txt'))]


def no_list():
  return Logger('')


def test_hooks(run_well, run_program, arguments, tmp_path):
  arguments += ['--train_steps=3', '--mode=train']
  run_well(*arguments, '--hooks={}:loggers'.format(__name__))
  assert len((tmp_path / 'steps.txt').read_text().split()) == 3
  (tmp_path / 'steps.txt').unlink()
  (tmp_path / 'steps.txt').mkdir()
  arguments[-2] = '--train_steps=5'  # Resumes.
  for function, message in (
      (':loggers', ': IsADirectoryError: [Errno 21] Is a directory: '),
      (':no_list', 'the function of --hooks must return a list of SessionRunHooks: --hooks='),
      (':missing', '--hooks names a function that does not exist'),
      ('', ': give package.module:function')):
    fails(run_program(*arguments, '--hooks={}{}'.format(__name__, function)), message)
    assert 'phase' not in {thread.name for thread in threading.enumerate()}


def test_young_averages_of_batch_normalization(run_well, tmp_path):
  for name, warns in (('large_activations', True), ('large_activations_with_low_momentum', False)):
    done = run_well('--model=own_models:' + name, '--model_dir={}'.format(tmp_path / name),
                    '--batch_size=64', '--train_steps=20', '--learning_rate=0.1')
    assert ('batch normalization still contain 82% of their initial values after 20 steps'
            in done.err) == warns


def test_parameters(caplog):
  """Only a network of the package is known to be frozen with random weights."""
  caplog.set_level('INFO')
  with tf.Graph().as_default():
    layers = [tf.keras.layers.Dense(3, input_shape=(4,), trainable=False),
              tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
    model = tf.keras.Sequential(layers)
    for name, weights, path, warns in (
        ('vgg16', 'none', None, True), ('vgg16', 'imagenet', None, False),
        ('vgg16', 'none', 'model.ckpt-1', False), ('a:b', 'none', None, False)):
      caplog.clear()
      start = types.SimpleNamespace(checkpoint=path)
      log_parameters(types.SimpleNamespace(
          settings=Settings(model=name, weights=weights, model_dir='x', train_steps=1),
          start=start), count_parameters(model))
      line, *warnings = caplog.messages
      assert line == '35 parameters, 14 of them trained, 15 in frozen layers, 0.0 MB'
      assert [text.startswith('0.0 of 0.0 million parameters are frozen with random weights: give')
              for text in warnings] == [True] * warns
