"""The best checkpoint, and the end of training that evaluations ask for."""

import json

import pytest

from estimator_train.training.evaluation.evaluator import Evaluator

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

COMMON = ['--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--optimizer=sgd',
          '--model=own_models:two_layers', '--distribution_strategy=off']
ACCURACY = {2: .3, 4: .5, 6: .5, 8: .4, 10: .6, 12: .2}


@pytest.fixture
def train(run_program, monkeypatch, tmp_path):
  """Trains with evaluations every two steps that find the accuracies above."""
  of = Evaluator.evaluate

  def made_up(self, path=None):
    counted, samples = of(self, path)
    return dict(counted, accuracy=ACCURACY[counted['global_step']]), samples

  def run(steps, *arguments):
    with monkeypatch.context() as patch:
      patch.setattr(Evaluator, 'evaluate', made_up)
      return run_program('--model_dir', tmp_path, '--train_steps={}'.format(steps),
                         '--eval_every_steps=2', *COMMON, *arguments)

  return run


def evaluated(done):
  return [int(line.rpartition(' ')[2]) for line in done.err.splitlines()
          if line.startswith('accuracy')]


def test_the_best_over_restarts(train, run_program, tmp_path):
  done = train(6, '--keep_checkpoint_max=1')
  assert done.code == 0 and done.result['best']['global_step'] == 4
  done = train(8, '--keep_checkpoint_max=1')
  best = done.result['best']
  assert best['global_step'] == 4 and best['accuracy'] == .5 and done.result['global_step'] == 8
  assert [path.name for path in tmp_path.glob('model.ckpt-*.index')] == ['model.ckpt-8.index']

  done = run_program('--mode=evaluate', '--checkpoint=best', '--model_dir', tmp_path, *COMMON)
  assert done.code == 0, done.err
  assert done.result['global_step'] == 4 and done.result['checkpoint'] == best['checkpoint']
  assert done.result['average_loss'] == best['average_loss']
  told = json.loads((tmp_path / 'evaluation.json').read_text())
  assert told['global_step'] == 4 and told['checkpoint'] == best['checkpoint']

  # A path does as well, in another folder than the evaluation's.
  by_path = run_program('--mode=evaluate', '--model_dir', tmp_path / 'other', *COMMON,
                        '--checkpoint={}.index'.format(tmp_path / 'model.ckpt-8'))
  assert by_path.code == 0, by_path.err
  assert by_path.result['checkpoint'] == str(tmp_path / 'model.ckpt-8')
  assert by_path.result['global_step'] == 8
  # The path of the best checkpoint leads to the class names and the flags of its run.
  for argument, error in (('--labels=a,b,c,d,e,f,g,h,i,j', 'trained with other class names'),
                          ('--preprocess=tf', 'was trained with --preprocess=unit')):
    refused = run_program('--mode=evaluate', '--model_dir', tmp_path / 'third', *COMMON, argument,
                          '--checkpoint={}'.format(best['checkpoint']))
    assert refused.code == 2 and error in refused.err
  assert by_path.result['average_loss'] != done.result['average_loss']


def test_early_stopping_over_restarts(train):
  rules = ['--early_stopping_steps=4']
  assert 'stopped_early' not in train(6, *rules).result
  done = train(12, *rules)
  assert done.code == 0, done.err
  assert done.result['stopped_early'] == 'no improvement in accuracy for 4 steps'
  assert done.result['global_step'] == 8 and done.result['steps_run'] == 2
  assert evaluated(done) == [8] and done.result['accuracy'] == .4

  again = train(12, *rules)
  assert again.code == 0 and again.result['steps_run'] == 0
  assert again.result['stopped_early'] == 'no improvement in accuracy for 4 steps'
  assert 'was stopped at step 8 (no improvement in accuracy for 4 steps); to continue' in again.err
  assert 'nothing to train: ' in again.err

  longer = train(12, '--early_stopping_steps=6')
  assert longer.result['global_step'] == 12 and 'stopped_early' not in longer.result
  assert longer.result['best']['global_step'] == 10 and evaluated(longer) == [10, 12]


def test_stop_at_accuracy(train, tmp_path):
  done = train(12, '--stop_at_accuracy=0.5')
  assert done.code == 0 and done.result['global_step'] == 4 and evaluated(done) == [2, 4]
  assert done.result['stopped_early'] == 'accuracy 0.5000 reaches 0.5'
  assert (tmp_path / 'model.h5').is_file() and (tmp_path / 'throughput.json').is_file()
  assert train(12, '--stop_at_accuracy=0.5').result['steps_run'] == 0


def test_an_evaluation_that_was_killed_is_made_up_for(train, monkeypatch):
  def interrupt(*given):
    raise KeyboardInterrupt

  assert train(2).code == 0
  with monkeypatch.context() as patch:
    patch.setattr('estimator_train.training.checkpoints.best_checkpoint.promote_if_better',
                  interrupt)
    assert train(6).code == 130
  done = train(6)
  assert done.code == 0 and evaluated(done) == [4, 6]
  assert done.result['best']['global_step'] == 4


def test_no_best(run_program, tmp_path):
  assert run_program('--mode=train', '--train_steps=1', '--model_dir', tmp_path, *COMMON).code == 0
  for name, message in (
      ('best', 'there is no best checkpoint: --checkpoint=best --model_dir={0}: train '
       'with --mode=train_and_evaluate and --eval_every_steps=N, or give one of '
       '{0}/model.ckpt-0, {0}/model.ckpt-1'),
      ('{0}/model.ckpt-7', 'there is no such checkpoint: --checkpoint={0}/model.ckpt-7: give one '
       'of {0}/model.ckpt-0, {0}/model.ckpt-1'),
      ('{0}/none/model.ckpt-7', 'give a checkpoint in another folder: there is none in {0}/none'),
      ('{0}', 'there is no such checkpoint: --checkpoint={0}: give one of {0}/model.ckpt-0')):
    done = run_program('--mode=evaluate', '--model_dir', tmp_path, *COMMON,
                       '--checkpoint=' + name.format(tmp_path))
    assert done.code == 2 and message.format(tmp_path) in done.err.splitlines()[-1], done.err


def test_a_checkpoint_of_another_model(run_program, tmp_path):
  assert run_program('--mode=train', '--train_steps=1', '--model_dir', tmp_path / 'one',
                     *COMMON).code == 0
  done = run_program('--mode=evaluate', '--model_dir', tmp_path / 'other', *COMMON,
                     '--image_size=9,9', '--checkpoint={}'.format(tmp_path / 'one/model.ckpt-1'))
  assert done.code == 2
  assert 'the checkpoint does not fit --model: ' in done.err.splitlines()[-1]


def test_an_evaluator_cannot_stop_the_others(run_program, tmp_path, monkeypatch):
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'worker': ['127.0.0.1:1', '127.0.0.1:2'], 'evaluator': ['127.0.0.1:3']},
      'task': {'type': 'worker', 'index': 0}}))
  done = run_program('--model_dir', tmp_path, '--train_steps=4', '--eval_every_steps=2', *COMMON,
                     '--distribution_strategy=multi_worker_mirrored', '--stop_at_accuracy=0.5')
  assert done.code == 2
  assert 'a task of type evaluator cannot stop the training' in done.err.splitlines()[-1]
