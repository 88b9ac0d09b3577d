"""TensorBoard during a training: the command line, and one real start."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest
from conftest import ROOT, wait_until

from estimator_train.launcher import local_cluster
from estimator_train.settings import command_line

SECS = 120
SERVER = [sys.executable, '-c', 'import sys; print("noise", file=sys.stderr); '
          'print("TensorBoard: {} somewhere".format(sys.argv[1]), flush=True)']


@pytest.mark.parametrize('arguments, num_tasks, model_dir', [
    ('--tensorboard --model_dir=some_dir --train_steps=1', 0, 'some_dir'),
    ('--model_dir tensorboard --train_steps=1 -tensorboard -local_workers=2', 2, 'tensorboard'),
    ('--flagfile=some.flags --tensorboard', 0, 'dir of flagfile')])
def test_training_takes_the_place_of_the_launcher(tmp_path, monkeypatch, capfd, arguments,
                                                  num_tasks, model_dir):
  """Unless there is a cluster to supervise."""
  monkeypatch.chdir(str(tmp_path))
  (tmp_path / 'some.flags').write_text('--model_dir=dir of flagfile\n--train_steps=3\n')
  commands = []

  def exec_program(path, command, environ):
    assert path == 'some python' and environ['TF_CONFIG'] == '{"of": 1}'
    commands.append(command)
    sys.exit(5)

  def run_cluster(supervisor, unused_max_restarts):
    assert len(supervisor._tasks) == num_tasks
    commands.append(supervisor._command)
    sys.exit(5)

  monkeypatch.setattr(os, 'execve', exec_program)
  monkeypatch.setattr(local_cluster.Supervisor, 'run', run_cluster)
  monkeypatch.setenv('TF_CONFIG', '{"of": 1}')
  with pytest.raises(SystemExit, match='5'):
    local_cluster.main(arguments.split(), ['some python', '-m'], server=SERVER)
  expected = [argument for argument in arguments.split()
              if argument not in ('--tensorboard', '-tensorboard', '-local_workers=2')]
  assert commands == [['some python', '-m', *(
      ['--distribution_strategy=multi_worker_mirrored'] if num_tasks else []), *expected]]
  log = tmp_path / model_dir / 'logs' / 'tensorboard.log'
  wait_until(lambda: log.read_text() == 'noise\n', SECS)
  assert capfd.readouterr().err == 'TensorBoard: {} somewhere\n'.format(model_dir)


def get(url):
  # A proxy of the machine has no business with it.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  with opener.open(url, timeout=SECS) as answer:
    return json.loads(answer.read().decode())


def test_a_training_with_tensorboard(tmp_path):
  """In a folder whose name TensorBoard would take for a list of named ones."""
  assert './run_train.sh --tensorboard' in command_line.help_text()
  with (tmp_path / 'err').open('w') as err:
    process = subprocess.Popen(
        [sys.executable, '-m', 'estimator_train.launcher.local_cluster', '--tensorboard',
         '--dataset=synthetic', '--image_size=8,8', '--batch_size=4', '--log_every_steps=100',
         '--model=own_models:two_layers', '--train_steps=1000000',
         '--model_dir={}'.format(tmp_path / 'a:b, c')], cwd=str(ROOT), stdout=subprocess.DEVNULL,
        stderr=err, env=dict(os.environ, PYTHONPATH=str(ROOT / 'tests')))

  def url():
    return re.findall('TensorBoard: (http://localhost:[0-9]+/) until',
                      (tmp_path / 'err').read_text())

  try:
    wait_until(url, SECS)
    wait_until(lambda: 'loss' in get(url()[0] + 'data/plugin/scalars/tags').get('.', ()), SECS)
    process.terminate()
    assert process.wait(SECS) == 143
  finally:
    process.kill()
    process.wait()
