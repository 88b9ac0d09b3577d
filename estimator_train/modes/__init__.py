"""Runs the modes of the program: `--mode=NAME` calls the function `run` of the module NAME."""

import contextlib
import gc
import importlib
import logging
import os
import sys
from typing import Any, Dict, Iterator, List, Optional

from estimator_train.distribution.process import SINGLE_PROCESS, Process, identify_process
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, default_folder, lock, resource_errors
from estimator_train.settings import Settings, user_code
from estimator_train.system import keras_config, progress
from estimator_train.system.library_call import is_library_call
from estimator_train.tf_patches import imports

_LOG = logging.getLogger('estimator_train')
# The modules whose names differ from the names of their modes.
_MODULE_NAMES = {'train_and_evaluate': 'train'}
# These modes do not write to --model_dir. Therefore, they do not lock this folder, and can run
# while another process trains in it.
_READ_ONLY_MODES = ('predict', 'export', 'download', 'doctor', 'write_tfrecords')
# These modes import TensorFlow only in child processes, or not at all.
MODES_WITHOUT_TENSORFLOW = ('download', 'doctor', 'scaling', 'reproduce', 'report')


def run(settings: Settings, process: Optional[Process] = None) -> Dict[str, Any]:
  """Locks `model_dir` if the mode writes to it, runs the mode, and returns its result.

  Args:
    process: if None, TF_CONFIG specifies the role of this process in the cluster.
  """
  flags = settings.run
  if flags.trains and process is None:
    # Errors in TF_CONFIG are reported before the import of TensorFlow, which takes seconds.
    process = identify_process(os.environ, settings.devices.distribution_strategy)
  with contextlib.ExitStack() as stack:
    settings = _lock_model_dir(settings, process, stack)
    run_dir = RunDir(settings.run.model_dir) if settings.run.model_dir else None
    arguments: List[Any] = [settings, run_dir] + ([process] if flags.trains else [])
    previous_save_time_ns = None if run_dir is None else run_dir.last_save_time_ns()
    try:
      module = stack.enter_context(open_mode(flags.mode, flags.verbosity))
      _skip_search_for_xla_clusters(settings)
      result: Dict[str, Any] = module.run(*arguments)
    except Exception as error:
      translated = resource_errors.translate_error(error, settings, run_dir, previous_save_time_ns)
      if translated is None:
        raise
      raise translated from error
  return result


def _lock_model_dir(settings: Settings, process: Optional[Process],
                    stack: contextlib.ExitStack) -> Settings:
  """Locks `model_dir` if the mode writes to it; returns the settings with this folder.

  Training without `model_dir` chooses a folder. All tasks of a cluster need the same folder, and
  would not choose the same one, because they start at different times.
  """
  flags = settings.run
  if flags.trains and flags.model_dir is None:
    assert process is not None
    if process != SINGLE_PROCESS:
      raise UserError('a run of several tasks requires --model_dir', 'this is task {}'.format(
          process.name), 'give --model_dir={} to every task: a folder that all tasks share'.format(
              default_folder.make_base_path(settings)))
    return settings.evolve(model_dir=default_folder.lock_chosen_folder(settings, stack))
  if flags.model_dir is not None and flags.mode not in _READ_ONLY_MODES and (
      process is None or process.is_chief):
    stack.enter_context(lock.lock_folder(
        flags.model_dir,
        flags_digest=default_folder.digest_flags(settings) if flags.trains else None))
    description = default_folder.describe_run_with_default_data(settings) if flags.trains else None
    if description is not None:
      _LOG.info('%s', description)
  return settings


def _skip_search_for_xla_clusters(settings: Settings) -> None:
  """Makes the start faster if nothing in this process can use XLA.

  A process that calls the library, and the functions of a user, can use XLA at any time.
  """
  functions = (settings.model.model, settings.data.dataset, settings.reporting.hooks or '')
  if 'tensorflow' in sys.modules and not (
      is_library_call() or settings.devices.enable_xla
      or any(map(user_code.is_function_name, functions))):
    from estimator_train.tf_patches import environment
    environment.skip_search_for_xla_clusters()


@contextlib.contextmanager
def open_mode(mode: str, verbosity: int) -> Iterator[Any]:
  """Imports the module of a mode, and adapts the settings of TensorFlow and Keras to this package.

  Every mode runs in this context, both in the program and in functions of the library. No setting
  of the user therefore changes a result. The settings are restored at the end of the context.
  """
  with keras_config.ignore_keras_json():
    module = _import_mode(mode)
  with contextlib.ExitStack() as stack:
    if 'tensorflow' in sys.modules:
      from estimator_train.tf_patches import environment, keras
      stack.enter_context(keras.use_default_settings())
      if verbosity <= 0:  # The log shows no deprecations.
        stack.enter_context(environment.without_deprecation_checks())
    yield module


def _import_mode(mode: str) -> Any:
  """Imports the module of a mode, without garbage collection if this may import TensorFlow.

  The garbage collector would repeatedly scan the objects of TensorFlow's modules, although they are
  never freed. `gc.freeze` also excludes these objects from all scans after the import, for example
  while a graph is built.
  """
  name = 'estimator_train.modes.' + _MODULE_NAMES.get(mode, mode)
  if 'tensorflow' in sys.modules or not gc.isenabled():
    return importlib.import_module(name)
  gc.disable()
  try:
    if mode in MODES_WITHOUT_TENSORFLOW:
      return importlib.import_module(name)
    with progress.show_phase('importing TensorFlow'), imports.accelerate_import():
      return importlib.import_module(name)
  finally:
    getattr(gc, 'freeze', lambda: None)()  # CPython 3.6 has no gc.freeze.
    gc.enable()
