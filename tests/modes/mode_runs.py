"""What the tests of several modes share."""

import numpy as np
import tensorflow.compat.v1 as tf


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
