"""Loss scaling by several workers: what its graph communicates, and when."""

import json
import sys
import types

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.model.gradients import GlobalNormClipping, WeightAveraging, add_mixins
from estimator_train.model.optimizers import make_optimizer
from estimator_train.tf_patches import strategies
from estimator_train.tf_patches.loss_scaling import LossScalingOptimizer


@pytest.fixture
def worker_strategy(monkeypatch):
  """The strategy of a worker of two that are not started, with two replicas each."""
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'worker': ['127.0.0.1:1', '127.0.0.1:2']},
      'task': {'type': 'worker', 'index': 0}}))
  return strategies.MultiWorkerMirroredStrategy(('/cpu:0', '/cpu:1'), 'RING')


@pytest.fixture
def horovod_strategy(monkeypatch):
  """The strategy of a rank of two, with a stand-in of Horovod."""
  def allreduce(value, op):
    if isinstance(value, tf.IndexedSlices):
      return tf.IndexedSlices(tf.identity(value.values, 'CollectiveGather'), value.indices,
                              value.dense_shape)
    return tf.identity(value, 'CollectiveReduce')

  module = types.SimpleNamespace(size=lambda: 2, Sum='sum', Average='average', allreduce=allreduce)
  monkeypatch.setitem(sys.modules, 'horovod', types.SimpleNamespace(tensorflow=module))
  monkeypatch.setitem(sys.modules, 'horovod.tensorflow', module)
  return strategies.HorovodStrategy('/cpu:0')


@pytest.mark.parametrize('name', ['worker_strategy', 'horovod_strategy'])
@pytest.mark.parametrize('max_norm', [None, 1.])
def test_no_operation_that_communicates_is_conditional(request, name, max_norm):
  """A worker would wait for ever for one that takes another branch."""
  strategy = request.getfixturevalue(name)

  def add_step():
    weight = tf.get_variable('w', (2,), use_resource=True)
    rows = tf.get_variable('rows', (3, 2), use_resource=True)
    optimizer = make_optimizer('momentum', .1)
    add_mixins(optimizer, [(WeightAveraging, {'ema_decay': .5})])
    optimizer = LossScalingOptimizer(optimizer)
    if max_norm is not None:
      add_mixins(optimizer, [(GlobalNormClipping, {'max_norm': max_norm})])
    optimizer.iterations = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(weight ** 2 + tf.gather(rows, [0, 2]))
    return tf.group(*optimizer.get_updates(loss, [weight, rows]))

  with tf.Graph().as_default() as graph, strategy.scope():
    strategy.extended.call_for_each_replica(add_step)
    collectives = [op for op in graph.get_operations()
                   if 'Collective' in op.name and 'Initializer' not in op.name]
    for kind in ('CollectiveReduce', 'CollectiveGather'):
      assert any(kind in op.name for op in collectives)
    # pylint: disable=protected-access
    assert not [op.name for op in collectives if op._get_control_flow_context() is not None]
    updates = [op for op in graph.get_operations() if op.type == 'ResourceApplyKerasMomentum']
    assert len(updates) == len(strategy.extended.worker_devices)
    assert all(op._get_control_flow_context() is not None for op in updates)


def test_sums_are_not_written_over_the_gradients(worker_strategy):
  """Many variables are one all-reduce, without TensorFlow's scoped allocator."""
  config = worker_strategy.update_config_proto(tf.ConfigProto())
  assert not config.graph_options.rewrite_options.scoped_allocator_optimization
  assert config.experimental.collective_group_leader

  def reduce():
    gradients = [tf.ones([count, 2]) for count in range(3)] + [tf.ones([], tf.float64)]
    return tf.distribute.get_replica_context().merge_call(
        lambda strategy, values: strategy.extended.batch_reduce_to(
            tf.distribute.ReduceOp.SUM, [(value, value) for value in values]), args=(gradients,))

  with tf.Graph().as_default() as graph, worker_strategy.scope():
    sums = worker_strategy.extended.call_for_each_replica(reduce)
    shapes = [[copy.shape.as_list() for copy in worker_strategy.experimental_local_results(total)]
              for total in sums]
    assert shapes == [[[count, 2]] * 2 for count in range(3)] + [[[]] * 2]
    collectives = [op for op in graph.get_operations() if op.type == 'CollectiveReduce']
    assert len(collectives) == 2 * 2  # Of each type, on each device.
    assert all(len(op.inputs[0].consumers()) == 1 for op in collectives)
