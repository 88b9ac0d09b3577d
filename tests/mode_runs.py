"""What the tests of several modes share."""

import hashlib

import generated_data
import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.modes.input_benchmark import rates


def fails(done, message):
  """Asserts that a run ended with an error of the user, in one line at the end."""
  assert done.code == 2 and done.out == '', done.err
  last = done.err.splitlines()[-1]
  assert last.startswith('error: ') and message in last, last
  return True


def image_flags(folder, pattern='*/*.jpeg'):
  """Returns the flags of the data set in `image_folders`."""
  return ['--dataset=image_folder', '--train_pattern={}/train/{}'.format(folder, pattern),
          '--eval_pattern={}/test/{}'.format(folder, pattern)]


def publish_generated_files(folder, monkeypatch, num_train=60, num_test=20):
  """Writes idx files, and has them be the published ones of both MNISTs, at no address."""
  generated_data.write_idx_files(folder, num_train, num_test)
  for name in ('mnist', 'fashion_mnist'):
    class_names, files = idx.DATA_SETS[name]
    contents = [(folder / file.name).read_bytes() for file in files]
    monkeypatch.setitem(idx.DATA_SETS, name, (class_names, tuple(
        file._replace(size=len(content), md5=hashlib.md5(content).hexdigest(),
                      urls=('http://127.0.0.1:1/' + file.name,))
        for file, content in zip(files, contents))))


def measure_shortly(monkeypatch):
  """Has the input benchmark measure for a moment instead of seconds."""
  for name in ('_COLD_PASS_SECS', '_WARM_PASS_SECS', '_MAX_WARMUP_SECS', '_MIN_TIMED_SECS'):
    monkeypatch.setattr(rates, name, 0.02)


def weights_of(model_dir):
  path = tf.train.latest_checkpoint(str(model_dir))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def assert_same_weights(folder, other):
  first, second = weights_of(folder), weights_of(other)
  assert set(first) == set(second)
  for name, value in first.items():
    np.testing.assert_allclose(value, second[name], rtol=1e-5, atol=1e-6, err_msg=name)


def evaluated_steps(done):
  """Returns the steps that a run has evaluated, from its log."""
  return [int(line.rpartition(' ')[2]) for line in done.err.splitlines()
          if line.startswith('accuracy ')]
