"""The program as a process: what it imports, prints and returns."""

import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

from estimator_train import __main__ as program
from estimator_train.errors import PeerLost

SECS = 120
QUICK = ['--dataset=synthetic', '--batch_size=8', '--log_every_steps=1']


def command(*arguments):
  return [sys.executable, '-m', 'estimator_train'] + [str(argument) for argument in arguments]


def run(*arguments):
  return subprocess.run(command(*arguments), cwd=str(ROOT), timeout=SECS, universal_newlines=True,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize('argument, code', [
    ('--help', 0), ('--batch_size=0', 2), ('--no_such_flag', 2), ('--mode=evaluate', 2)])
def test_help_and_flag_errors_import_no_tensorflow(argument, code):
  program = ('import sys; from estimator_train.__main__ import main; code = main([{!r}]); '
             'assert not [name for name in sys.modules if name.startswith("tensorflow")]; '
             'sys.exit(code)').format(argument)
  done = subprocess.run([sys.executable, '-c', program], cwd=str(ROOT), timeout=SECS,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == code, done.stderr
  if code:
    assert done.stdout == '' and done.stderr.startswith('error: ')
    assert len(done.stderr.splitlines()) == 1
  else:
    assert '--batch_size: ' in done.stdout and done.stderr == ''


@pytest.mark.parametrize('config, told', [
    ('{', 'TF_CONFIG: it must be JSON: '),
    ('{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}',
     'TF_CONFIG: it names several tasks, but --distribution_strategy=mirrored runs in one: '),
])
def test_errors_of_tf_config_import_no_tensorflow(config, told):
  done = subprocess.run(
      [sys.executable, '-v', '-m', 'estimator_train', '--model_dir=x',
       '--train_steps=1'], cwd=str(ROOT), timeout=SECS, env=dict(os.environ, TF_CONFIG=config),
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == 2 and '\nerror: ' + told in done.stderr
  assert "import 'tensorflow" not in done.stderr.partition('\nerror: ')[0]


def test_results_and_logs_keep_apart(tmp_path):
  done = run('--model_dir', tmp_path / 'odd $name', '--mode=train', '--train_steps=2', *QUICK)
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) == 1 and done.stdout.startswith('{"mode": "train"')
  lines = done.stderr.splitlines()
  assert lines[0] == 'importing TensorFlow'
  setup = next(index for index, line in enumerate(lines)
               if line.startswith('fashion_cnn on synthetic'))
  assert any(line.startswith('step 1/2: loss') for line in lines[setup:])
  checkpoint, = (line for line in lines if line.startswith('  checkpoint '))
  assert checkpoint.endswith('odd $name/model.ckpt-2')
  # TensorFlow logs nothing in between.
  assert len([line for line in lines if not line.endswith(' s so far')]) == 14, done.stderr


def test_loss_that_is_not_finite(tmp_path):
  done = run('--model_dir', tmp_path, '--train_steps=50', '--optimizer=sgd',
             '--learning_rate=1e30', *QUICK)
  assert done.returncode == 3
  assert done.stdout == ''
  last = done.stderr.splitlines()[-1]
  assert re.match(
      r'error: the loss is (nan|inf) at step \d+; the last finite losses: [\d.]+ at step 1.*; '
      r'learning rate 1e\+30; the last good checkpoint is {}/model.ckpt-0$'.format(
          re.escape(str(tmp_path))), last), last
  assert 'Traceback' not in done.stderr


@pytest.mark.parametrize('signum, code', [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_saves_and_the_same_command_goes_on(tmp_path, signum, code):
  arguments = ['--mode=train', '--model_dir', tmp_path] + QUICK
  process = subprocess.Popen(command('--train_steps=1000000', *arguments), cwd=str(ROOT),
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             universal_newlines=True)
  try:
    for line in process.stderr:
      if line.startswith('step 5/'):
        process.send_signal(signum)
        break
    _, err = process.communicate(timeout=SECS)
  finally:
    process.kill()
  assert process.returncode == code, err
  last = err.splitlines()[-1]
  assert last.startswith('stopped by {} at step '.format(signal.Signals(signum).name))
  step = int(last.split('step ')[1].split(',')[0])
  assert step >= 5 and os.path.exists(str(tmp_path / 'model.ckpt-{}.index'.format(step)))
  assert (tmp_path / 'throughput.json').exists()
  done = run('--train_steps={}'.format(step + 2), *arguments)
  assert done.returncode == 0 and '"steps_run": 2' in done.stdout, done.stderr


def test_lost_peer(capsys, monkeypatch):
  def run_into(argv):
    raise PeerLost('lost worker 1: its connection ended')

  monkeypatch.setattr(program.flags, 'parse', run_into)
  assert program.main(['--batch_size=1']) == 138
  assert capsys.readouterr().err == 'lost worker 1: its connection ended\n'


def test_signal_before_training(tmp_path):
  code = '''
import os, signal
from estimator_train import __main__ as program, flags
flags.parse = lambda argv: os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(program.main([]))
'''
  done = subprocess.run([sys.executable, '-c', code], cwd=str(ROOT), timeout=SECS,
                        stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == 143 and done.stderr == 'stopped by SIGTERM\n'
