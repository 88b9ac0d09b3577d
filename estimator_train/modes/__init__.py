"""What `--mode=NAME` does: a module of that name, or that of _MODULES, with a function `run`."""

import contextlib
import gc
import importlib
import os
import sys
from typing import Any, ContextManager, Dict, Optional

from estimator_train.cluster import worker as workers
from estimator_train.cluster.worker import Worker
from estimator_train.run_dir import disk_errors, run_lock
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_MODULES = {'train': 'train_and_evaluate'}
# The modes that leave nothing in --model_dir, whoever else writes into it.
_ONLY_READING = ('predict', 'export', 'download', 'doctor')


def run(settings: Settings, worker: Optional[Worker] = None) -> Dict[str, Any]:
  """Runs the mode of these settings, alone in its `model_dir` where it writes into that.

  Args:
    settings: of the run.
    worker: which process of the run this is; None: as TF_CONFIG says.

  Returns:
    The result of the mode.
  """
  # Before TensorFlow is imported, which takes seconds.
  if worker is None and settings.trains:
    worker = workers.find(os.environ, settings.distribution_strategy)
  with _lock(settings[groups.Run], worker):
    saved_at = RunDir(settings.model_dir).saved_at() if settings.model_dir else None
    module = _MODULES.get(settings.mode, settings.mode)
    try:
      mode = _import('estimator_train.modes.' + module)
      return mode.run(settings, worker) if settings.trains else mode.run(settings)
    except Exception as error:
      told = disk_errors.told(error, settings, saved_at)
      if told is None:
        raise
      raise told from error


def _lock(settings: groups.Run, worker: Optional[Worker]) -> ContextManager[Any]:
  """Returns what holds the lock of `model_dir`, where the mode writes into that."""
  is_reader = settings.mode in _ONLY_READING or (worker is not None and not worker.is_chief)
  if is_reader or not settings.model_dir:
    return contextlib.ExitStack()
  return run_lock.held(settings.model_dir)


def _import(name: str) -> Any:
  """Imports a module, and with it TensorFlow, without looking for garbage in what is imported.

  Python looks through all objects again and again while they grow in number, then and later while
  a graph is built; those of TensorFlow's modules stay to the end.
  """
  puts_off = gc.isenabled() and 'tensorflow' not in sys.modules
  if puts_off:
    gc.disable()
  try:
    return importlib.import_module(name)
  finally:
    if puts_off:
      getattr(gc, 'freeze', lambda: None)()  # Of CPython 3.7.
      gc.enable()
