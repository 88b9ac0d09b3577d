"""Finds the checkpoint from which a run starts, and recovers a damaged model_dir."""

import contextlib
import glob
import logging
import os
import re
import shutil
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint
from estimator_train.checkpoints.pinned_files import (
  SavedCheckpoint,
  pin_found,
  pin_if_intact,
  pinned_files,
)
from estimator_train.distribution.process import EVALUATOR, Process
from estimator_train.errors import PeerLost, UserError, one_line
from estimator_train.run_dir import (
  CHECKPOINTS_FILE,
  RunDir,
  listed_checkpoints,
  lists_other_folders,
)
from estimator_train.settings import Settings
from estimator_train.settings.flags import NAMED_CHECKPOINTS
from estimator_train.system import temporary_files
from estimator_train.tf_patches import checkpoints as checkpoint_patches

_LOG = logging.getLogger('estimator_train')
_CHECKPOINT_FILE = re.compile(r'model\.ckpt-(\d+)\.(index|data-\d+-of-\d+)$')
_LISTED_NAME = re.compile(r'model\.ckpt-(\d+)$')
# The temporary names that TensorFlow uses, and the folders that can contain them.
_TEMPORARY_NAME = re.compile(r'model\.ckpt-\d+_temp_\w+$|.+\.tmp[0-9a-f]{32}$')
_FOLDERS_OF_TENSORFLOW = ('', 'keras')
_POLL_INTERVAL_SECS = 1.


class Start(NamedTuple):
  """Where a run starts.

  Attributes:
    checkpoint: the path of the checkpoint to resume from, or to evaluate; None: there is none.
    step: the global step of the checkpoint; 0 if there is no checkpoint.
    recorded: the folder of the run that has saved the checkpoint.
  """
  checkpoint: Optional[str]
  step: int
  recorded: RunDir


def find_start(settings: Settings, run_dir: RunDir, process: Process,
               checkpoint_to_evaluate: Optional[SavedCheckpoint]) -> Start:
  """Finds the checkpoint to resume from, or to evaluate.

  Args:
    checkpoint_to_evaluate: the return value of open_checkpoint; None if the run trains.

  Raises:
    PeerLost: this process is the evaluator, and the chief has not saved a checkpoint in time.
    UserError: there are checkpoints, but none of them loads.
  """
  recorded = run_dir_of_checkpoint(settings, run_dir)
  if checkpoint_to_evaluate is not None:
    return Start(checkpoint_to_evaluate.files, checkpoint_to_evaluate.global_step, recorded)
  if process.role == EVALUATOR:
    checkpoint = _wait_for_checkpoint(run_dir, settings.cluster.start_timeout_secs)
    return Start(checkpoint, _read_step(checkpoint), recorded)
  return Start(*find_intact_checkpoint(run_dir.path), recorded)


def _wait_for_checkpoint(run_dir: RunDir, timeout_secs: int) -> str:
  """Waits until the chief has saved a first checkpoint, and pins the latest one.

  Raises:
    PeerLost: no checkpoint was saved within `timeout_secs`.
  """
  deadline = time.monotonic() + timeout_secs
  while True:
    latest = latest_checkpoint(run_dir.path)
    if latest is not None:
      with contextlib.suppress(FileNotFoundError):  # The chief has deleted it: take the next one.
        return best_checkpoint.pin(latest, run_dir.path, EVALUATOR)
    if time.monotonic() > deadline:
      raise PeerLost('no checkpoint appeared in {} within {} s (--start_timeout_secs)'.format(
          run_dir.path, timeout_secs))
    time.sleep(_POLL_INTERVAL_SECS)


def latest_checkpoint(model_dir: str) -> Optional[str]:
  """Returns the path of the latest checkpoint in TensorFlow's list; None if there is none."""
  if '://' in model_dir:  # Such as gs://bucket/run, with `convert`.
    path: Optional[str] = tf.train.latest_checkpoint(model_dir)
    return path
  latest = next(iter(listed_checkpoints(model_dir)), None)
  exists = latest and (os.path.isfile(latest + '.index') or os.path.isfile(latest))
  return latest if exists else None


def latest_checkpoint_and_step(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint; (None, 0) if there is none."""
  path = latest_checkpoint(model_dir)
  if path is None:
    return None, 0
  return path, _read_step(path)


def _read_step(checkpoint: str) -> int:
  return int(tf.train.load_variable(checkpoint, tf.GraphKeys.GLOBAL_STEP))


def find_intact_checkpoint(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint that can be read completely.

  See pin_intact_checkpoint. The result is (None, 0) if no checkpoint was saved completely.
  """
  with contextlib.ExitStack() as stack:
    found = pin_intact_checkpoint(model_dir, stack)
  return (None, 0) if found is None else (found.path, found.global_step)


def pin_intact_checkpoint(model_dir: str, stack: contextlib.ExitStack) -> Optional[SavedCheckpoint]:
  """Finds the latest checkpoint that can be read completely, and keeps it readable.

  First tries the latest checkpoint in TensorFlow's `checkpoint` file, which lists a checkpoint only
  when all files of the checkpoint are complete. Then tries all other checkpoints, the newest first.
  Reads all values, because only reading verifies the checksums. Changes no file. Logs which
  checkpoints were skipped, and why. If another process saves and deletes checkpoints meanwhile,
  the search begins again.

  Args:
    stack: keeps the checkpoint readable until the stack is closed.

  Returns:
    The checkpoint; None if no checkpoint was saved completely.

  Raises:
    UserError: there are checkpoints, but no checkpoint loads. A run that was killed while it saved
      its first checkpoint causes no error.
  """
  found: Optional[SavedCheckpoint]
  skip_reasons: Dict[int, str]
  while True:
    listed_steps, steps = _steps_in_checkpoint_file(model_dir), _steps_on_disk(model_dir)
    found, skip_reasons = None, {}
    with contextlib.ExitStack() as attempt:
      for step in dict.fromkeys(listed_steps[:1] + steps):
        try:
          found = pin_if_intact(_checkpoint_path(model_dir, step), step, attempt)
          break
        except (OSError, ValueError) as error:
          skip_reasons[step] = '{}: {}'.format(_checkpoint_path(model_dir, step), one_line(
              getattr(error, 'strerror', None) or str(error)))
      if not skip_reasons or (listed_steps, steps) == (
          _steps_in_checkpoint_file(model_dir), _steps_on_disk(model_dir)):
        stack.enter_context(attempt.pop_all())
        break
  # The first checkpoint is that of step 0: if only this one is incomplete, nothing is lost.
  if found is None and any(step > 0 or step in listed_steps for step in skip_reasons):
    raise UserError('no checkpoint in --model_dir can be loaded', '; '.join(skip_reasons.values()),
                    'restore a copy of a checkpoint, or give another --model_dir to start over; '
                    'nothing was deleted')
  for reason in skip_reasons.values():
    _LOG.warning('skipping a checkpoint that cannot be loaded: %s', reason)
  return found


def use_own_checkpoints(model_dir: str) -> None:
  """Replaces paths of other folders in TensorFlow's list of checkpoints.

  TensorFlow itself would restore, and delete, the checkpoints of the folder from which this one was
  copied or moved.

  Raises:
    UserError: the latest checkpoint is not in the folder, or the list cannot be written.
  """
  if '://' in model_dir or not lists_other_folders(model_dir):
    return
  latest, *others = listed_checkpoints(model_dir) or [model_dir]
  if latest_checkpoint(model_dir) is None:
    raise UserError("the latest checkpoint in TensorFlow's list is missing", latest,
                    'copy its files, or remove {} to start over'.format(
                        os.path.join(model_dir, CHECKPOINTS_FILE)))
  try:
    checkpoint_patches.write_checkpoint_state(model_dir, latest, [
        path for path in others if os.path.exists(path + '.index')] + [latest])
  except (tf.errors.OpError, OSError) as error:
    raise UserError("TensorFlow's list of checkpoints has paths of another folder",
                    '{} ({})'.format(os.path.join(model_dir, CHECKPOINTS_FILE), error),
                    'make the folder writable') from error


def repair_model_dir(model_dir: str, checkpoint: Optional[str]) -> None:
  """Makes TensorFlow resume from a checkpoint, and removes unfinished files.

  A checkpoint that does not load stays until the run saves that step again. Deletions of
  checkpoints that a killed run had begun are completed, because TensorFlow would keep the remaining
  files.

  Args:
    model_dir: no other process may write to it.
    checkpoint: the path that `find_intact_checkpoint` returns for this directory.

  Raises:
    UserError: a FIFO, for example, has the name of a file of a checkpoint. Saving would block.
  """
  for name in filter(_CHECKPOINT_FILE.match, os.listdir(model_dir)):
    path = os.path.join(model_dir, name)
    if os.path.exists(path) and not os.path.isfile(path):
      raise UserError('a file of a checkpoint is not a regular file', path, 'remove it')
  remove_unfinished_files(model_dir)
  if checkpoint is None:
    return
  listed_steps = _steps_in_checkpoint_file(model_dir)
  resumed_step = int(checkpoint.rpartition('-')[2])
  unlisted_steps = [step for step in _steps_on_disk(model_dir)
                    if step < resumed_step and step not in listed_steps]
  for step in unlisted_steps:
    if not os.path.exists(_checkpoint_path(model_dir, step) + '.index'):
      for path in glob.glob(glob.escape(_checkpoint_path(model_dir, step)) + '.*'):
        os.remove(path)
  if listed_steps[:1] != [resumed_step] or unlisted_steps or lists_other_folders(model_dir):
    # Lists all checkpoints, because TensorFlow deletes old checkpoints only if the file lists them.
    paths = [_checkpoint_path(model_dir, step) for step in reversed(_steps_on_disk(model_dir))
             if step <= resumed_step]
    checkpoint_patches.write_checkpoint_state(model_dir, checkpoint, paths)


def remove_unfinished_files(model_dir: str) -> None:
  """Removes files with temporary names; no other process may save checkpoints in model_dir."""
  for folder in _FOLDERS_OF_TENSORFLOW:
    with contextlib.suppress(OSError):
      for name in filter(_TEMPORARY_NAME.match, os.listdir(os.path.join(model_dir, folder))):
        path = os.path.join(model_dir, folder, name)
        if os.path.isdir(path):
          shutil.rmtree(path, ignore_errors=True)
        else:
          os.remove(path)
  for path, _, _ in os.walk(model_dir):
    temporary_files.remove_leftovers(path)


@contextlib.contextmanager
def open_checkpoint(settings: Settings, run_dir: RunDir) -> Iterator[SavedCheckpoint]:
  """Finds the checkpoint that `--checkpoint` names, and keeps it readable within the `with` block.

  Another process may be training in the same folder, and may delete the checkpoint.

  Raises:
    UserError: the checkpoint does not exist or cannot be read.
  """
  checkpoint = settings.checkpoints.checkpoint
  with contextlib.ExitStack() as stack:
    if checkpoint == 'latest':
      found = pin_intact_checkpoint(run_dir.path, stack)
      if found is None:
        raise UserError('there is no checkpoint in --model_dir', run_dir.path,
                        'train first, or give the --model_dir of a run with a checkpoint')
      path, files = found.path, found.files
    elif checkpoint == 'best':
      best = pin_found(
          lambda: getattr(best_checkpoint.read_best(run_dir.path), 'path', None), stack)
      if best is None:
        raise UserError('there is no best checkpoint',
                        '--checkpoint=best --model_dir=' + run_dir.path,
                        'train with --mode=train_and_evaluate and --eval_every_steps=N, or give '
                        + _describe_checkpoints(run_dir.path))
      path, files = best
    else:
      path = re.sub(r'\.(index|meta|data-\d+-of-\d+)$', '', checkpoint)
      try:
        files = stack.enter_context(pinned_files(path))
      except OSError as error:
        folder = checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint) or '.'
        raise UserError('there is no such checkpoint', '--checkpoint=' + checkpoint,
                        'give ' + _describe_checkpoints(folder)) from error
    try:
      step = _read_step(files)
    except (tf.errors.OpError, ValueError) as error:
      raise UserError('the checkpoint is damaged, or was not saved by a training run',
                      '{} ({})'.format(path, str(error).replace(files, path)),
                      'give another checkpoint') from error
    yield SavedCheckpoint(path, step, files)


def run_dir_of_checkpoint(settings: Settings, run_dir: RunDir) -> RunDir:
  """Returns the directory of the run whose checkpoint `--checkpoint` names."""
  checkpoint = settings.checkpoints.checkpoint
  if checkpoint in NAMED_CHECKPOINTS:
    return run_dir
  folder = os.path.dirname(checkpoint)
  parent = os.path.dirname(folder)
  # The best checkpoint is in RUN/best/STEP.
  return RunDir(os.path.dirname(parent) or '.' if (
      os.path.basename(parent) == best_checkpoint.BEST_FOLDER) else folder)


def _steps_in_checkpoint_file(model_dir: str) -> List[int]:
  """Returns the steps listed in TensorFlow's `checkpoint` file, the latest one first."""
  matches = [_LISTED_NAME.match(os.path.basename(path)) for path in listed_checkpoints(model_dir)]
  return [int(match.group(1)) for match in matches if match]


def _steps_on_disk(model_dir: str) -> List[int]:
  """Returns the steps with at least one checkpoint file, the newest first."""
  if not os.path.isdir(model_dir):
    return []
  matches = map(_CHECKPOINT_FILE.match, os.listdir(model_dir))
  return sorted({int(match.group(1)) for match in matches if match}, reverse=True)


def _checkpoint_path(model_dir: str, step: int) -> str:
  return os.path.join(model_dir, 'model.ckpt-{}'.format(step))


def _describe_checkpoints(folder: str) -> str:
  """Returns text that lists the checkpoints in a folder, for the remedy in an error message."""
  paths = [path[:-len('.index')] for path in
           glob.glob(os.path.join(glob.escape(folder), 'model.ckpt-*.index'))]
  if not paths:
    return 'a checkpoint in another folder: there is none in ' + folder
  return 'one of ' + ', '.join(sorted(paths, key=lambda path: (len(path), path)))
