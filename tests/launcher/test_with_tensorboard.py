"""TensorBoard beside a training: the command line, the end of both, and one real start."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import ROOT, is_alive, wait_until

from estimator_train import flags
from estimator_train.launcher import tensorboard_server, with_tensorboard

SECS = 120
# What is started in place of the training and of TensorBoard.
PROGRAM = '''
import json, os, signal, sys, time
with open('part', 'w') as file:
  json.dump({'argv': sys.argv[1:], 'pid': os.getpid(),
             'variable': os.environ.get('TF_CONFIG')}, file)
os.rename('part', 'program')
exec(os.environ.get('DOES', ''))
'''
SERVER = '''
import os, sys, time
print('TensorBoard: somewhere', flush=True)
print('noise', file=sys.stderr, flush=True)
with open('part of server', 'w') as file:
  file.write('{} {}'.format(os.getpid(), sys.argv[1]))
os.rename('part of server', 'server')
time.sleep(600)
'''
LAUNCHER = '''
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {root!r})
from estimator_train.launcher import with_tensorboard
with_tensorboard.main(
    module_command=[sys.executable, 'program.py'], server=[sys.executable, 'server.py'])
'''
WAITS = 'while not os.path.exists("server"): time.sleep(.01)\n'


@pytest.fixture
def start(tmp_path):
  """Starts the launcher in a folder of stand-ins."""
  (tmp_path / 'program.py').write_text(PROGRAM)
  (tmp_path / 'server.py').write_text(SERVER)
  started = []

  def start(*arguments, **variables):
    started.append(subprocess.Popen(
        [sys.executable, '-c', LAUNCHER.format(root=str(ROOT))] + list(arguments),
        cwd=str(tmp_path), env=dict(os.environ, **variables), universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return started[-1]

  yield start
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def finish(process):
  out, err = process.communicate(timeout=SECS)
  return process.returncode, out, err


@pytest.mark.parametrize('arguments, module, rest', [
    (['--tensorboard', '--model_dir=a b', '--train_steps=1', '--data_dir=c d'], 'estimator_train',
     ['--model_dir=a b', '--train_steps=1', '--data_dir=c d']),
    (['--model_dir', 'm', '--train_steps=1', '-tensorboard', '--local_workers=2'],
     'estimator_train.launcher.local_cluster',
     ['--model_dir', 'm', '--train_steps=1', '--local_workers=2']),
    (['--flagfile=some.flags', '--tensorboard'], 'estimator_train', ['--flagfile=some.flags']),
])
def test_training_takes_the_place_of_the_launcher(start, tmp_path, arguments, module, rest):
  (tmp_path / 'some.flags').write_text('--model_dir=from a flagfile\n--train_steps=3\n')
  process = start(*arguments, DOES=WAITS + 'print("result"); sys.exit(7)', TF_CONFIG='{"of": 1}')
  assert finish(process) == (7, 'result\n', 'TensorBoard: somewhere\n')
  told = json.loads((tmp_path / 'program').read_text())
  assert told == {'argv': [module] + rest, 'pid': process.pid, 'variable': '{"of": 1}'}
  pid, _, model_dir = (tmp_path / 'server').read_text().partition(' ')
  assert model_dir == {'--model_dir=a b': 'a b', '--model_dir': 'm'}.get(rest[0], 'from a flagfile')
  assert (tmp_path / model_dir / 'logs' / 'tensorboard.log').read_text() == 'noise\n'
  wait_until(lambda: not is_alive(int(pid)))


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_both_end_by_a_signal(start, tmp_path, signum):
  saves = 'signal.signal(signal.{}, lambda *_: sys.exit(100))\n'.format(
      signal.Signals(signum).name) if signum != signal.SIGKILL else ''
  process = start('--model_dir=m', '--train_steps=1', '--tensorboard',
                  DOES=saves + 'open("ready", "w"); time.sleep(600)')
  wait_until((tmp_path / 'ready').exists, SECS)
  wait_until((tmp_path / 'server').exists, SECS)
  pid = int((tmp_path / 'server').read_text().partition(' ')[0])
  assert is_alive(pid)
  process.send_signal(signum)
  assert finish(process)[0] == (100 if saves else -signal.SIGKILL)
  wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize('arguments, told', [
    (['--mode=doctor'],
     'TensorBoard can only be started with training: --tensorboard --mode=doctor: '),
    (['--train_steps=1', '--model_dir=/dev/null/x'], '--model_dir cannot be written to: '),
    (['--no_such_flag'], 'unknown flag: --no_such_flag: '),
    (['--local_workers=x', '--model_dir=m'], '--local_workers is not a valid number: '),
])
def test_wrong_values(start, tmp_path, arguments, told):
  code, out, err = finish(start('--tensorboard', *arguments))
  assert (code, out) == (2, '') and err.startswith('error: ' + told) and err.count('\n') == 1
  assert not (tmp_path / 'server').exists() and not (tmp_path / 'program').exists()


def test_help_starts_no_tensorboard(start, tmp_path):
  assert finish(start('--tensorboard', '--help')) == (0, '', '')
  assert json.loads((tmp_path / 'program').read_text())['argv'] == ['estimator_train', '--help']
  assert not (tmp_path / 'server').exists()
  assert './run_train.sh --tensorboard' in flags.help_text()


@pytest.mark.parametrize('argv, rest', [
    (['--tensorboard', '--model_dir', 'tensorboard'], ['--model_dir', 'tensorboard']),
    (['-tensorboard', '--model_dir=m'], ['--model_dir=m']),
    (['---tensorboard', '--tensorboard'], ['---tensorboard']),
])
def test_only_the_flag_is_removed(argv, rest):
  assert with_tensorboard._remove_tensorboard_flag(argv) == rest


def test_server_without_a_folder(capsys):
  with pytest.raises(SystemExit) as caught:
    tensorboard_server.main([])
  assert caught.value.code == 2
  assert capsys.readouterr().err == (
      'error: a folder is required: no argument was given: give the path of a model_dir\n')


def get(url):
  # A proxy of the machine has no business with it.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  with opener.open(url, timeout=SECS) as answer:
    return json.loads(answer.read().decode())


@pytest.mark.slow
def test_real_one(tmp_path):
  """In a folder whose name TensorBoard would take for a list of named ones."""
  model_dir = tmp_path / 'a:b, c'
  with (tmp_path / 'err').open('w') as err:
    process = subprocess.Popen(
        [sys.executable, '-m', 'estimator_train.launcher.with_tensorboard', '--tensorboard',
         '--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--log_every_steps=100',
         '--model=own_models:two_layers', '--train_steps=1000000',
         '--model_dir={}'.format(model_dir)], cwd=str(ROOT), stdout=subprocess.DEVNULL, stderr=err,
        env=dict(os.environ, PYTHONPATH=str(ROOT / 'tests')))
  try:
    wait_until(lambda: 'TensorBoard: ' in (tmp_path / 'err').read_text(), SECS)
    url, = re.findall('TensorBoard: (http://localhost:[0-9]+/) until',
                      (tmp_path / 'err').read_text())
    wait_until(lambda: get(url + 'data/runs') == ['.'], SECS)
    wait_until(lambda: 'loss' in get(url + 'data/plugin/scalars/tags').get('.', ()),
               SECS)
    process.terminate()
    assert process.wait(SECS) == 143
    deadline = time.monotonic() + SECS
    while True:
      try:
        get(url + 'data/runs')
      except OSError:
        break
      assert time.monotonic() < deadline
      time.sleep(.05)
  finally:
    process.kill()
    process.wait()
