"""Selects the engine of a process: the object that trains the Estimator; see Engine."""

import importlib
import logging
import os

from estimator_train.distribution.devices import Devices
from estimator_train.distribution.engines.engine import Engine
from estimator_train.distribution.process import EVALUATOR, Process
from estimator_train.settings import Settings
from estimator_train.settings.choices import MULTI_WORKER_STRATEGIES

_LOG = logging.getLogger('estimator_train')
# The modules and classes, which other runs do not import.
_CLUSTER_ENGINES = {
    'multi_worker_mirrored': ('cluster_engine', 'CollectiveEngine'),
    'parameter_server': ('cluster_engine', 'ParameterServerEngine'),
    'horovod': ('horovod', 'HorovodEngine'),
}


def make_engine(settings: Settings, process: Process, devices: Devices) -> Engine:
  """Makes the engine of a process that trains or evaluates.

  Raises:
    UserError: the batch size is not divisible by the number of replicas.
    ValueError: the strategy is not implemented for several workers.
  """
  strategy = settings.devices.distribution_strategy
  if process.size > 1 and process.role != EVALUATOR:
    if strategy not in _CLUSTER_ENGINES:
      raise ValueError('no engine for several workers is implemented for {!r}'.format(strategy))
    if process.cluster is not None:
      os.environ['TF_CONFIG'] = process.cluster.to_tf_config()
    module_name, class_name = _CLUSTER_ENGINES[strategy]
    module = importlib.import_module('{}.{}'.format(__name__, module_name))
    engine: Engine = getattr(module, class_name)(settings, process, devices)
    return engine
  if settings.run.trains and strategy in MULTI_WORKER_STRATEGIES and process.role != EVALUATOR:
    _LOG.info('--distribution_strategy=%s with one worker: TF_CONFIG %s', strategy,
              'names no other task' if 'TF_CONFIG' in os.environ else 'is not set'
              + (', and no launcher has started several processes' if strategy == 'horovod'
                 else ''))
  # TensorFlow reads TF_CONFIG, too, and would connect to the other tasks.
  os.environ.pop('TF_CONFIG', None)
  return Engine(settings, process, devices)
