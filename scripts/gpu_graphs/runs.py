"""Builds the graph of a run as on a host with GPUs, up to the creation of its session."""

import contextlib
from typing import Any, NamedTuple, Sequence
from unittest import mock

import tensorflow.compat.v1 as tf
import tensorflow_core._api.v1.compat.v1.config.experimental as public_config
from tensorflow.python.client import device_lib
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


@contextlib.contextmanager
def listed_gpus(count):
  """Makes TensorFlow's functions list this number of GPUs."""
  list_physical, list_local = public_config.list_physical_devices, device_lib.list_local_devices

  def list_with_gpus(device_type=None):
    if device_type == 'GPU':
      return [_Gpu('/physical_device:GPU:{}'.format(index)) for index in range(count)]
    return list_physical(device_type)

  with mock.patch.object(public_config, 'list_physical_devices', list_with_gpus), \
      mock.patch.object(tf.config.experimental, 'list_physical_devices', list_with_gpus), \
      mock.patch.object(device_lib, 'list_local_devices', lambda session_config=None: [
          *list_local(session_config),
          *(_Gpu('/device:GPU:{}'.format(index)) for index in range(count))]), \
      mock.patch.object(eager_context, 'num_gpus', lambda: count):
    yield
