"""How many threads run operations and input, and that they do."""

import os
import threading

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.datasets.description import DataSet
from estimator_train.distribution import threads
from estimator_train.inputs import factory
from estimator_train.inputs.batching import Batching
from estimator_train.process import cpu_tuning
from estimator_train.settings import Settings, groups

NONE_SECS, MOST_SECS = .3, 30.


def settings_of(**values):
  return Settings(model_dir='x', train_steps=1, **values)


@pytest.fixture
def build(monkeypatch):
  """Pretends that TensorFlow is built with oneDNN, or without."""
  def pretend(has_onednn):
    monkeypatch.setattr(cpu_tuning, 'has_onednn', lambda: has_onednn)
  return pretend


@pytest.mark.parametrize('has_onednn, given, operations, private', [
    (False, {}, 0, 0),
    (False, {'num_parallel_calls': 5}, 0, 0),
    (True, {}, 1, len(os.sched_getaffinity(0))),
    (True, {'num_parallel_calls': 5}, 1, 5),
    (True, {'inter_op_parallelism_threads': 3, 'num_parallel_calls': 5}, 3, 5),
    (False, {'inter_op_parallelism_threads': 1, 'num_parallel_calls': 5}, 1, 5),
])
def test_numbers(build, has_onednn, given, operations, private):
  build(has_onednn)
  settings = settings_of(**given)
  assert threads.inter_op_threads(settings) == operations
  assert threads.private_threadpool_size(
      settings[groups.Input], settings[groups.Devices]) == private
  batching = factory.make_batching(DataSet('x', ('a', 'b'), (2, 2, 1), None, None), settings, False,
                                   examples_per_batch=1)
  assert batching.private_threadpool_size == private
  assert batching.num_queued_calls == (0 if given.get('num_parallel_calls') else
                                       len(os.sched_getaffinity(0)))


def config_of(inter_op, **given):
  config = tf.ConfigProto()
  threads.set_thread_counts(config, settings_of(inter_op_parallelism_threads=inter_op,
                                     intra_op_parallelism_threads=7), **given)
  return config


@pytest.mark.parametrize('has_onednn, inter_op, threads_of_its_own', [
    (False, 0, []), (True, 0, [1]), (True, 3, [3])])
def test_set_up(build, has_onednn, inter_op, threads_of_its_own):
  build(has_onednn)
  config = config_of(inter_op)
  assert config.intra_op_parallelism_threads == 7
  assert [pool.num_threads for pool in config.session_inter_op_thread_pool] == threads_of_its_own
  assert config.inter_op_parallelism_threads == sum(threads_of_its_own)


def test_sessions_of_clusters_have_their_servers_threads():
  config = config_of(3, in_cluster=True)
  assert config.inter_op_parallelism_threads == 3 and not config.session_inter_op_thread_pool


class Meeting:
  """A function for graphs that tells whether it ran twice at once, at some time."""

  def __init__(self, wait_secs):
    self._barrier = threading.Barrier(2)
    self._wait_secs = wait_secs

  def __call__(self, value):
    try:
      self._barrier.wait(self._wait_secs)
      return True
    except threading.BrokenBarrierError:
      return False


@pytest.mark.parametrize('inter_op', [1, 2])
def test_operations_at_once_whatever_the_first_session_had(inter_op):
  with tf.Graph().as_default():
    with tf.Session(config=tf.ConfigProto(inter_op_parallelism_threads=3 - inter_op)) as first:
      first.run(tf.constant(1))
    meeting = Meeting(NONE_SECS if inter_op == 1 else MOST_SECS)
    both = [tf.py_func(meeting, [number], tf.bool) for number in range(2)]
    with tf.Session(config=config_of(inter_op)) as session:
      assert session.run(both) == [inter_op == 2] * 2


@pytest.mark.parametrize('private', [0, 1, 2])
def test_input_has_its_own_threads(private):
  meeting = Meeting(MOST_SECS if private == 2 else NONE_SECS)
  batching = Batching((1, 1, 1), 2, one_hot=False, examples_per_batch=1,
                      private_threadpool_size=private)
  with tf.Graph().as_default():
    examples = batching.prefetch_batches(tf.data.Dataset.range(2).map(
        lambda number: tf.py_func(meeting, [number], tf.bool), num_parallel_calls=2))
    following = tf.data.make_one_shot_iterator(examples).get_next()
    with tf.Session(config=config_of(1)) as session:
      assert [session.run(following) for _ in range(2)] == [private == 2] * 2
