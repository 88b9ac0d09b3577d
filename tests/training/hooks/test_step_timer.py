"""What a run records of its steps, under a clock that is given to it, and the wait for a batch."""

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf
from hook_runs import readings

from estimator_train.system.progress import StartUpTimer
from estimator_train.training.hooks import step_timer


def record(count, clock, start_up=None):
  """Records runs of a session, of which the first one fails."""
  history = step_timer.StepTimer(start_up or StartUpTimer(), clock=clock)
  with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    runs = tf.get_variable('runs', [], tf.int32, tf.zeros_initializer(), use_resource=True)
    step = tf.debugging.assert_greater(runs.assign_add(1), 1)
    with tf.train.MonitoredSession(hooks=[history]) as session:
      for _ in range(count):
        with contextlib.suppress(tf.errors.InvalidArgumentError):
          session.run(step)
  return history


def test_times_of_the_steps_and_of_the_way_to_the_first():
  start_up = StartUpTimer(clock=readings(10., 12., 14., 15., 21., 99.), process_age=lambda: 1.)
  history = record(4, readings(0., 1., 1.5, 2., 4., 5., 5.25), start_up)
  assert list(history.began) == [1., 2., 5.] and list(history.ended) == [1.5, 4., 5.25]
  assert np.isnan(history.waited).all(), 'there is no input to wait for'
  assert start_up.secs == {'import': 1., 'graph': 2., 'session': 3., 'first_step': 6.}


def test_a_long_run_keeps_its_last_steps(monkeypatch):
  monkeypatch.setattr(step_timer, '_NUM_STEPS_KEPT', 3)
  history = record(14, readings(*range(-1, 99)))
  assert history.discarded_steps == 9 and len(history.waited) == 4
  assert list(history.began) == [18, 20, 22, 24] and list(history.ended) == [19, 21, 23, 25]


def test_without_a_pipeline_nothing_is_observed():
  with tf.Graph().as_default() as graph:
    tf.zeros([]) + tf.placeholder(tf.float32)
    assert step_timer.add_probe(graph) is None


def test_the_last_replicas_batch_counts(monkeypatch):
  times = iter([3., 3.25, 3., 3.5, 3., 3.125])
  monkeypatch.setattr(tf, 'timestamp', lambda: tf.constant(next(times), tf.float64))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    for _ in range(3):
      tf.data.make_one_shot_iterator(tf.data.Dataset.range(10)).get_next()
    assert session.run(step_timer.add_probe(graph)) == .5


def test_the_wait_is_for_the_batch_and_not_for_the_model(monkeypatch):
  now = [0.]

  def take(secs, value):
    def wait(value):
      now[0] += secs
      return value

    return tf.reshape(tf.numpy_function(wait, [value], tf.int64), [])

  monkeypatch.setattr(tf, 'timestamp', lambda: tf.reshape(
      tf.numpy_function(lambda: now[0], [], tf.float64), []))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    batch = tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(10).map(lambda number: take(.25, number))).get_next()
    model = take(4., batch)
    wait = step_timer.add_probe(graph)
    for _ in range(3):
      assert session.run([wait, model])[0] == .25
    # With a single thread the clock could otherwise be read after the model has run.
    clock, = batch.consumers()[0].control_inputs
    assert step_timer.find_ancestors([clock]) >= {batch.op}
