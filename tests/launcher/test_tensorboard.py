"""TensorBoard during a training: the command line, and one real start."""

import json
import os
import re
import subprocess
import sys
import urllib.request

from conftest import ROOT, wait_until

from estimator_train.launcher import local_cluster
from estimator_train.settings import command_line

SECS = 120
SERVER = [sys.executable, '-c', 'import sys; print("noise", file=sys.stderr); '
          'print("TensorBoard: {} somewhere".format(sys.argv[1]), flush=True)']


def test_a_cluster_with_tensorboard(tmp_path, monkeypatch, capfd):
  """Its folder is that of the flagfile."""
  folder, flagfile = tmp_path / 'some dir', tmp_path / 'some.flags'
  flagfile.write_text('--model_dir={}\n--train_steps=3\n'.format(folder))
  monkeypatch.setattr(local_cluster.Supervisor, 'run', lambda *unused: 5)
  assert local_cluster.main(
      ['--flagfile={}'.format(flagfile), '-tensorboard', '--local_workers=2'],
      tensorboard_command=SERVER) == 5
  log = folder / 'logs' / 'tensorboard.log'
  wait_until(lambda: log.read_text() == 'noise\n', SECS)
  assert capfd.readouterr().err == 'TensorBoard: {} somewhere\n'.format(folder)


def get(url):
  # A proxy of the machine has no business with it.
  opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
  with opener.open(url, timeout=SECS) as answer:
    return json.loads(answer.read().decode())


def test_a_training_with_tensorboard(tmp_path):
  """In a folder whose name TensorBoard would take for a list of named ones."""
  assert '\n  --tensorboard: ' in command_line.help_text()
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
