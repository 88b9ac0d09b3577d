"""Repairs TensorFlow's list of checkpoints, and removes files of killed runs and failed saves."""

import contextlib
import glob
import os
import re
import shutil
from typing import Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.finding import (
  CHECKPOINT_FILE_PATTERN,
  checkpoint_path,
  find_latest_checkpoint,
  list_steps_in_checkpoint_file,
  list_steps_on_disk,
)
from estimator_train.errors import UserError
from estimator_train.run_dir import (
  CHECKPOINTS_FILE,
  checkpoint_list_has_paths,
  read_checkpoint_list,
)
from estimator_train.system import temporary_files
from estimator_train.tf_patches import checkpoints as checkpoint_patches

# The temporary names that TensorFlow uses, and the folders of a run in which it uses them.
_TEMPORARY_NAME = re.compile(r'model\.ckpt-\d+_temp_\w+$|.+\.tmp[0-9a-f]{32}$')
_FOLDERS_WITH_TEMPORARY_NAMES = ('', 'keras')


def replace_paths_of_other_folders(model_dir: str) -> None:
  """Replaces the paths of another folder in TensorFlow's list of checkpoints.

  The list in a copied or moved folder still has the paths of the original folder. TensorFlow would
  restore and delete the checkpoints there.

  Raises:
    UserError: the latest checkpoint is missing from this folder, or the list cannot be written.
  """
  if '://' in model_dir or not checkpoint_list_has_paths(model_dir):
    return
  latest, *older = read_checkpoint_list(model_dir) or [model_dir]
  if find_latest_checkpoint(model_dir) is None:
    raise UserError("the latest checkpoint in TensorFlow's list is missing", latest,
                    'copy its files, or remove {} to start over'.format(
                        os.path.join(model_dir, CHECKPOINTS_FILE)))
  try:
    checkpoint_patches.write_checkpoint_state(model_dir, latest, [
        path for path in older if os.path.exists(path + '.index')] + [latest])
  except (tf.errors.OpError, OSError) as error:
    raise UserError("TensorFlow's list of checkpoints has paths of another folder",
                    '{} ({})'.format(os.path.join(model_dir, CHECKPOINTS_FILE), error),
                    'make the folder writable') from error


def repair_model_dir(model_dir: str, checkpoint: Optional[str]) -> None:
  """Makes TensorFlow resume from a checkpoint, and removes unfinished files.

  A checkpoint that cannot be loaded stays until the run saves its step again. If a killed run had
  begun to delete a checkpoint, this function deletes the remaining files. TensorFlow would never
  delete them.

  Args:
    model_dir: a folder that no other process writes to.
    checkpoint: the path that `find_intact_checkpoint` returns for this folder.

  Raises:
    UserError: a FIFO or another special file has the name of a checkpoint file. Saving to it would
      block.
  """
  for name in filter(CHECKPOINT_FILE_PATTERN.match, os.listdir(model_dir)):
    path = os.path.join(model_dir, name)
    if os.path.exists(path) and not os.path.isfile(path):
      raise UserError('a file of a checkpoint is not a regular file', path, 'remove it')
  remove_unfinished_files(model_dir)
  if checkpoint is None:
    return
  listed_steps = list_steps_in_checkpoint_file(model_dir)
  resumed_step = int(checkpoint.rpartition('-')[2])
  unlisted_steps = [step for step in list_steps_on_disk(model_dir)
                    if step < resumed_step and step not in listed_steps]
  for step in unlisted_steps:
    if not os.path.exists(checkpoint_path(model_dir, step) + '.index'):
      for path in glob.glob(glob.escape(checkpoint_path(model_dir, step)) + '.*'):
        os.remove(path)
  if listed_steps[:1] != [resumed_step] or unlisted_steps or checkpoint_list_has_paths(model_dir):
    # The list must contain all checkpoints, because TensorFlow deletes only listed ones.
    paths = [checkpoint_path(model_dir, step) for step in reversed(list_steps_on_disk(model_dir))
             if step <= resumed_step]
    checkpoint_patches.write_checkpoint_state(model_dir, checkpoint, paths)


def remove_unfinished_files(model_dir: str) -> None:
  """Removes files with temporary names. No other process may be saving checkpoints in model_dir."""
  for folder in _FOLDERS_WITH_TEMPORARY_NAMES:
    with contextlib.suppress(OSError):
      for name in filter(_TEMPORARY_NAME.match, os.listdir(os.path.join(model_dir, folder))):
        path = os.path.join(model_dir, folder, name)
        if os.path.isdir(path):
          shutil.rmtree(path, ignore_errors=True)
        else:
          os.remove(path)
  for path, _, _ in os.walk(model_dir):
    temporary_files.remove_leftovers(path)
