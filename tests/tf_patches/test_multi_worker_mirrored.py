"""A Python function sums the gradients of several workers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import cross_device_utils, values

from estimator_train.tf_patches.multi_worker_mirrored import PythonAllReduce

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class TwoEqualWorkers:
  """Sums as if another worker had the same values."""

  def __init__(self):
    self.calls = []

  def all_reduce(self, operation, arrays):
    self.calls.append((operation, len(arrays)))
    return [array + array for array in arrays]


@pytest.fixture
def workers():
  with tf.Graph().as_default():
    yield TwoEqualWorkers()


def reduce_all(workers, how, *per_value, num_devices=1):
  """Reduces values, each of which is a list of the tensors of all devices."""
  devices = ['/cpu:{}'.format(index) for index in range(num_devices)]
  device_map = values.ReplicaDeviceMap(devices)
  reduced = workers.cross_device_ops._batch_all_reduce(how, [
      values.PerReplica(device_map, tuple(tensors)) for tensors in per_value])
  # TensorFlow does not wrap the value of a single device.
  return [getattr(value, 'values', (value,)) for value in reduced]


@pytest.fixture
def ops(workers):
  workers.cross_device_ops = PythonAllReduce(
      workers.all_reduce, num_workers=2, num_gpus_per_worker=1,
      collective_keys=cross_device_utils.CollectiveKeys())
  return workers


def run(tensors):
  with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
    return session.run(tensors)


@pytest.mark.parametrize('how, divisor', [(SUM, 1), (MEAN, 4)])
def test_sums_over_devices_and_workers(ops, how, divisor):
  one, other = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(7)
  tensors = []
  for index in range(2):
    with tf.device('/cpu:{}'.format(index)):
      tensors.append([tf.constant(one + index), tf.constant(other + index)])
  reduced = reduce_all(ops, how, *zip(*tensors), num_devices=2)
  assert [value.shape.as_list() for replicas in reduced for value in replicas] == [
      [2, 3], [2, 3], [], []]
  assert [value.device[-1] for value in reduced[0]] == ['0', '1']
  for replicas, value in zip(run(reduced), (one, other)):
    for replica in replicas:
      np.testing.assert_array_equal(replica, 2 * (value + value + 1) / divisor)
  assert ops.calls == [(0, 2)]


def test_operations_are_executed_in_the_order_of_the_graph(ops):
  delayed = tf.py_func(lambda: np.float32(1), [], tf.float32)
  delayed.set_shape(())
  for _ in range(20):  # These take time, so that the second reduction is ready first.
    delayed = delayed + 0.
  first = reduce_all(ops, SUM, [delayed])
  second = reduce_all(ops, SUM, [tf.constant(2.)])
  assert run([second, first]) == [[(4.,)], [(2.,)]]
  assert run(second) == [(4.,)]
  assert [number for number, _ in ops.calls] == [0, 1, 0, 1]


def test_collective_operations_in_conditions(ops):
  """An operation of a branch that is not executed must not delay those after the condition."""
  def reduce_in_branch():
    with tf.device('/cpu:0'):
      (reduced,), = reduce_all(ops, SUM, [tf.constant(1.)])
    return reduced

  tf.cond(tf.placeholder(tf.bool, ()), reduce_in_branch, lambda: tf.constant(0.))
  after = reduce_all(ops, SUM, [tf.constant(2.)])
  assert any(operation.type == 'CollectiveReduce'
             for operation in tf.get_default_graph().get_operations())
  assert run(after) == [(4.,)] and ops.calls == [(0, 1)]
