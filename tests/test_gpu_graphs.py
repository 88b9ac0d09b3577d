"""scripts/check_gpu_graphs.py: graphs on GPUs that do not exist, and what it reads in them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import load_script

script = load_script('check_gpu_graphs')

from gpu_graphs import analysis, cards, kernels, placement, runs  # noqa: E402

pytestmark = pytest.mark.skipif(not tf.test.is_built_with_cuda(),
                                reason='this build of TensorFlow has no GPU kernels')


def placed_step(graph, fetches, **options):
  nodes = placement.place(graph, fetches, **options)
  return nodes, analysis.Step(nodes.values(), [fetch.name for fetch in fetches],
                              graph.as_graph_def().library, graph, 8)


def test_tensorflow_places_a_graph_on_gpus_that_do_not_exist():
  with tf.Graph().as_default() as graph:
    pixels = tf.placeholder(tf.uint8, [8, 5])
    with tf.device('/gpu:1'):
      variable = tf.get_variable('v', [5, 300], use_resource=True)
      part = pixels[:4]  # There is no kernel for uint8.
      output = tf.matmul(tf.cast(part, tf.float32), variable)
      summary = tf.cast(pixels, tf.float32)[:2]
    total = tf.reduce_sum(output)  # No device is requested: the first GPU.
  nodes, step = placed_step(graph, [total], feeds=[pixels], num_gpus=2)
  devices = {name: analysis.short_device(node.device) for name, node in nodes.items()}
  assert devices['v'] == devices['MatMul'] == 'GPU:1' and devices['Sum'] == 'GPU:0'
  assert devices['strided_slice'] == devices['Placeholder'] == analysis.HOST
  assert analysis.soft_placed(graph, nodes, [total]) == {
      'usual': {'StridedSlice uint8': 1}, 'summaries': {}}
  assert {(each.tensor.op.name, each.source, each.target, each.num_bytes, each.consumer)
          for each in step.transfers()} == {
              ('strided_slice', 'host', 'GPU:1', 20, 'Cast'),
              ('MatMul', 'GPU:1', 'GPU:0', 4800, 'Sum'), ('Sum', 'GPU:0', 'host', 4, 'fetch')}
  assert not step.without_kernel()
  nodes = placement.place(graph, [summary], feeds=[pixels])
  assert analysis.short_device(nodes[summary.op.name].device) == 'GPU:0'  # There is only one.


def test_operations_of_summaries_are_counted_separately():
  with tf.Graph().as_default() as graph, tf.device('/gpu:0'):
    loss = tf.reduce_sum(tf.random.uniform([3]))
    image = tf.zeros([3], tf.uint8)[:tf.cast(loss, tf.int32)]
  nodes = placement.place(graph, [loss, image])
  assert analysis.soft_placed(graph, nodes, [loss]) == {
      'usual': {}, 'summaries': {'StridedSlice uint8': 1}}


def test_devices_of_a_cluster_are_placed_on_its_tasks():
  tasks = [('worker', 0), ('worker', 1), ('ps', 0)]
  with tf.Graph().as_default() as graph:
    with tf.device('/job:ps/task:0/cpu:0'):
      variable = tf.get_variable('v', [300], use_resource=True)
    with tf.device('/gpu:0'):
      total = tf.reduce_sum(variable * 2.)
    with tf.device('/job:worker/task:1/gpu:0'):
      other = total + 1.
  _, step = placed_step(graph, [total, other], tasks=tasks)
  assert step.devices['mul'] == 'worker:0 GPU:0' and step.devices['add'] == 'worker:1 GPU:0'
  assert {(each.source, each.target, each.num_bytes) for each in step.transfers()} == {
      ('host', 'worker:0 GPU:0', 1200), ('worker:0 GPU:0', 'worker:1 GPU:0', 4),
      ('worker:0 GPU:0', 'host', 4), ('worker:1 GPU:0', 'host', 4)}


def test_kernels_and_the_tensors_that_they_have_in_host_memory():
  with tf.Graph().as_default():
    bytes_part, floats_part = tf.zeros([3], tf.uint8)[:1].op, tf.zeros([3])[:1].op
    identity, texts = tf.identity_n([tf.zeros([2])])[0].op, tf.constant(['a']).op
  assert kernels.find_kernel(bytes_part, 'CPU') and not kernels.find_kernel(bytes_part, 'GPU')
  assert kernels.find_kernel(identity, 'GPU').device_type == 'DEFAULT'
  # The positions of a slice stay on the host.
  assert kernels.tensors_in_host_memory(floats_part, 'GPU') == (
      [False, True, True, True], [False])
  assert kernels.tensors_in_host_memory(floats_part, 'CPU') == ([True] * 4, [True])
  assert kernels.tensors_in_host_memory(texts, 'GPU')[1] == [True]


@pytest.mark.parametrize('number', [0, 1, 127, 128, 300, 2 ** 40])
def test_fields_of_messages_are_read(number):
  message = b'\x08' + placement.to_varint(number) + b'\x12\x03abc'
  assert list(placement.read_fields(message)) == [(1, number), (2, b'abc')]


def trained_convolution():
  """A graph of a convolution, a dense layer and their gradients, for a batch of 8."""
  with tf.Graph().as_default() as graph, tf.device('/gpu:0'):
    images = tf.random.uniform([8, 16, 16, 32])
    filters = tf.get_variable('filters', [3, 3, 32, 64], use_resource=True)
    matrix = tf.get_variable('matrix', [64, 128], use_resource=True)
    hidden = tf.nn.relu(tf.nn.conv2d(images, filters, strides=2, padding='SAME'))
    logits = tf.matmul(tf.reduce_mean(hidden, [1, 2]), matrix)
    loss = tf.reduce_mean(tf.nn.log_softmax(logits))
    # What is fetched is never converted to float16.
    norms = [tf.nn.l2_loss(gradient) for gradient in tf.gradients(loss, [images, filters, matrix])]
  return graph, [loss, *norms]


def test_multiplications_are_counted():
  step = placed_step(*trained_convolution())[1]
  counts = {}
  for operation in step.operations:
    count = cards.count_operations(step, operation)
    if count:
      counts.setdefault(operation.type, []).append(count)
  convolution, product = 2 * 8 * 8 * 8 * 64 * 3 * 3 * 32, 2 * 8 * 64 * 128
  assert counts == {'Conv2D': [convolution], 'Conv2DBackpropInput': [convolution],
                    'Conv2DBackpropFilter': [convolution], 'MatMul': [product] * 3}


@pytest.mark.parametrize('card, share', [('P100', 0), ('V100', 1), ('T4', 1)])
def test_mixed_precision_depends_on_the_card(card, share):
  step = placed_step(*trained_convolution())[1]
  config = tf.ConfigProto()
  config.graph_options.rewrite_options.auto_mixed_precision = 1
  optimized = cards.optimize(step, config, cards.CARDS[card])
  work = cards.measure_work(optimized.step, cards.CARDS[card])
  assert work.float16_share == share and not work.unknown
  assert optimized.peak_memory > np.prod([8, 16, 16, 32]) * 4
  plain = cards.measure_work(step, cards.CARDS[card])
  assert sum(work.multiplications.values()) == sum(plain.multiplications.values())
  # Neither all multiplications nor all bytes can take longer than the sum of both.
  assert plain.secs_at_peak >= sum(plain.multiplications.values()) / cards.CARDS[card].float32
  assert plain.secs_at_peak >= plain.traffic / cards.CARDS[card].bandwidth


@pytest.mark.parametrize('name, all_reduce', [
    ('fashion_mnist.flags, 2', 'NcclAllReduce'), ('accumulation, 2', 'NcclAllReduce'),
    ('horovod, second', 'CollectiveReduce')])
def test_only_the_batch_and_scalars_cross(name, all_reduce):
  selected, = script.select([name], False)
  result = script.check_in_child(selected, [])
  assert list(script.find_faults(result)) == []
  assert result['without_kernel'] == {} and result['soft_placed'] == {
      'usual': {}, 'summaries': {}}
  assert result['batch'] == 'uint8 100,352 + float32 5,120 B, prefetched'
  (kind, sizes), = result['all_reduces'].items()
  # Horovod also sums the loss.
  assert kind == all_reduce and sum(sizes) - 4 * 93322 in (0, 4)


@pytest.mark.parametrize('uses, conflicts', [
    ([], []), ([None, runs.GpuUse('a session', True, [1])], []),
    ([runs.GpuUse('a session', True, [1]), runs.GpuUse('a list', False, [1, 2])], []),
    ([runs.GpuUse('a list', False, [1]), runs.GpuUse('a session', True, [1])],
     ['a list is the first to use GPUs, with another memory growth']),
    ([runs.GpuUse('a session', True, [1]), runs.GpuUse('a list', True, [0, 1])],
     ['a list uses other GPUs'])])
def test_conflicts_between_users_of_gpus(uses, conflicts):
  config = tf.ConfigProto()
  config.gpu_options.allow_growth, config.gpu_options.visible_device_list = True, '1'
  assert list(runs.find_conflicts(uses, config, 2)) == conflicts


def test_users_of_gpus_are_recorded():
  config = tf.ConfigProto()
  config.gpu_options.visible_device_list = '1'
  with runs.listed_gpus(2) as uses:
    gpus = tf.config.experimental.list_physical_devices('GPU')
    tf.config.experimental.set_memory_growth(gpus[1], True)
    tf.config.experimental.set_visible_devices(gpus[1:], 'GPU')
    tf.Session().close()
    tf.Session(config=config).close()
    tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})).close()
    assert len(runs.device_lib.list_local_devices(config)) == 1 + len(
        runs.device_lib.list_local_devices(tf.ConfigProto(device_count={'GPU': 0})))
    runs.eager_context.ensure_initialized()
  assert uses == [('a session', False, [0, 1]), ('a session', False, [1]), None,
                  ('a list of devices', False, [1]), None, ('the eager context', True, [1])]


@pytest.mark.parametrize('name', ['evaluation, 1', 'prediction', 'export'])
def test_images_do_not_return_from_the_gpu(name):
  selected, = script.select([name], False)
  result = script.check_in_child(selected, [])
  assert list(script.find_faults(result)) == [] and result['operations_on_gpus'] > 40
  assert not [tensor for _, tensor in result['transfers']['out']['largest'] if 'uint8' in tensor]


def result_with(**changes):
  transfers = {kind: {'sizes': [], 'unknown': 0, 'largest': []}
               for kind in ('in', 'out', 'between')}
  return dict({
      'name': 'a run', 'trains': True, 'batch_size': 10,
      'operations': 1500, 'operations_on_gpus': 1400,
      'soft_placed': {'usual': {}, 'summaries': {}}, 'transfers': transfers, 'batch': 'none',
      'constants': 0, 'conflicts': [], 'all_reduces': {}, 'needs_all_reduce': False,
      'cards': {}}, **changes)


@pytest.mark.parametrize('changes, fault', [
    ({}, None),
    ({'error': 'it failed'}, 'it failed'),
    ({'soft_placed': {'usual': {'StridedSlice uint8': 2}, 'summaries': {}}},
     'without GPU kernel: 2 StridedSlice uint8'),
    ({'soft_placed': {'usual': {}, 'summaries': {'StridedSlice uint8': 2}}}, None),
    ({'needs_all_reduce': True}, 'no all-reduce'),
    ({'constants': 2 * 10 ** 7}, 'constants of 20 MB'),
    ({'conflicts': ['a session uses other GPUs']}, 'a session uses other GPUs'),
    ({'transfers': {'in': {'sizes': [4, 1025], 'unknown': 0}, 'between': {'sizes': [9999]},
                    'out': {'sizes': [4], 'unknown': 0}}}, '1 tensors from the host of 1.02 kB'),
    ({'transfers': {'in': {'sizes': [], 'unknown': 0}, 'between': {'sizes': []},
                    'out': {'sizes': [], 'unknown': 3}}}, '3 tensors to the host of unknown size'),
    ({'cards': {'V100': {'needs_float16': True, 'float16_share': .5}}}, 'float16 on V100: 50%'),
    ({'cards': {'P100': {'needs_float16': False, 'float16_share': .5}}}, None)],
                         ids=lambda value: '' if isinstance(value, dict) else str(value))
def test_faults(changes, fault):
  result = result_with(**changes)
  assert list(script.find_faults(result)) == ([(fault, None)] if fault else [])
  assert script.has_fault(result) == bool(fault)
  *_, row = script.placement_table([result])
  assert row.endswith('| {} |'.format(fault or 'none'))


def test_known_faults_have_a_reason():
  transfers = {'in': {'sizes': [9999], 'unknown': 0}, 'between': {'sizes': []},
               'out': {'sizes': [], 'unknown': 0}}
  result = result_with(name='central_storage, 2 GPUs', transfers=transfers)
  (_, reason), = script.find_faults(result)
  assert reason == 'the strategy keeps the variables on the CPU' and not script.has_fault(result)


def test_predictions_are_shown():
  figures = {'float16_share': .99, 'casts': 3, 'transposes': 2, 'memory': 5e9, 'operations': 2e9,
             'secs_at_peak': .002, 'float32': {'MatMul': 1}}
  *_, row = script.cards_table([result_with(cards={'V100': figures})])
  assert row == '| a run | V100 | 99% | 3 | 2 | 5 GB | 2.0 | 2.00 ms | 5,000 | 1 MatMul |'
