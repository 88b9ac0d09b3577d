"""How the processes of a run train together, one module for each way."""

import logging
import os
from typing import Dict, Type

from estimator_train.cluster.worker import EVALUATOR, Worker
from estimator_train.distribution.devices import Devices
from estimator_train.distribution.engines.collective import Collective
from estimator_train.distribution.engines.engine import Engine
from estimator_train.distribution.engines.parameter_server import ParameterServer
from estimator_train.settings import Settings
from estimator_train.settings.choices import MULTI_WORKER_STRATEGIES

_LOG = logging.getLogger('estimator_train')
_OF_SEVERAL_WORKERS: Dict[str, Type[Engine]] = {
    'multi_worker_mirrored': Collective,
    'parameter_server': ParameterServer,
}


def make_engine(settings: Settings, worker: Worker, devices: Devices) -> Engine:
  """Makes the engine of a process that trains or evaluates.

  Raises:
    UserError: the batch size cannot be divided among the replicas.
    ValueError: no engine of several workers is implemented for the strategy.
  """
  strategy = settings.distribution_strategy
  if worker.size > 1 and worker.role != EVALUATOR:
    if strategy not in _OF_SEVERAL_WORKERS:
      raise ValueError('no strategy of several workers is implemented for {!r}'.format(strategy))
    return _OF_SEVERAL_WORKERS[strategy](settings, worker, devices)
  if settings.trains and strategy in MULTI_WORKER_STRATEGIES and worker.role != EVALUATOR:
    _LOG.info('--distribution_strategy=%s with one worker: TF_CONFIG %s', strategy,
              'names no other' if 'TF_CONFIG' in os.environ else 'is not set')
  # TensorFlow, which reads it too, is to train or evaluate in this process alone.
  os.environ.pop('TF_CONFIG', None)
  return Engine(settings, worker, devices)
