"""The probe that measures how long a step waits for its batch."""

import time

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.training.hooks import input_wait

_LONG_SECS = .2


def slow(secs):
  """Returns what takes so long to compute from any number."""
  def wait(value):
    time.sleep(secs)
    return value

  return lambda value: tf.reshape(tf.numpy_function(wait, [value], tf.int64), [])


def batches(secs):
  dataset = tf.data.Dataset.range(10).map(slow(secs))
  return tf.data.make_one_shot_iterator(dataset).get_next()


def test_without_a_pipeline_nothing_is_observed():
  with tf.Graph().as_default() as graph:
    tf.zeros([]) + tf.placeholder(tf.float32)
    assert input_wait.add_probe(graph) is None


def test_the_last_replicas_batch_counts(monkeypatch):
  times = iter([3., 3.25, 3., 3.5, 3., 3.125])
  monkeypatch.setattr(tf, 'timestamp', lambda: tf.constant(next(times), tf.float64))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    for _ in range(3):
      batches(0.)
    assert session.run(input_wait.add_probe(graph)) == .5


def test_the_model_runs_after_the_clock_is_read():
  """With a single thread the clock could otherwise be read after the model has run."""
  with tf.Graph().as_default() as graph:
    batch = batches(0.)
    model = batch + 1
    input_wait.add_probe(graph)
  assert [operation.type for operation in model.op.control_inputs] == ['Timestamp']
  assert model.op.control_inputs[0].control_inputs == [batch.op]


def test_the_wait_is_for_the_batch_and_not_for_the_model():
  with tf.Graph().as_default() as graph, tf.Session() as session:
    model = slow(_LONG_SECS)(batches(0.))
    wait = input_wait.add_probe(graph)
    measured = [session.run([wait, model])[0] for _ in range(3)]
  assert np.median(measured) < _LONG_SECS


def test_a_slow_input_is_waited_for():
  with tf.Graph().as_default() as graph, tf.Session() as session:
    batch = batches(_LONG_SECS)
    wait = input_wait.add_probe(graph)
    # An input without a buffer takes as long each time; the clock of the wait is the system's.
    assert max(session.run([wait, batch])[0] for _ in range(3)) >= .9 * _LONG_SECS
