"""Workarounds for TensorFlow 1.15, each beside what TensorFlow does without it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator

from estimator_train import models
from estimator_train.tf_patches import (
    estimator,
    keras,
    saved_weights,
    sessions,
)
from estimator_train.tf_patches.model_copies import ModelCopier


@pytest.fixture
def session():
  """A session of a graph of its own, which are the default ones."""
  with tf.Graph().as_default(), tf.Session() as session:
    yield session


def test_what_a_process_keeps_is_released_or_restored(session, monkeypatch):
  distribute_coordinator._thread_local.server = object()
  estimator.release_server()
  assert distribute_coordinator._thread_local.server is None
  for before in (session, None):
    tf.keras.backend.set_session(before)
    with keras.preserve_session():
      tf.keras.backend.set_session(tf.Session(graph=tf.Graph()))
    assert keras.backend._SESSION.session is before
  monkeypatch.setenv('PATH', '/nowhere')
  with sessions.converter_on_path():
    subprocess.run([os.path.basename(sys.executable), '-c', ''], check=True)
  assert os.environ['PATH'] == '/nowhere'


@pytest.mark.parametrize('has_local', [False, True])
def test_the_checks_of_a_new_session_are_one(tmp_path, session, has_local):
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


def test_all_weights_are_saved_in_few_operations(tmp_path, session):
  """Initial weights with an edge for each, and an .h5 file in one run of the session."""
  saved_weights.start_graph(1)
  model = models.build('mnist_deep', (28, 28, 1), 10)
  before = len(session.graph.get_operations())
  saved_weights.save_random_weights(model, tf.estimator.RunConfig(model_dir=str(tmp_path)))
  added = session.graph.get_operations()[before:]
  assert sum(len(operation.control_inputs) for operation in added) <= 3 * len(model.weights)
  tf.keras.backend.set_session(session)
  session.run(tf.global_variables_initializer())
  runs = []
  session.run = lambda *arguments, **options: (
      runs.append(None) or tf.Session.run(session, *arguments, **options))
  with keras.weights_from_one_run(model.weights):
    model.save(str(tmp_path / 'model.h5'))
  assert len(runs) == 2  # The first one asks whether all weights are initialized.
  saved = tf.keras.models.load_model(str(tmp_path / 'model.h5'), compile=False).get_weights()
  for value, expected in zip(saved, model.get_weights()):
    np.testing.assert_array_equal(value, expected)


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
