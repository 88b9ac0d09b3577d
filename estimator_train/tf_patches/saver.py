"""`tf.train.Saver` and the `checkpoint` file: which checkpoints are kept.

Lines are of tensorflow_core/python/training/saver.py unless another file is named.
"""

from typing import Callable, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.training import checkpoint_management


def retention(saver: tf.train.Saver) -> Callable[[], None]:
  """Returns a function that brings back what the saver is to keep and to delete now.

  Defect: `save` enters a checkpoint in both lists (lines 930 and 934, called in line 1180)
  before it is in the `checkpoint` file, and leaves it there when that cannot be written. Symptom:
  where the disk was full for a while, the `checkpoint` file names a checkpoint that is not there,
  and a good one is deleted instead of it.
  """
  kept, due = list(saver._last_checkpoints), list(saver._checkpoints_to_be_deleted)

  def restore() -> None:
    saver.set_last_checkpoints_with_time(kept)
    saver._checkpoints_to_be_deleted = due

  return restore


def delete_surplus(saver: tf.train.Saver) -> None:
  """Deletes the checkpoints beyond the saver's `max_to_keep`, which a killed run was to delete.

  Defect: for each that it saves, a Saver deletes one (lines 933 and 934), however many there are.
  Symptom: a resumed run with a smaller `--keep_checkpoint_max`, or after a kill, keeps too many
  checkpoints to its end.
  """
  keep, paths = saver.saver_def.max_to_keep, saver.last_checkpoints
  if keep and len(paths) > keep:
    for path in paths[:-keep]:
      checkpoint_management.remove_checkpoint(path)
    saver.set_last_checkpoints_with_time(saver._last_checkpoints[-keep:])


def write_checkpoint_state(model_dir: str, latest: str, paths: Sequence[str]) -> None:
  """Writes the `checkpoint` file, with relative paths.

  Private name: `tf.train.update_checkpoint_state` (checkpoint_management.py:129) has no
  `save_relative_paths`. Symptom without it: a folder that is moved or mounted elsewhere names
  checkpoints where they are not.

  Args:
    model_dir: the folder.
    latest: the path of the checkpoint to resume from.
    paths: of all, the oldest first.
  """
  checkpoint_management.update_checkpoint_state_internal(model_dir, latest, paths,
                                                         save_relative_paths=True)
