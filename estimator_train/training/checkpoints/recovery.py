"""Recovers a model_dir: finds the latest checkpoint that loads, and removes unfinished files."""

import contextlib
import glob
import logging
import os
import re
import shutil
from typing import List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.tf_patches import checkpoints as checkpoint_patches

_LOG = logging.getLogger('estimator_train')
_CHECKPOINT_FILE = re.compile(r'model\.ckpt-(\d+)\.(index|data-\d+-of-\d+)$')
# The temporary names that TensorFlow and files.atomic use, and the folders that can contain them.
_TEMPORARY_NAME = re.compile(r'model\.ckpt-\d+_temp_\w+$|.+\.tmp[0-9a-f]{32}$|.+\.(\d+|h5)\.part$')
_FOLDERS_WITH_TEMPORARY_FILES = ('', 'keras', 'best', 'report')


class RecoveredCheckpoint(NamedTuple):
  """The checkpoint to resume from, or to evaluate.

  Attributes:
    path: the path of the latest checkpoint that loads; None if no checkpoint was saved completely.
    step: the global step of the checkpoint; 0 if there is no checkpoint.
    skip_reasons: one text for each later checkpoint, with its path and why it does not load.
  """
  path: Optional[str]
  step: int
  skip_reasons: List[str]


def find_checkpoint(model_dir: str) -> RecoveredCheckpoint:
  """Finds the latest checkpoint that can be read completely and has correct checksums.

  First tries the latest checkpoint in TensorFlow's `checkpoint` file, which lists a checkpoint only
  when all files of the checkpoint are complete. Then tries all other checkpoints, the newest first.
  Reads all values, because only reading verifies the checksums. Changes no file.

  Raises:
    UserError: there are checkpoints, but no checkpoint loads. (A run killed while it saved its
      first checkpoint causes no error.)
  """
  listed_steps = _steps_in_checkpoint_file(model_dir)
  skip_reasons = []
  has_lost_steps = False
  for step in listed_steps[:1] + [step for step in _steps_on_disk(model_dir)
                                  if step not in listed_steps[:1]]:
    path = _checkpoint_path(model_dir, step)
    try:
      saved_step = _read_all_values(path)
    except (tf.errors.OpError, OSError, ValueError) as error:
      skip_reasons.append('{}: {}'.format(path, _to_one_line(error)))
      # If a run was killed while it saved its first checkpoint, no step is lost.
      has_lost_steps = has_lost_steps or step in listed_steps or step > 0
      continue
    return RecoveredCheckpoint(path, step if saved_step is None else saved_step, skip_reasons)
  if has_lost_steps:
    raise UserError('no checkpoint in --model_dir can be loaded', '; '.join(skip_reasons),
                    'restore a copy of a checkpoint, or give another --model_dir to start over; '
                    'nothing was deleted')
  return RecoveredCheckpoint(None, 0, skip_reasons)


def log_skipped(recovered: RecoveredCheckpoint) -> None:
  """Logs which checkpoints were skipped, and why."""
  for text in recovered.skip_reasons:
    _LOG.warning('skipping a checkpoint that cannot be loaded: %s', text)


def repair_model_dir(model_dir: str, recovered: RecoveredCheckpoint) -> None:
  """Makes TensorFlow resume from the recovered checkpoint, and removes unfinished files.

  Keeps a checkpoint that does not load until the run saves the same step again. If a killed run had
  begun to delete a checkpoint, removes the remaining files, because TensorFlow would keep them.

  Args:
    model_dir: the directory of the run; no other process may write to it.
    recovered: the return value of `find_checkpoint` for this directory.
  """
  log_skipped(recovered)
  remove_unfinished_files(model_dir)
  if recovered.path is None:
    return
  listed_steps = _steps_in_checkpoint_file(model_dir)
  recovered_step = _step_in_path(recovered.path)
  unlisted_steps = [step for step in _steps_on_disk(model_dir)
                    if step < recovered_step and step not in listed_steps]
  for step in unlisted_steps:
    if not os.path.exists(_checkpoint_path(model_dir, step) + '.index'):
      for path in glob.glob(glob.escape(_checkpoint_path(model_dir, step)) + '.*'):
        os.remove(path)
  if listed_steps[:1] != [recovered_step] or unlisted_steps:
    # Lists all checkpoints, because TensorFlow deletes old checkpoints only if the file lists them.
    paths = [_checkpoint_path(model_dir, step) for step in reversed(_steps_on_disk(model_dir))
             if step <= recovered_step]
    checkpoint_patches.write_checkpoint_state(model_dir, recovered.path, paths)


def remove_unfinished_files(model_dir: str) -> None:
  """Removes files with temporary names; no other process may write to model_dir."""
  for folder in _FOLDERS_WITH_TEMPORARY_FILES:
    _remove_temporary_files(os.path.join(model_dir, folder))


def _remove_temporary_files(folder: str) -> None:
  with contextlib.suppress(OSError):
    for name in os.listdir(folder):
      path = os.path.join(folder, name)
      if not _TEMPORARY_NAME.match(name):
        continue
      if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
      else:
        os.remove(path)


def _steps_in_checkpoint_file(model_dir: str) -> List[int]:
  """Returns the steps listed in TensorFlow's `checkpoint` file, the latest one first."""
  try:
    state = tf.train.get_checkpoint_state(model_dir)
  except ValueError:  # The `checkpoint` file is empty.
    state = None
  if state is None:
    return []
  paths = [state.model_checkpoint_path] + list(state.all_model_checkpoint_paths)
  return [int(match.group(1)) for match in map(re.compile(r'.*-(\d+)$').match, paths) if match]


def _steps_on_disk(model_dir: str) -> List[int]:
  """Returns the steps with at least one checkpoint file, the newest first."""
  if not os.path.isdir(model_dir):
    return []
  matches = map(_CHECKPOINT_FILE.match, os.listdir(model_dir))
  return sorted({int(match.group(1)) for match in matches if match}, reverse=True)


def _step_in_path(path: str) -> int:
  return int(path.rpartition('-')[2])


def _checkpoint_path(model_dir: str, step: int) -> str:
  return os.path.join(model_dir, 'model.ckpt-{}'.format(step))


def _read_all_values(path: str) -> Optional[int]:
  """Reads all values of a checkpoint, and returns the stored global step; None if none is stored.

  The stored step may be higher than the step in the file name, because other workers may have
  incremented the global step before its value was saved.
  """
  reader = tf.train.NewCheckpointReader(path)
  for name in reader.get_variable_to_shape_map():
    reader.get_tensor(name)
  return (int(reader.get_tensor(tf.GraphKeys.GLOBAL_STEP))
          if reader.has_tensor(tf.GraphKeys.GLOBAL_STEP) else None)


def _to_one_line(error: Exception) -> str:
  """Returns the message of an error as one line."""
  return ' '.join(str(getattr(error, 'message', error)).split())
