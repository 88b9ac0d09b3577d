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
  with sessions.toco_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


@pytest.mark.parametrize('has_local', [False, True])
def test_the_checks_of_a_new_session_are_one(tmp_path, own_graph, has_local):
  """Unless local variables are initialized in between, which the second check has, too."""
  weight = tf.get_variable('weight', (), use_resource=True)
  if has_local:
    tf.get_variable('local', (), collections=[tf.GraphKeys.LOCAL_VARIABLES])
  tf.add_to_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP, tf.report_uninitialized_variables(
      tf.global_variables()))
  sessions.share_ready_op()
  for name in ('first', 'second'):
    sessions.add_local_init_op(tf.write_file(str(tmp_path / name), ''))
  with pytest.raises(RuntimeError, match='weight'):
    tf.train.MonitoredSession(tf.train.ChiefSessionCreator(tf.train.Scaffold(init_op=tf.no_op())))
  tf.train.MonitoredSession(tf.train.ChiefSessionCreator(
      tf.train.Scaffold(init_op=weight.initializer))).close()
  assert {path.name for path in tmp_path.iterdir()} == {'first', 'second'}
  ready, = tf.get_collection(tf.GraphKeys.READY_OP)
  assert (tf.get_collection(tf.GraphKeys.READY_FOR_LOCAL_INIT_OP) == [ready]) != has_local


@pytest.mark.parametrize('name', ['fashion_cnn', 'mnist_deep'])
def test_random_weights_are_saved_without_a_copy(tmp_path, name):
  def save(folder, is_copied):
    config = tf.estimator.RunConfig(model_dir=str(tmp_path / folder), tf_random_seed=7)
    with tf.Graph().as_default():
      if is_copied:
        tf.set_random_seed(7)
      else:
        saved_weights.seed_graph(7)
      model = models.build(name, (28, 28, 1), 10)
      model.compile('adam', 'categorical_crossentropy')
      if is_copied:
        saved_weights.save_initial_weights(ModelCopier(model), None, config)
      else:
        saved_weights.save_random_weights(model, config)
    return {path.name: path.read_bytes() for path in (tmp_path / folder / 'keras').iterdir()
            if path.name != 'checkpoint'}  # This file has the path of the folder.

  assert save('itself', is_copied=False) == save('copy', is_copied=True)
