"""A Python function sums the gradients of several workers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import cross_device_utils, values

from estimator_train.tf_patches.multi_worker_mirrored import PythonAllReduce

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class Workers:
  """Reduces and sums as if another worker had the same values."""

  def __init__(self):
    self.calls = []
    self._ops = PythonAllReduce(self._all_reduce, num_workers=2, num_gpus_per_worker=1,
                                collective_keys=cross_device_utils.CollectiveKeys())

  def _all_reduce(self, operation, arrays):
    self.calls.append((operation, len(arrays)))
    return [array + array for array in arrays]

  def reduce(self, how, *per_value):
    """Reduces values, each of which is a list of the tensors of all devices."""
    device_map = values.ReplicaDeviceMap(
        ['/cpu:{}'.format(index) for index in range(len(per_value[0]))])
    reduced = self._ops._batch_all_reduce(how, [
        values.PerReplica(device_map, tuple(tensors)) for tensors in per_value])
    # TensorFlow does not wrap the value of a single device.
    return [getattr(value, 'values', (value,)) for value in reduced]


@pytest.fixture
def workers():
  with tf.Graph().as_default():
    yield Workers()


def run(tensors):
  with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
    return session.run(tensors)


@pytest.mark.parametrize('how, divisor', [(SUM, 1), (MEAN, 4)])
def test_sums_over_devices_and_workers(workers, how, divisor):
  given = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(7)
  tensors = []
  for index in range(2):
    with tf.device('/cpu:{}'.format(index)):
      tensors.append([tf.constant(value + index) for value in given])
  reduced = workers.reduce(how, *zip(*tensors))
  assert [value.shape.as_list() for replicas in reduced for value in replicas] == [
      [2, 3], [2, 3], [], []]
  assert [value.device[-1] for value in reduced[0]] == ['0', '1']
  for replicas, value in zip(run(reduced), given):
    for replica in replicas:
      np.testing.assert_array_equal(replica, 2 * (value + value + 1) / divisor)
  assert workers.calls == [(0, 2)]


def test_operations_are_executed_in_the_order_of_the_graph(workers):
  delayed = tf.py_func(lambda: np.float32(1), [], tf.float32)
  delayed.set_shape(())
  for _ in range(20):  # These take time, so that the second reduction is ready first.
    delayed = delayed + 0.
  first, second = workers.reduce(SUM, [delayed]), workers.reduce(SUM, [tf.constant(2.)])
  assert run([second, first]) == [[(4.,)], [(2.,)]]
  assert run(second) == [(4.,)]
  assert [number for number, _ in workers.calls] == [0, 1, 0, 1]


def test_collective_operations_in_conditions(workers):
  """An operation of a branch that is not executed must not delay those after the condition."""
  def reduce_in_branch():
    with tf.device('/cpu:0'):
      (reduced,), = workers.reduce(SUM, [tf.constant(1.)])
    return reduced

  tf.cond(tf.placeholder(tf.bool, ()), reduce_in_branch, lambda: tf.constant(0.))
  after = workers.reduce(SUM, [tf.constant(2.)])
  assert any(operation.type == 'CollectiveReduce'
             for operation in tf.get_default_graph().get_operations())
  assert run(after) == [(4.,)] and workers.calls == [(0, 1)]
