"""The probe that measures how long a step waits for its batch."""

import tensorflow.compat.v1 as tf

from estimator_train.training.hooks import input_wait


def test_without_a_pipeline_nothing_is_observed():
  with tf.Graph().as_default() as graph:
    tf.zeros([]) + tf.placeholder(tf.float32)
    assert input_wait.add_probe(graph) is None


def test_the_last_replicas_batch_counts(monkeypatch):
  times = iter([3., 3.25, 3., 3.5, 3., 3.125])
  monkeypatch.setattr(tf, 'timestamp', lambda: tf.constant(next(times), tf.float64))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    for _ in range(3):
      tf.data.make_one_shot_iterator(tf.data.Dataset.range(10)).get_next()
    assert session.run(input_wait.add_probe(graph)) == .5


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
    wait = input_wait.add_probe(graph)
    for _ in range(3):
      assert session.run([wait, model])[0] == .25
    # With a single thread the clock could otherwise be read after the model has run.
    clock, = batch.consumers()[0].control_inputs
    assert input_wait.find_ancestors([clock]) >= {batch.op}
