"""The best checkpoint, and the end of training that evaluations ask for."""

import json
from pathlib import Path
from unittest import mock

import h5py
import pytest
import tensorflow.compat.v1 as tf
from mode_runs import QUICK, evaluated_steps, fails
from PIL import Image

from estimator_train.exporting import h5_model
from estimator_train.reports import page
from estimator_train.training.evaluation import EvaluationLoop, Evaluator

# An epoch has 60 examples, so epochs end at steps 8, 15, 23 and 30.
EPOCHS = ['--dataset=own_models:tiny_images', '--batch_size=8', '--model=own_models:two_layers',
          '--optimizer=sgd', '--distribution_strategy=off', '--noreport_page']
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
  assert '--checkpoint' not in done.err
  assert done.result['best']['global_step'] == 6, 'the accuracy of step 4, with a lower loss'
  assert (tmp_path / 'best.h5').read_bytes() == (tmp_path / 'model.h5').read_bytes()
  done = train(8, '--keep_checkpoint_max=1')
  best = done.result['best']
  assert best['global_step'] == 6 and best['accuracy'] == .5 and done.result['global_step'] == 8
  predict = ' --mode=predict --model_dir={} --checkpoint=best --input=IMAGES\n'.format(tmp_path)
  assert predict in done.err
  assert [path.name for path in tmp_path.glob('model.ckpt-*.index')] == ['model.ckpt-8.index']
  kernels = [_read_kernel(tmp_path / name) for name in ('best.h5', 'model.h5')]
  reader = tf.train.load_checkpoint(best['checkpoint'])
  assert (kernels[0] == reader.get_tensor('dense/kernel')).all()
  assert (kernels[0] != kernels[1]).any()

  def evaluate(run, folder, checkpoint, *arguments):
    return run('--mode=evaluate', '--checkpoint={}'.format(checkpoint), '--model_dir',
               tmp_path / folder, *COMMON, *arguments)

  done = evaluate(run_well, '', 'best')
  assert predict in done.err
  assert done.result['global_step'] == 6 and done.result['checkpoint'] == best['checkpoint']
  assert done.result['average_loss'] == best['average_loss']
  written, run = (json.loads((folder / 'evaluation.json').read_text()) for folder in (
      Path(done.result['evaluation_dir']), tmp_path))
  assert written['global_step'] == 6 and written['checkpoint'] == best['checkpoint']
  assert run['global_step'] == 8
  Image.new('L', (8, 8)).save(str(tmp_path / 'a.png'))
  predicted = run_well('--mode=predict', '--checkpoint=best', '--model_dir', tmp_path, '--input',
                       tmp_path / 'a.png')
  assert ' --mode=export --model_dir={} --checkpoint=best\n'.format(tmp_path) in predicted.err

  # A path does as well, in another folder than the evaluation's.
  by_path = evaluate(run_well, 'other', tmp_path / 'model.ckpt-8.index')
  assert by_path.result['checkpoint'] == str(tmp_path / 'model.ckpt-8')
  assert by_path.result['global_step'] == 8
  assert by_path.result['average_loss'] != done.result['average_loss']
  # The path of the best checkpoint leads to the class names and the flags of its run.
  for argument, error in (('--labels=a,b,c,d,e,f,g,h,i,j', 'trained with other class names'),
                          ('--preprocess=tf', 'was trained with --preprocess=unit')):
    assert fails(evaluate(run_program, 'third', best['checkpoint'], argument), error)


def _read_kernel(path):
  with h5py.File(str(path), 'r') as file:
    return file['model_weights/dense/dense/kernel:0'][:]


def test_the_model_of_the_best_checkpoint_is_never_that_of_another(train, monkeypatch, tmp_path):
  """Also if the run is killed, or the record of the best checkpoint is damaged."""
  train(4)
  assert (tmp_path / 'best.h5').is_file()
  with monkeypatch.context() as patch:
    patch.setattr(page, 'write_page_of_finished_run', mock.Mock(side_effect=KeyError))
    patch.setattr(h5_model, 'save_best_model', mock.Mock())
    with pytest.raises(KeyError):
      train(10)
  assert json.loads((tmp_path / 'best' / 'best.json').read_text())['global_step'] == 10
  assert not (tmp_path / 'best.h5').exists()
  train(10)
  assert (_read_kernel(tmp_path / 'best.h5') == _read_kernel(tmp_path / 'model.h5')).all()
  (tmp_path / 'best' / 'best.json').write_text('{')
  monkeypatch.setattr(EvaluationLoop, 'evaluate', lambda self: {})  # As if a signal interrupted it.
  train(10)
  assert not (tmp_path / 'best.h5').exists()


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
  assert done.result['stopped_early'] == 'accuracy 0.500 reaches 0.5'
  assert (tmp_path / 'model.h5').is_file() and (tmp_path / 'throughput.json').is_file()
  assert train(12, '--stop_at_accuracy=0.5').result['steps_run'] == 0


def test_each_epoch_is_evaluated_once(run_well, monkeypatch, tmp_path):
  """Also by a run in parts, the first of which ends within an epoch."""
  done = run_well('--model_dir', tmp_path / 'parts', '--train_steps=10', *EPOCHS)
  assert evaluated_steps(done) == [8, 10]
  done = run_well('--model_dir', tmp_path / 'parts', '--train_epochs=3', *EPOCHS)
  assert evaluated_steps(done) == [15, 23]
  assert evaluated_steps(run_well('--model_dir', tmp_path / 'end', '--train_epochs=2',
                                  '--eval_every_epochs=0', *EPOCHS)) == [15]

  evaluate = Evaluator.evaluate
  monkeypatch.setattr(Evaluator, 'evaluate', lambda self, path: (
      dict(evaluate(self, path)[0], accuracy=.5), evaluate(self, path)[1]))
  done = run_well('--model_dir', tmp_path / 'stops', '--train_epochs=9',
                  '--early_stopping_epochs=2', *EPOCHS)
  assert evaluated_steps(done) == [8, 15, 23]
  assert done.result['stopped_early'] == 'no improvement in accuracy for 2 epochs'
  assert done.result['best']['global_step'] > 8, 'a lower loss is no improvement of the accuracy'
