"""Builds the graph of a run as on a host with GPUs, up to the creation of its session."""

import contextlib
from typing import Any, NamedTuple, Sequence
from unittest import mock

import tensorflow.compat.v1 as tf
import tensorflow_core._api.v1.compat.v1.config.experimental as public_config
from tensorflow.python.client import device_lib, session as client_session
from tensorflow.python.eager import context as eager_context
from tensorflow.python.training import monitored_session

from estimator_train.training import evaluation

# Their tensors are fetched at logged steps only.
SUMMARY_HOOKS = ('WriteSummaries', 'SummarySaverHook', 'LogEpochs')


class BuiltGraph(NamedTuple):
  """A complete graph, and what its steps fetch and feed.

  Attributes:
    usual: the tensors and operations that each step fetches.
    summaries: the tensors and operations that only logged steps fetch.
    config: the tf.ConfigProto of the session.
  """
  graph: tf.Graph
  usual: Sequence[Any]
  summaries: Sequence[Any] = ()
  feeds: Sequence[Any] = ()
  config: Any = None


class _Built(Exception):
  """Ends a run whose graph is complete."""

  def __init__(self, built):
    super().__init__('the graph is complete')
    self.built = built


def build(run, predicts=False):
  """Calls a function that trains, evaluates or predicts, and returns the BuiltGraph."""
  try:
    with mock.patch.object(monitored_session, 'MonitoredSession', _RecordingSession), \
        mock.patch.object(evaluation._EvaluationGraph, 'evaluate', _record_evaluation), \
        mock.patch.object(tf.Session, 'make_callable',
                          _record_callable if predicts else tf.Session.make_callable):
      run()
  except _Built as end:
    return end.built
  raise ValueError('the run ended without a step')


def _record_evaluation(self, checkpoint, samples, is_stop_requested):
  """Ends a run at the first batch of an evaluation."""
  graph = self.session.graph
  raise _Built(BuiltGraph(graph, _operands(graph, [self._update_op, samples.tensors_to_fetch()]),
                          config=self.session._config))


def _record_callable(self, fetches, feed_list=None):
  """Ends a run when it makes the function that predicts."""
  raise _Built(BuiltGraph(self.graph, _operands(self.graph, fetches), feeds=list(feed_list or ()),
                          config=self._config))


class _RecordingSession:
  """Takes the place of a MonitoredSession, and ends a run at its first step.

  As in the original, the hooks can extend the graph first.
  """

  def __init__(self, session_creator=None, hooks=(), **unused_options):
    self._hooks, self._config = hooks, session_creator._config
    for hook in hooks:
      hook.begin()
    session_creator._scaffold.finalize()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    pass

  def should_stop(self):
    return False

  def run(self, fetches, feed_dict=None):
    usual, summaries = [fetches], []
    context = tf.train.SessionRunContext(tf.train.SessionRunArgs(fetches), None)
    for hook in self._hooks:
      arguments = hook.before_run(context)
      if arguments is not None:
        (summaries if type(hook).__name__ in SUMMARY_HOOKS else usual).append(arguments.fetches)
    graph = tf.get_default_graph()
    raise _Built(BuiltGraph(graph, _operands(graph, usual), _operands(graph, summaries),
                            config=self._config))


def _operands(graph, structure):
  """Returns the tensors and operations in a structure of fetches, without duplicates."""
  found = {}
  for fetch in tf.nest.flatten(structure, expand_composites=True):
    if fetch is not None:
      element = graph.as_graph_element(fetch)
      found.setdefault(element.name, element)
  return list(found.values())


class _Gpu(NamedTuple):
  """A GPU in the lists of tf.config and device_lib."""
  name: str
  device_type: str = 'GPU'
  memory_limit: int = 16 << 30
  physical_device_desc: str = 'device: 0, name: V100, compute capability: 7.0'
  locality: Any = None


class GpuUse(NamedTuple):
  """A request that makes TensorFlow create its devices for GPUs.

  The first one determines for the whole process whether the memory of a GPU may grow. If two of
  them give a device of TensorFlow different GPUs, TensorFlow raises an error.

  Attributes:
    user: what creates the devices.
    indices: the GPUs, in the order of TensorFlow's devices.
  """
  user: str
  memory_growth: bool
  indices: Sequence[int]

  @classmethod
  def from_config(cls, user, config, num_gpus):
    """Returns the GpuUse of a session; None if the session has no GPU."""
    if config is not None and config.device_count.get('GPU') == 0:
      return None
    options = tf.GPUOptions() if config is None else config.gpu_options
    indices = [int(index) for index in options.visible_device_list.split(',') if index]
    return cls(user, options.allow_growth, indices or list(range(num_gpus)))


@contextlib.contextmanager
def listed_gpus(count):
  """Makes TensorFlow's functions list this number of GPUs. Yields the GpuUses of the block."""
  list_physical, list_local = public_config.list_physical_devices, device_lib.list_local_devices
  gpus = [_Gpu('/physical_device:GPU:{}'.format(index)) for index in range(count)]
  uses, visible, growing = [], gpus[:], set()

  def list_with_gpus(device_type=None):
    return gpus if device_type == 'GPU' else list_physical(device_type)

  def set_visible(devices, device_type):
    assert device_type == 'GPU'
    visible[:] = devices

  def list_local_with_gpus(session_config=None):
    use = GpuUse.from_config('a list of devices', session_config, count)
    uses.append(use)
    return [*list_local(), *(
        _Gpu('/device:GPU:{}'.format(index)) for index in range(len(use.indices) if use else 0))]

  def start_session(session, target='', graph=None, config=None):
    uses.append(GpuUse.from_config('a session', config, count))
    if config is not None and config.gpu_options.visible_device_list:
      config = config.__deepcopy__()  # The real list of devices has no such GPUs.
      config.gpu_options.ClearField('visible_device_list')
    return original_start(session, target, graph, config)

  def initialize_context():
    uses.append(GpuUse('the eager context', bool(growing), [gpus.index(gpu) for gpu in visible]))
    return original_initialize()

  original_start, original_initialize = (
      client_session.BaseSession.__init__, eager_context.ensure_initialized)
  with contextlib.ExitStack() as stack:
    for module in (public_config, tf.config.experimental):
      stack.enter_context(mock.patch.multiple(
          module, list_physical_devices=list_with_gpus, set_visible_devices=set_visible,
          set_memory_growth=lambda gpu, enable: (growing.add if enable else growing.discard)(gpu)))
    stack.enter_context(mock.patch.object(device_lib, 'list_local_devices', list_local_with_gpus))
    stack.enter_context(mock.patch.object(client_session.BaseSession, '__init__', start_session))
    stack.enter_context(mock.patch.multiple(
        eager_context, num_gpus=lambda: len(visible), ensure_initialized=initialize_context))
    yield uses


def find_conflicts(uses, config, num_gpus):
  """Yields the conflicts between the GpuUses of a process and the configuration of its run."""
  run = GpuUse.from_config('the run', config, num_gpus)
  uses = [use for use in uses if use is not None]
  if run is None or not uses:
    return
  if uses[0].memory_growth != run.memory_growth:
    yield '{} is the first to use GPUs, with another memory growth'.format(uses[0].user)
  for user in sorted({use.user for use in uses if any(
      mine != other for mine, other in zip(use.indices, run.indices))}):
    yield '{} uses other GPUs'.format(user)
