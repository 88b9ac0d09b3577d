"""Sessions of steps, and a small canned Estimator, for the tests of hooks."""

from types import SimpleNamespace

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.model import observation
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.training import steps


def make_run(end_step, event_dir=None, num_examples=None, log_every_steps=1):
  """What hooks read of a Run, with ten examples per step."""
  return SimpleNamespace(
      end_step=end_step, event_dir=event_dir,
      clock=StepClock(((0, 10),), num_examples),
      engine=SimpleNamespace(examples_per_step=10),
      settings=SimpleNamespace(reporting=SimpleNamespace(log_every_steps=log_every_steps)))


class Steps:
  """A hook that others read, and the steps that it counts."""

  def __init__(self):
    self.last = steps.StepMonitor()

  def run(self, losses, *hooks, before_step=lambda step: None, start=0, has_accuracy=True):
    """Runs steps with these losses, whose accuracy is a tenth of the loss, until a hook stops them.

    Returns:
      The number of steps.
    """
    with tf.Graph().as_default():
      step = tf.train.get_or_create_global_step()
      assign, train_op = step.assign(start), step.assign_add(1)
      loss = tf.placeholder_with_default(0., ())
      tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
      if has_accuracy:
        is_first = tf.cast(tf.range(100) < tf.cast(loss * 10 + .5, tf.int32), tf.int64)
        observation.add_accuracy(tf.ones([100], tf.int64), tf.one_hot(is_first, 2))
      scaffold = tf.train.Scaffold(init_fn=lambda _, session: session.run(assign))
      done = 0
      with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold),
                                     [self.last, *hooks]) as session:
        while not session.should_stop() and done < len(losses):
          before_step(done + 1)
          session.run(train_op, {loss: losses[done]})
          done += 1
    return done


def readings(*secs):
  """Returns a clock that shows these times, one after the other."""
  return iter(secs).__next__


FEATURES = np.random.RandomState(0).normal(size=(64, 4)).astype(np.float32)
CLASSES = (FEATURES[:, 0] > 0).astype(np.int32)


def dataset(batch_size=16):
  data = tf.data.Dataset.from_tensor_slices((FEATURES, CLASSES)).repeat().batch(batch_size)
  return data.map(lambda features, labels: ({'x': features}, labels))


def canned(folder, **options):
  return tf.estimator.DNNClassifier(
      [8], [tf.feature_column.numeric_column('x', shape=4)], model_dir=str(folder),
      config=tf.estimator.RunConfig(**options))


def train_in_session(hooks, steps, make_fetches=lambda fetches: fetches, **options):
  """Trains on the numbers 0, 1, 2, … in a MonitoredTrainingSession; returns what was read."""
  read = []
  with tf.Graph().as_default():
    number = tf.data.make_one_shot_iterator(tf.data.Dataset.range(100)).get_next()
    step = tf.train.create_global_step().assign_add(1)
    fetches = make_fetches([step, number])
    with tf.train.MonitoredTrainingSession(
        hooks=[tf.train.StopAtStepHook(last_step=steps), *hooks], **options) as session:
      while not session.should_stop():
        read.append(session.run(fetches))
  return read
