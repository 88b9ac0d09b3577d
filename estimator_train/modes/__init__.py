"""What `--mode=NAME` does: a module of that name, or that of _MODULES, with a function `run`."""

import contextlib
import gc
import importlib
import os
import sys
from typing import Any, ContextManager, Dict

from estimator_train.cluster import tf_config
from estimator_train.run_dir import disk_errors, run_files, run_lock
from estimator_train.settings import Settings

_MODULES = {'train': 'train_and_evaluate'}
# The modes that leave nothing in --model_dir, whoever else writes into it.
_ONLY_READING = ('predict', 'export', 'download', 'doctor')


def run(settings: Settings) -> Dict[str, Any]:
  """Runs the mode of these settings, alone in its `model_dir` where it writes into that.

  Returns:
    The result of the mode.
  """
  with _lock(settings):
    saved_at = run_files.saved_at(settings.model_dir)
    module = _MODULES.get(settings.mode, settings.mode)
    try:
      return _import('estimator_train.modes.' + module).run(settings)
    except Exception as error:
      told = disk_errors.told(error, settings, saved_at)
      if told is None:
        raise
      raise told from error


def _lock(settings: Settings) -> ContextManager[Any]:
  """Returns what holds the lock of `model_dir`, where the mode writes into that."""
  # Before TensorFlow is imported, which takes seconds.
  tasks = tf_config.of_run(os.environ, settings.distribution_strategy) if settings.trains else None
  is_reader = settings.mode in _ONLY_READING or (tasks is not None and not tasks.is_chief)
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
