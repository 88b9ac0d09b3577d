"""The best checkpoint, and the end of training that evaluations ask for."""

import json
from pathlib import Path

import pytest
from mode_runs import QUICK, evaluated_steps, fails

from estimator_train.training.evaluation import Evaluator

COMMON = [*QUICK, '--optimizer=sgd', '--distribution_strategy=off']
ACCURACY = {2: .3, 4: .5, 6: .5, 8: .4, 10: .6, 12: .2}


@pytest.fixture
def train(run_well, monkeypatch, tmp_path):
  """Trains with evaluations every two steps that find the accuracies above."""
  of = Evaluator.evaluate

  def evaluate(self, path):
    counted, samples = of(self, path)
    return dict(counted, accuracy=ACCURACY[counted['global_step']]), samples

  def run(steps, *arguments):
    with monkeypatch.context() as patch:
      patch.setattr(Evaluator, 'evaluate', evaluate)
      return run_well('--model_dir', tmp_path, '--train_steps={}'.format(steps),
                      '--eval_every_steps=2', *COMMON, *arguments)

  return run


def test_the_best_over_restarts(train, run_well, run_program, tmp_path):
  done = train(6, '--keep_checkpoint_max=1')
  assert done.result['best']['global_step'] == 4
  done = train(8, '--keep_checkpoint_max=1')
  best = done.result['best']
  assert best['global_step'] == 4 and best['accuracy'] == .5 and done.result['global_step'] == 8
  assert [path.name for path in tmp_path.glob('model.ckpt-*.index')] == ['model.ckpt-8.index']

  def evaluate(run, folder, checkpoint, *arguments):
    return run('--mode=evaluate', '--checkpoint={}'.format(checkpoint), '--model_dir',
               tmp_path / folder, *COMMON, *arguments)

  done = evaluate(run_well, '', 'best')
  assert done.result['global_step'] == 4 and done.result['checkpoint'] == best['checkpoint']
  assert done.result['average_loss'] == best['average_loss']
  written, run = (json.loads((folder / 'evaluation.json').read_text()) for folder in (
      Path(done.result['evaluation_dir']), tmp_path))
  assert written['global_step'] == 4 and written['checkpoint'] == best['checkpoint']
  assert run['global_step'] == 8

  # A path does as well, in another folder than the evaluation's.
  by_path = evaluate(run_well, 'other', tmp_path / 'model.ckpt-8.index')
  assert by_path.result['checkpoint'] == str(tmp_path / 'model.ckpt-8')
  assert by_path.result['global_step'] == 8
  assert by_path.result['average_loss'] != done.result['average_loss']
  # The path of the best checkpoint leads to the class names and the flags of its run.
  for argument, error in (('--labels=a,b,c,d,e,f,g,h,i,j', 'trained with other class names'),
                          ('--preprocess=tf', 'was trained with --preprocess=unit')):
    assert fails(evaluate(run_program, 'third', best['checkpoint'], argument), error)


def test_early_stopping_over_restarts(train):
  rules = ['--early_stopping_steps=4']
  assert 'stopped_early' not in train(6, *rules).result
  done = train(12, *rules)
  assert done.result['stopped_early'] == 'no improvement in accuracy for 4 steps'
  assert done.result['global_step'] == 8 and done.result['steps_run'] == 2
  assert evaluated_steps(done) == [8] and done.result['accuracy'] == .4

  again = train(12, *rules)
  assert again.result['steps_run'] == 0
  assert again.result['stopped_early'] == 'no improvement in accuracy for 4 steps'
  assert 'was stopped at step 8 (no improvement in accuracy for 4 steps); to continue' in again.err
  assert 'nothing to train: ' in again.err

  longer = train(12, '--early_stopping_steps=6')
  assert longer.result['global_step'] == 12 and 'stopped_early' not in longer.result
  assert longer.result['best']['global_step'] == 10 and evaluated_steps(longer) == [10, 12]


def test_stop_at_accuracy(train, tmp_path):
  done = train(12, '--stop_at_accuracy=0.5')
  assert done.result['global_step'] == 4 and evaluated_steps(done) == [2, 4]
  assert done.result['stopped_early'] == 'accuracy 0.5000 reaches 0.5'
  assert (tmp_path / 'model.h5').is_file() and (tmp_path / 'throughput.json').is_file()
  assert train(12, '--stop_at_accuracy=0.5').result['steps_run'] == 0
