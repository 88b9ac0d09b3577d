"""`examples/continue_in_tensorflow_2.py` continues a run as the program itself continues it."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from conftest import ROOT

import estimator_train
from estimator_train.datasets import fashion_mnist_sample
from estimator_train.inputs import arrays

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

BATCH_SIZE, STEPS_BEFORE, STEPS_AFTER = 32, 4, 3


def read_batch():
  images, classes = arrays.read_idx_split(fashion_mnist_sample.describe().test, (28, 28, 1))
  return images[:BATCH_SIZE], classes[:BATCH_SIZE]


def one_batch():
  """A data set that is one batch, so that each step has the same examples in any order."""
  split = estimator_train.ArraySplit(*read_batch())
  return estimator_train.DataSet('one_batch', [str(index) for index in range(10)], (28, 28, 1),
                                 split, split)


@pytest.fixture
def continue_run(clients_python, tmp_path):
  """Runs the example in TensorFlow 2 on the one batch."""
  images, classes = read_batch()
  np.savez(str(tmp_path / 'examples.npz'), images=images, classes=classes)

  def run(model_dir):
    return subprocess.run(
        [clients_python, '-I', str(ROOT / 'examples' / 'continue_in_tensorflow_2.py'),
         str(model_dir), str(STEPS_AFTER), str(tmp_path / 'examples.npz')], timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)

  return run


def train(run_program, model_dir, steps, *flags):
  done = run_program('--dataset=test_continue_in_tensorflow_2:one_batch', '--model=mnist_dense',
                     '--model_dir={}'.format(model_dir), '--batch_size={}'.format(BATCH_SIZE),
                     '--train_steps={}'.format(steps), '--log_every_steps=1', *flags)
  assert done.code == 0, done.err


@pytest.mark.parametrize('optimizer', ['adam', 'momentum', 'rmsprop'])
def test_the_losses_of_the_next_steps_agree(run_program, continue_run, tmp_path, optimizer):
  flags = ['--optimizer=' + optimizer, '--learning_rate=0.002']
  train(run_program, tmp_path / 'run', STEPS_BEFORE, *flags)
  shutil.copytree(str(tmp_path / 'run'), str(tmp_path / 'in_tensorflow_2'))
  done = continue_run(tmp_path / 'in_tensorflow_2')
  assert done.returncode == 0, done.stderr
  train(run_program, tmp_path / 'run', STEPS_BEFORE + STEPS_AFTER, *flags)
  ours = json.loads((tmp_path / 'run' / 'report' / 'curves.json').read_text())['train_loss']
  theirs = json.loads(done.stdout.splitlines()[-1])['train_loss']
  ours, theirs = np.array(ours[STEPS_BEFORE:]), np.array(theirs)
  assert ours.shape == (STEPS_AFTER, 2) and ours[-1, 0] == STEPS_BEFORE + STEPS_AFTER
  print(optimizer, ours[:, 1], np.abs(theirs[:, 1] / ours[:, 1] - 1).max())
  np.testing.assert_allclose(theirs, ours, rtol=1e-5)
  assert len(set(ours[:, 1])) == STEPS_AFTER
  assert (tmp_path / 'in_tensorflow_2' / 'continued.keras').exists()


def test_a_run_with_another_loss_is_rejected(run_program, continue_run, tmp_path):
  train(run_program, tmp_path / 'run', 1, '--label_smoothing=0.1')
  done = continue_run(tmp_path / 'run')
  assert done.returncode == 1 and done.stderr.splitlines()[-1] == (
      'error: this script supports only --label_smoothing=0.0: the run has --label_smoothing=0.1: '
      'change the script')
