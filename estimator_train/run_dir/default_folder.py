"""Chooses the folder of a training run without `--model_dir`.

The folder is `runs/DATASET-MODEL` or, if this folder has another run, `runs/DATASET-MODEL-2`, `-3`
and so on. A run is identified by the flags in its `flags.txt`:

- A command with the same flags resumes the run. A command with other flags gets the next number,
  whether the other run has finished or not, because resuming with other flags would mix two runs.
- If the other run has ended before its first step, for example because an image could not be
  decoded, nothing is lost with it. The new run replaces it.
- The values of the flags are compared. It does not matter whether they come from a flagfile, the
  command line or a default. If a later version changes a default, the same command line is another
  command. A flag that is newer than the recorded run had its default in that run.
- Paths are compared as they were given. Like `runs/`, they refer to the current folder.
- Functions are compared by their names, and by the folder of the script that trains. Functions of a
  notebook differ in each process.
"""

import contextlib
import difflib
import glob
import hashlib
import logging
import os
import re
from typing import AbstractSet, Dict, List, NamedTuple, Optional, Set

from estimator_train.errors import UserError, printable
from estimator_train.run_dir import FLAGS_FILE, RunDir, find_origin
from estimator_train.run_dir.lock import FolderLocked, lock_folder
from estimator_train.settings import Settings, to_texts
from estimator_train.settings.flags import FLAGS_OF_A_NEW_RUN, OUTPUT_FLAGS, RUNS_FOLDER

_LOG = logging.getLogger('estimator_train')
# These flags do not identify a run.
_UNCOMPARED_FLAGS = ('model_dir', 'step_timeout_secs', *OUTPUT_FLAGS)
_MAX_NAME_LENGTH = 40


class RunFolder(NamedTuple):
  """The folder of a training run without `--model_dir`.

  Attributes:
    is_resumed: whether the folder has a run with the same flags.
    reason: which folder was chosen, and why, in one line.
  """
  path: str
  is_resumed: bool
  reason: str


def choose_folder(settings: Settings, starting: AbstractSet[str] = frozenset(),
                  replaces_runs_without_steps: bool = False) -> RunFolder:
  """Chooses the folder of a training run with these flags.

  Args:
    starting: folders in which other processes are starting runs with other flags.
    replaces_runs_without_steps: whether the folder may have a run with other flags that has not
      completed a step. The caller must lock the folder and discard this run.
  """
  base_path = make_base_path(settings)
  last_number, last_differences = 0, ''
  for number, path in sorted(_find_numbered_paths(base_path).items()):
    differences = 'is the folder of a run that is starting' if path in starting else (
        _describe_differences(path, settings))
    if differences == '':
      return RunFolder(path, True, '{0} has a run with the same flags, which this command resumes; '
                       'for a new run, give --model_dir=FOLDER'.format(printable(path)))
    if differences is not None and not (
        replaces_runs_without_steps and path not in starting and _has_run_without_steps(path)):
      last_number, last_differences = number, differences
  path, last_path = (_number_path(base_path, number) for number in (last_number + 1, last_number))
  text = 'new run in ' + printable(path)
  if os.path.lexists(os.path.join(path, FLAGS_FILE)):
    text += ', in place of a run with other flags that ended before its first step'
  if last_number:
    text += ', because {0} {1}; to continue that run, give --model_dir={0}'.format(
        printable(last_path), last_differences)
  return RunFolder(path, False, text)


def lock_chosen_folder(settings: Settings, stack: contextlib.ExitStack) -> str:
  """Chooses the folder of a training run, locks the folder, and returns its path.

  Two processes that start at the same time never use the same folder.

  Args:
    stack: keeps the folder locked until it is closed.

  Raises:
    UserError: the same command is running in another process, or the folder is not writable.
  """
  starting: Set[str] = set()
  while True:
    folder = choose_folder(settings, starting, replaces_runs_without_steps=True)
    with contextlib.ExitStack() as attempt:
      try:
        attempt.enter_context(lock_folder(folder.path, flags_digest=digest_flags(settings)))
      except FolderLocked as error:
        # A run that is starting has not written its flags yet, but its lock file has their digest.
        if folder.is_resumed or error.flags_digest == digest_flags(settings):
          raise
        starting.add(folder.path)
        continue
      # Another run may have ended in the folder before this process locked it.
      if choose_folder(settings, starting, replaces_runs_without_steps=True) == folder:
        if _has_run_without_steps(folder.path) and not folder.is_resumed:
          RunDir(folder.path).discard_initial_state()
        _LOG.info('%s', folder.reason)
        stack.enter_context(attempt.pop_all())
        return folder.path


def describe_run_with_default_data(settings: Settings) -> Optional[str]:
  """Describes a new run in `--model_dir` whose data and model nobody has given; None for others.

  Such a run may be due to a mistyped name of the folder of a run that was to be continued. The
  launcher gives a default folder as `--model_dir`, whose name states the data and the model.
  """
  run_dir = RunDir(settings.run.model_dir)
  if (settings.given.all_names.intersection(FLAGS_OF_A_NEW_RUN) or run_dir.last_checkpoint()
      or run_dir.path.startswith(make_base_path(settings))
      or os.path.lexists(run_dir.path_to(FLAGS_FILE))):
    return None
  similar_path = find_similar_run(run_dir.path)
  return '{} has no run: training {} on {} (the defaults) in a new one{}'.format(
      printable(run_dir.path), settings.model.model, settings.data.dataset,
      '; did you mean {}?'.format(printable(similar_path)) if similar_path else '')


def find_similar_run(path: str) -> Optional[str]:
  """Returns the path of the run that a path without a run may mean; None if there is none."""
  parent, name = os.path.split(os.path.normpath(path))
  runs = glob.glob(os.path.join(glob.escape(parent), '*', FLAGS_FILE))
  similar_names = difflib.get_close_matches(
      name, sorted(os.path.basename(os.path.dirname(run)) for run in runs), 1)
  return None if similar_names in ([], [name]) else os.path.join(parent, similar_names[0])


def digest_flags(settings: Settings) -> str:
  """Returns a digest of what identifies a run: the values of its flags, and its functions."""
  texts = to_texts(settings)
  compared = [(name, texts[name]) for name in _list_compared_flags(settings)]
  return hashlib.md5(repr((compared, find_origin(settings))).encode(
      'utf-8', 'surrogateescape')).hexdigest()


def make_base_path(settings: Settings) -> str:
  """Returns `runs/DATASET-MODEL`. Characters that a file name should not have become `_`."""
  names = [os.path.basename(os.path.abspath(name)) if os.sep in name
           else name.replace('__main__:', '').replace(':', '.')
           for name in (settings.data.dataset, settings.model.model)]
  return os.path.join(RUNS_FOLDER, '-'.join(
      re.sub(r'[^\w.-]+', '_', name)[-_MAX_NAME_LENGTH:].strip('.-') or '_' for name in names))


def _number_path(base_path: str, number: int) -> str:
  return base_path if number == 1 else '{}-{}'.format(base_path, number)


def _find_numbered_paths(base_path: str) -> Dict[int, str]:
  """Returns the existing paths `runs/DATASET-MODEL`, `runs/DATASET-MODEL-2`, … by number."""
  try:
    names = os.listdir(RUNS_FOLDER)
  except OSError:  # There is no such folder. Other errors are reported when it is written to.
    return {}
  pattern = re.compile(re.escape(os.path.basename(base_path)) + r'(?:-([1-9]\d*))?')
  matches = filter(None, map(pattern.fullmatch, names))
  numbers = {int(match.group(1) or 1) for match in matches}
  return {number: _number_path(base_path, number) for number in numbers
          if os.path.lexists(_number_path(base_path, number))}


def _describe_differences(path: str, settings: Settings) -> Optional[str]:
  """Describes how a run differs from these flags; '' if it does not, None if there is no run."""
  run_dir = RunDir(path)
  if not os.path.isdir(path):
    return 'is not a folder'
  if not os.path.lexists(run_dir.path_to(FLAGS_FILE)):
    # A run that failed before it recorded its flags may have left other files.
    return None if run_dir.last_checkpoint() is None else (
        'has a checkpoint without ' + FLAGS_FILE)
  try:
    differences = run_dir.flag_differences(settings, _list_compared_flags(settings))
    origins = [origin or 'this folder' for origin in (run_dir.read_origin(), find_origin(settings))]
    if origins[0] != origins[1]:
      differences.append('functions of {} before and of {} now'.format(*origins))
  except UserError:
    return 'has a damaged ' + FLAGS_FILE
  more = len(differences) - 1
  return '' if not differences else 'has a run with other flags ({}{})'.format(
      differences[0], ', and {} more'.format(more) if more else '')


def _has_run_without_steps(path: str) -> bool:
  run_dir = RunDir(path)
  return os.path.lexists(run_dir.path_to(FLAGS_FILE)) and run_dir.has_only_initial_state()


def _list_compared_flags(settings: Settings) -> List[str]:
  return [name for name, _ in settings.items() if name not in _UNCOMPARED_FLAGS]
