"""The modes of the program: `--mode=NAME` calls `run` in the module NAME or _MODULE_NAMES[NAME]."""

import contextlib
import gc
import importlib
import os
import sys
from typing import Any, ContextManager, Dict, Optional

from estimator_train.cluster import worker as workers
from estimator_train.cluster.worker import Worker
from estimator_train.process.phases import Phase
from estimator_train.run_dir import disk_errors, run_lock
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_MODULE_NAMES = {'train': 'train_and_evaluate'}
# These modes do not write to --model_dir, so they can run while another process writes to it.
_READ_ONLY_MODES = ('predict', 'export', 'download', 'doctor')
# These modes import TensorFlow in child processes, or not at all.
_MODES_WITHOUT_TENSORFLOW = ('download', 'doctor', 'scaling', 'reproduce')


def run(settings: Settings, worker: Optional[Worker] = None) -> Dict[str, Any]:
  """Runs the mode of the settings; holds the lock of `model_dir` if the mode writes to it.

  Args:
    settings: settings of the run.
    worker: role of this process in the cluster; None to read it from TF_CONFIG.

  Returns:
    The result of the mode.
  """
  # Errors in TF_CONFIG are reported before the import of TensorFlow, which takes seconds.
  if worker is None and settings.trains:
    worker = workers.make_worker(os.environ, settings.distribution_strategy)
  with _lock(settings[groups.Run], worker):
    saved_before_ns = RunDir(settings.model_dir).last_save_ns() if settings.model_dir else None
    module = _MODULE_NAMES.get(settings.mode, settings.mode)
    try:
      with _import_phase(settings.mode):
        mode = _import_without_gc('estimator_train.modes.' + module)
      return mode.run(settings, worker) if settings.trains else mode.run(settings)
    except Exception as error:
      translated = disk_errors.translate_error(error, settings, saved_before_ns)
      if translated is None:
        raise
      raise translated from error


def _import_phase(mode: str) -> ContextManager[Any]:
  """Returns a context that logs the import of a mode as a phase if it imports TensorFlow."""
  if mode in _MODES_WITHOUT_TENSORFLOW or 'tensorflow' in sys.modules:
    return contextlib.ExitStack()
  return Phase('importing TensorFlow')


def _lock(settings: groups.Run, worker: Optional[Worker]) -> ContextManager[Any]:
  """Returns a context that locks `model_dir` if this process writes to it."""
  is_reader = settings.mode in _READ_ONLY_MODES or (worker is not None and not worker.is_chief)
  if is_reader or not settings.model_dir:
    return contextlib.ExitStack()
  return run_lock.locked(settings.model_dir)


def _import_without_gc(name: str) -> Any:
  """Imports a module, and with it TensorFlow, without garbage collection.

  While objects are created, during the import and later while a graph is built, Python repeatedly
  scans all existing objects. The objects of TensorFlow's modules are never freed, so they are
  excluded from these scans.
  """
  pause_gc = gc.isenabled() and 'tensorflow' not in sys.modules
  if pause_gc:
    gc.disable()
  try:
    return importlib.import_module(name)
  finally:
    if pause_gc:
      getattr(gc, 'freeze', lambda: None)()  # CPython 3.7 and later.
      gc.enable()
