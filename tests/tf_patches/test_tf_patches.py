"""Workarounds for TensorFlow 1.15, each beside what TensorFlow does without it."""

import os
import subprocess
import sys

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator

from estimator_train.tf_patches import estimator, keras, sessions


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
