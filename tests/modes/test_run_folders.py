"""Commands and functions of the library without `--model_dir` or `--export_dir`."""

import json
import os
import shutil

import pytest
from mode_runs import QUICK, fails

import estimator_train
from estimator_train.settings import command_line

FLAGS = [*QUICK, '--mode=train', '--noreport_page']
NAME = 'runs/synthetic-own_models.two_layers'


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
  monkeypatch.chdir(str(tmp_path))


def test_training(run_well, run_program):
  done = run_well('--train_steps=1', *FLAGS)
  assert done.result['model_dir'] == NAME and 'new run in {}\n'.format(NAME) in done.err
  again = run_well('--train_steps=1', *FLAGS)
  assert again.result['model_dir'] == NAME and again.result['steps_run'] == 0
  assert NAME + ' has a run with the same flags, which this command resumes; ' in again.err
  with open('run.flags', 'w') as file:  # It does not matter where the flags come from.
    file.write('\n'.join(['--train_steps=1', *FLAGS]))
  settings = command_line.parse(['--flagfile=run.flags'])
  assert estimator_train.train(settings)['steps_run'] == 0
  other = estimator_train.train(settings.evolve(train_steps=2))
  assert other['model_dir'] == NAME + '-2' and other['steps_run'] == 2
  # The run is continued with its own flags, and then is what a longer training would be.
  assert run_well('--model_dir=' + NAME, '--train_steps=3').result['steps_run'] == 2
  assert run_well('--train_steps=3', *FLAGS).result['model_dir'] == NAME

  for mode in ('evaluate', 'predict', 'export'):
    assert fails(run_program('--mode=' + mode), (
        'error: --model_dir is required: --mode={} without --model_dir: give --model_dir={}, the '
        'newest run in runs/, or --model_dir=FOLDER').format(mode, NAME))
  with pytest.raises(estimator_train.UserError, match='give model_dir=.*two_layers, the newest'):
    estimator_train.evaluate(settings)
  assert fails(run_program('--mode=report'), 'give --runs={0} --model_dir={0} to '.format(NAME))
  assert fails(run_program('--mode=report', '--runs=a'), 'give --model_dir=a to write the page to')
  assert fails(run_program('--mode=report', '--runs=a,b'), 'give --model_dir=FOLDER')
  shutil.rmtree('runs')
  assert fails(run_program('--mode=evaluate'), 'give --model_dir=FOLDER')


def test_a_mistyped_folder(run_well):
  done = run_well('--train_steps=1', '--mode=train', '--noreport_page', '--model_dir=runs/new')
  assert 'runs/new has no run: training fashion_cnn on fashion_mnist_sample (the def' in done.err
  done = run_well('--train_steps=2', '--model_dir=runs/new')
  assert ' has no run' not in done.err


def test_export(run_well, copied_run):
  for export_format in ('saved_model', 'h5'):
    path = run_well('--mode=export', '--model_dir', copied_run,
                    '--export_format=' + export_format).result['path']
    assert os.path.dirname(path) == str(copied_run / 'export' / export_format)


def test_the_tasks_of_a_cluster_need_one_folder(run_program, monkeypatch):
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'worker': ['a:1', 'b:1']}, 'task': {'type': 'worker', 'index': 0}}))
  assert fails(run_program('--train_steps=1', *FLAGS,
                           '--distribution_strategy=multi_worker_mirrored'),
               'error: a run of several tasks requires --model_dir: this is task worker 0: give '
               '--model_dir={} to every task: a folder that all tasks share'.format(NAME))
