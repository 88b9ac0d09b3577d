"""Builds, places, optimizes and analyses the graph of a configuration, in a process of its own."""

import contextlib
import itertools
import json
import logging
import os
import sys
import tempfile
import types
import warnings
from unittest import mock

import tensorflow.compat.v1 as tf
from PIL import Image
from tensorflow.python.ops import collective_ops

import estimator_train
from estimator_train import Settings, modes
from estimator_train.distribution import engines
from estimator_train.settings import command_line, workloads
from gpu_graphs import analysis, cards, models, placement, runs
from gpu_graphs.configurations import all_configurations

# The flags of a run on the CPU that makes a checkpoint for the other modes.
CHECKPOINT_FLAGS = {'num_gpus': 0, 'train_steps': 1, 'train_epochs': None, 'batch_size': 8,
                    'report_page': False}


def check(name, card_names):
  """Returns the figures of a configuration as plain data; see check_gpu_graphs.py."""
  if not tf.test.is_built_with_cuda():
    sys.exit('error: the check requires a build of TensorFlow with GPU kernels: this one has none: '
             'run it in an environment with tensorflow==1.15.0')
  warnings.simplefilter('ignore')
  logging.getLogger('estimator_train').setLevel(logging.ERROR)
  configuration = all_configurations()[name]
  if num_replicas(configuration) > 1:  # Each GPU has the same work as a single one.
    card_names = []
  with tempfile.TemporaryDirectory() as folder:
    settings = make_settings(configuration, folder)
    built, conflicts = build(configuration, settings)
  batch_size = models.BATCH_SIZE if settings is None else (
      settings.optimizer.batch_size // num_replicas(configuration))
  tasks = [(job, index) for job, count in configuration.cluster for index in range(count)]
  if not tasks or is_horovod(configuration):  # With Horovod, TensorFlow itself sees no cluster.
    tasks = [('localhost', 0)]
  nodes = placement.place(built.graph, [*built.usual, *built.summaries], built.feeds,
                          configuration.num_gpus, tasks)
  library = built.graph.as_graph_def().library
  placed = analysis.Step(nodes.values(), [fetch.name for fetch in built.usual], library,
                         built.graph, batch_size)
  step = cards.optimize(placed, built.config, cards.CARDS['V100']).step
  return {
      'name': name, 'trains': configuration.run in ('train', 'resume', 'convert'),
      'batch_size': batch_size, 'operations': len(nodes),
      'operations_on_gpus': sum(device != analysis.HOST for device in placed.devices.values()),
      'soft_placed': analysis.soft_placed(built.graph, nodes, built.usual, built.feeds),
      'without_kernel': step.without_kernel(), 'conflicts': conflicts,
      'constants': sum(node.ByteSize() for node in step.graph_def.node if node.op == 'Const'),
      'all_reduces': step.all_reduces(),
      'needs_all_reduce': needs_all_reduce(configuration, settings),
      **summarize_transfers(step),
      'cards': {card: summarize_card(
          cards.optimize(placed.with_static_batch(), built.config, cards.CARDS[card]),
          cards.CARDS[card], settings) for card in card_names}}


def is_horovod(configuration):
  return configuration.flags.get('distribution_strategy') == 'horovod'


def num_replicas(configuration):
  num_workers = sum(count for job, count in configuration.cluster if job != 'ps') or 1
  return configuration.flags.get('num_gpus', configuration.num_gpus) * num_workers


def make_settings(configuration, folder):
  """Returns the settings of a run; None if it does not use them."""
  if configuration.run == 'convert':
    return None
  flags = {'train_steps': 1000, 'num_gpus': configuration.num_gpus, 'model_dir': folder,
           'seed': 1, 'batch_size': 128, **configuration.flags}
  flags['batch_size'] *= num_replicas(configuration)
  if configuration.flagfile is None:
    return Settings(**flags)
  settings = command_line.parse(['--flagfile={}/{}.flags'.format(
      workloads.FLAGFILES_DIR, configuration.flagfile)])
  # Other images of the same shape have the same graph on the GPUs.
  if settings.data.dataset == 'oct2017':
    flags.update(dataset='synthetic', image_size=(224, 224, 3), labels=tuple('0123'))
  else:
    flags['dataset'] = 'fashion_mnist_sample'
  return settings.evolve(data_dir=None, eval_every_steps=None, **flags)


def build(configuration, settings):
  """Returns the runs.BuiltGraph of a configuration, and runs.find_conflicts of its process."""
  if configuration.run in ('resume', 'evaluate', 'predict', 'export'):
    estimator_train.train(settings.evolve(mode='train', **CHECKPOINT_FLAGS))
  with runs.listed_gpus(configuration.num_gpus) as uses:
    built = build_on_listed_gpus(configuration, settings)
    return built, list(runs.find_conflicts(uses, built.config, configuration.num_gpus))


def build_on_listed_gpus(configuration, settings):
  if configuration.cluster:
    with stand_in_cluster(configuration):
      return runs.build(lambda: run_task(settings))
  if configuration.run == 'export':
    return build_export(settings)
  if configuration.run == 'convert':
    return runs.build(lambda: train_converted(configuration.num_gpus))
  if configuration.run == 'predict':
    picture = os.path.join(settings.run.model_dir, 'picture.png')
    Image.new('L', (28, 28)).save(picture)
    return runs.build(lambda: list(estimator_train.predict(settings.evolve(input=picture))),
                      predicts=True)
  evaluates = configuration.run == 'evaluate'
  return runs.build(lambda: (estimator_train.evaluate if evaluates else estimator_train.train)(
      settings))


def run_task(settings):
  settings = settings.for_mode('train').evolve(step_timeout_secs=0)
  modes.run(settings)


@contextlib.contextmanager
def stand_in_cluster(configuration):
  """Makes this process a task of a cluster whose other tasks do not exist."""
  addresses = {job: ['127.0.0.1:{}'.format(placement.free_port()) for _ in range(count)]
               for job, count in configuration.cluster}
  task = {'type': configuration.cluster[0][0], 'index': configuration.task_index}
  with mock.patch.dict(os.environ, TF_CONFIG=json.dumps({'cluster': addresses, 'task': task})), \
      mock.patch.object(engines, '_make_cluster_peers', lambda *unused: mock.MagicMock()), \
      mock.patch.object(engines.HorovodEngine, '_make_peers', lambda engine: mock.MagicMock()), \
      mock.patch.dict(sys.modules, stand_in_horovod(num_replicas(configuration))):
    yield


def stand_in_horovod(size):
  """Returns modules in place of Horovod, whose operations TensorFlow does not have.

  Its all-reduce is TensorFlow's CollectiveReduce, one for each tensor.
  """
  keys = itertools.count(1)
  module = types.ModuleType('horovod.tensorflow')
  module.Sum, module.Average = 'Id', 'Div'
  module.size, module.rank = lambda: size, lambda: 0
  module.allreduce = lambda value, op: collective_ops.all_reduce(
      value, size, 1, next(keys), 'Add', op)
  module.broadcast = lambda value, root: tf.identity(value)
  package = types.ModuleType('horovod')
  package.tensorflow = module
  return {'horovod': package, 'horovod.tensorflow': module}


def train_converted(num_gpus):
  with tempfile.TemporaryDirectory() as folder:
    estimator = estimator_train.convert(models.compiled_model(), model_dir=folder,
                                        distribution_strategy='mirrored', num_gpus=num_gpus)
    estimator.train(models.batches, steps=1000)


def build_export(settings):
  """Exports on the CPU, and returns the graph of the SavedModel."""
  with tempfile.TemporaryDirectory() as folder:
    result = estimator_train.export(settings.evolve(export_dir=folder))
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
      meta_graph = tf.saved_model.load(session, ['serve'], result['path'])
      signature = meta_graph.signature_def['images']
      find = lambda tensors: [graph.get_tensor_by_name(each.name) for each in tensors.values()]
      return runs.BuiltGraph(graph, find(signature.outputs), feeds=find(signature.inputs),
                             config=tf.ConfigProto())


def needs_all_reduce(configuration, settings):
  if settings is None:
    return num_replicas(configuration) > 1
  if configuration.run not in ('train', 'resume') or num_replicas(configuration) == 1:
    return False
  flags = settings.devices
  return flags.distribution_strategy in ('mirrored', 'multi_worker_mirrored') and (
      flags.all_reduce_alg in (None, 'nccl'))


def summarize_transfers(step):
  """Returns the batch of a replica as text, and the other transfers by direction."""
  found = {kind: {'sizes': [], 'unknown': 0, 'largest': []} for kind in ('in', 'out', 'between')}
  batch = {}
  first_gpu = step.gpus()[0] if step.gpus() else None
  for transfer in step.transfers():
    if transfer.is_batch:
      if transfer.target == first_gpu:
        batch[transfer.tensor.name] = transfer
      continue
    kind = 'in' if transfer.source == analysis.HOST else (
        'out' if transfer.target == analysis.HOST else 'between')
    if transfer.num_bytes is None:
      found[kind]['unknown'] += 1
    else:
      found[kind]['sizes'].append(transfer.num_bytes)
    found[kind]['largest'].append((transfer.num_bytes or -1, '{} {} {} > {}'.format(
        transfer.tensor.name, transfer.tensor.dtype.name, transfer.tensor.shape,
        transfer.consumer)))
  for each in found.values():
    each['largest'] = sorted(each['largest'], reverse=True)[:20]
  return {'transfers': found, 'batch': describe_batch(batch.values())}


def describe_batch(transfers):
  """Returns the types and the bytes of a batch as text."""
  parts = ['{} {}'.format(transfer.tensor.dtype.name, '?' if transfer.num_bytes is None else
                          '{:,}'.format(transfer.num_bytes))
           for transfer in sorted(transfers, key=lambda each: -(each.num_bytes or 0))]
  prefetched = any(transfer.consumer == 'prefetched' for transfer in transfers)
  return ' + '.join(parts) + (' B, prefetched' if prefetched else ' B' if parts else 'none')


def summarize_card(optimized, card, settings):
  work = cards.measure_work(optimized.step, card)
  is_mixed = settings is not None and settings.devices.dtype == 'mixed'
  heavy = (*cards.CONVOLUTIONS, *cards.MATMULS)
  count = lambda kind: sum(number for name, number in work.kinds.items()
                           if name.split()[0] == kind)
  return {
      'float16_share': work.float16_share,
      'needs_float16': is_mixed and card.architecture >= '7.0',
      'casts': count('Cast'), 'transposes': count('Transpose'), 'memory': optimized.peak_memory,
      'operations': sum(work.multiplications.values()), 'traffic': work.traffic,
      'secs_at_peak': work.secs_at_peak, 'unknown': work.unknown,
      'float32': {name.split()[0]: number for name, number in work.kinds.items()
                  if name.split()[0] in heavy and name.endswith(' float32')}}
