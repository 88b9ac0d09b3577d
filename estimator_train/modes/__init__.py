"""Runs the modes of the program: `--mode=NAME` calls the function `run` of the module NAME."""

import contextlib
import gc
import importlib
import os
import sys
from typing import Any, ContextManager, Dict, Optional

from estimator_train.distribution.process import Process, this_process
from estimator_train.run_dir import RunDir, disk_errors, run_lock
from estimator_train.settings import Settings
from estimator_train.settings.flags import RunFlags
from estimator_train.system.progress import Phase

# Modes whose module has another name than the mode.
_MODULE_NAMES = {'train_and_evaluate': 'train'}
# These modes do not write to --model_dir. They do not lock this folder, so they can run while
# another process trains in it.
_READ_ONLY_MODES = ('predict', 'export', 'download', 'doctor', 'write_tfrecords')
# These modes import TensorFlow only in child processes, or not at all.
_MODES_WITHOUT_TENSORFLOW = ('download', 'doctor', 'scaling', 'reproduce', 'report')


def run(settings: Settings, process: Optional[Process] = None) -> Dict[str, Any]:
  """Runs the mode that the settings name, and locks `model_dir` if the mode writes to this folder.

  Args:
    settings: settings of the run.
    process: role of this process in the cluster; None: the role that TF_CONFIG specifies.

  Returns:
    The result of the mode.
  """
  # Errors in TF_CONFIG are reported before the import of TensorFlow, which takes seconds.
  if process is None and settings.run.trains:
    process = this_process(os.environ, settings.devices.distribution_strategy)
  with _lock(settings.run, process):
    previous_save_time_ns = (
        RunDir(settings.run.model_dir).last_save_time_ns() if settings.run.model_dir else None)
    module_name = _MODULE_NAMES.get(settings.run.mode, settings.run.mode)
    try:
      with _import_phase(settings.run.mode):
        module = _import_without_gc('estimator_train.modes.' + module_name)
      with _without_deprecation_checks(settings.run.verbosity):
        return module.run(settings, process) if settings.run.trains else module.run(settings)
    except Exception as error:
      translated = disk_errors.translate_error(error, settings, previous_save_time_ns)
      if translated is None:
        raise
      raise translated from error


def _import_phase(mode: str) -> ContextManager[Any]:
  """Returns a context that logs `importing TensorFlow` if this process will import TensorFlow."""
  if mode in _MODES_WITHOUT_TENSORFLOW or 'tensorflow' in sys.modules:
    return contextlib.ExitStack()
  return Phase('importing TensorFlow')


def _without_deprecation_checks(verbosity: int) -> ContextManager[Any]:
  """Disables TensorFlow's checks for deprecated arguments if the log does not show the warnings."""
  if verbosity > 0 or 'tensorflow' not in sys.modules:
    return contextlib.ExitStack()
  from estimator_train.tf_patches import sessions
  return sessions.without_deprecation_checks()


def _lock(flags: RunFlags, process: Optional[Process]) -> ContextManager[Any]:
  """Returns a context that locks `model_dir` if this process writes to the folder.

  Args:
    flags: the flags of the group `run`.
    process: role of this process in the cluster; None if the mode does not train.
  """
  is_reader = flags.mode in _READ_ONLY_MODES or (process is not None and not process.is_chief)
  if is_reader or not flags.model_dir:
    return contextlib.ExitStack()
  return run_lock.locked(flags.model_dir)


def _import_without_gc(name: str) -> Any:
  """Disables the garbage collector, and imports a module that may import TensorFlow.

  When objects are created, the garbage collector repeatedly scans all existing objects. Scanning
  the objects of TensorFlow's modules is useless, because these objects are never freed. `gc.freeze`
  excludes the objects from scans after the import, for example while a graph is built.
  """
  disables_gc = gc.isenabled() and 'tensorflow' not in sys.modules
  if disables_gc:
    gc.disable()
  try:
    return importlib.import_module(name)
  finally:
    if disables_gc:
      getattr(gc, 'freeze', lambda: None)()  # CPython 3.6 has no gc.freeze.
      gc.enable()
