"""`examples/continue_in_tensorflow_2.py` continues a run as the program itself continues it."""

import json
import shutil

import numpy as np
import pytest
from conftest import ROOT, run_process

import estimator_train

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

STEPS_BEFORE, STEPS_AFTER = 4, 3
IMAGES = np.random.RandomState(1).randint(0, 256, (32, 28, 28, 1)).astype(np.uint8)
CLASSES = np.arange(32) % 10
# Runs the example for each folder in one process.
PROGRAM = '''
import runpy, sys
script, steps, examples, *folders = sys.argv[1:]
for folder in folders:
  sys.argv = [script, folder, steps, examples]
  runpy.run_path(script, run_name='__main__')
'''


def one_batch():
  """A data set that is one batch, so that each step has the same examples in any order."""
  split = estimator_train.ArraySplit(IMAGES, CLASSES)
  return estimator_train.DataSet('one_batch', [str(index) for index in range(10)], (28, 28, 1),
                                 split, split)


def train(run_well, model_dir, steps, *flags):
  run_well('--dataset=test_continue_in_tensorflow_2:one_batch', '--model=mnist_dense',
           '--model_dir={}'.format(model_dir), '--batch_size=32',
           '--train_steps={}'.format(steps), '--log_every_steps=1', *flags)


def test_the_losses_of_the_next_steps_agree(run_well, clients_python, tmp_path):
  np.savez(str(tmp_path / 'examples.npz'), images=IMAGES, classes=CLASSES)
  runs = {name: tmp_path / name for name in ('adam', 'adamw', 'momentum', 'rmsprop')}
  copies = {name: tmp_path / ('continued_' + name) for name in runs}
  for name, folder in runs.items():
    flags = ['--optimizer=' + name, '--learning_rate=0.002']
    train(run_well, folder, STEPS_BEFORE, *flags)
    shutil.copytree(str(folder), str(copies[name]))
    train(run_well, folder, STEPS_BEFORE + STEPS_AFTER, *flags)
  train(run_well, tmp_path / 'smooth', 1, '--label_smoothing=0.1')
  done = run_process(
      clients_python, '-I', '-c', PROGRAM, ROOT / 'examples' / 'continue_in_tensorflow_2.py',
      STEPS_AFTER, tmp_path / 'examples.npz', *copies.values(), tmp_path / 'smooth')
  assert done.stderr.splitlines()[-1] == (
      'error: this script supports only --label_smoothing=0.0: the run has '
      '--label_smoothing=0.1: change the script')
  results = [json.loads(line)['train_loss'] for line in done.stdout.splitlines()
             if line.startswith('{')]
  assert len(results) == len(runs)
  for name, theirs in zip(runs, results):
    ours = json.loads((runs[name] / 'report' / 'curves.json').read_text())['train_loss']
    ours = np.array(ours[STEPS_BEFORE:])
    assert ours.shape == (STEPS_AFTER, 2) and ours[-1, 0] == STEPS_BEFORE + STEPS_AFTER
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)
    assert len(set(ours[:, 1])) == STEPS_AFTER
    assert (copies[name] / 'continued.keras').exists()
