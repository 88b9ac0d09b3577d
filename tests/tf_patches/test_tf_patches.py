"""Workarounds for TensorFlow 1.15, each beside what TensorFlow does without it."""

import os
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator

from estimator_train import models
from estimator_train.tf_patches import estimator, keras, saved_weights, sessions
from estimator_train.tf_patches.model_copies import ModelCopier


def test_what_a_process_keeps_is_released_or_restored(monkeypatch):
  distribute_coordinator._thread_local.server = object()
  estimator.release_server()
  assert distribute_coordinator._thread_local.server is None
  for before in (tf.Session(graph=tf.Graph()), None):
    tf.keras.backend.set_session(before)
    with keras.preserve_session():
      tf.keras.backend.set_session(tf.Session(graph=tf.Graph()))
    assert keras.backend._SESSION.session is before
  monkeypatch.setenv('PATH', '/nowhere')
  with sessions.converter_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


@pytest.mark.parametrize('name', ['fashion_cnn', 'mnist_deep'])
def test_random_weights_are_saved_without_a_copy(tmp_path, name):
  def save(folder, is_copied):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path / folder), tf_random_seed=7)
    with tf.Graph().as_default():
      if is_copied:
        tf.set_random_seed(7)
      else:
        saved_weights.start_graph(7)
      model = models.build(name, (28, 28, 1), 10)
      model.compile('adam', 'categorical_crossentropy')
      if is_copied:
        saved_weights.save_initial_weights(ModelCopier(model), None, config)
      else:
        saved_weights.save_random_weights(model, config)
    return {path.name: path.read_bytes() for path in (tmp_path / folder / 'keras').iterdir()
            if path.name != 'checkpoint'}  # This file has the path of the folder.

  assert save('itself', is_copied=False) == save('copy', is_copied=True)
