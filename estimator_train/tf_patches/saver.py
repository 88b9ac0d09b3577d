"""Corrects the list of checkpoints in a `tf.train.Saver` and in the `checkpoint` file.

Line numbers refer to tensorflow_core/python/training/saver.py, unless a file is named.
"""

from typing import Any, Callable, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.training import checkpoint_management, saver as saver_lib


class SingleReadSaverBuilder(saver_lib.BulkSaverBuilder):
  """Makes the operations of a sharded Saver, with one read of each variable.

  Defect: line 404 makes operations that read each variable only to find its device. Symptom: a
  fifth of a Saver's operations are never run, and slow down the start.
  """

  def _GroupByDevices(self, saveables: Sequence[Any]) -> Any:  # noqa: N802 (TensorFlow's name.)
    for saveable in saveables:
      for spec in saveable.specs:
        spec._tensor = spec.tensor  # `spec.tensor` may make new operations at each access.
    return super()._GroupByDevices(saveables)


def checkpoint_list_restorer(saver: tf.train.Saver) -> Callable[[], None]:
  """Returns a function that restores the saver's current lists of checkpoints.

  Defect: `Saver.save` updates its list of kept checkpoints (line 930) and its list of checkpoints
  to delete (line 934), and then writes the `checkpoint` file (line 1181). If writing the file
  fails, the lists are not restored. Symptom: after the disk was full for a while, the `checkpoint`
  file lists a checkpoint that does not exist, and a good checkpoint is deleted too early.
  """
  kept, to_delete = list(saver._last_checkpoints), list(saver._checkpoints_to_be_deleted)

  def restore() -> None:
    saver.set_last_checkpoints_with_time(kept)
    saver._checkpoints_to_be_deleted = to_delete

  return restore


def delete_surplus_checkpoints(saver: tf.train.Saver) -> None:
  """Deletes the oldest checkpoints beyond the saver's `max_to_keep`.

  Defect: after each save, a Saver deletes at most one checkpoint (lines 933 and 934), however many
  checkpoints there are. Symptom: a run that resumes with a smaller `--keep_checkpoint_max`, or
  after a kill, keeps too many checkpoints until it ends.
  """
  max_to_keep, paths = saver.saver_def.max_to_keep, saver.last_checkpoints
  if max_to_keep and len(paths) > max_to_keep:
    for path in paths[:-max_to_keep]:
      checkpoint_management.remove_checkpoint(path)
    saver.set_last_checkpoints_with_time(saver._last_checkpoints[-max_to_keep:])


def write_checkpoint_state(model_dir: str, latest: str, paths: Sequence[str]) -> None:
  """Writes the `checkpoint` file, with relative paths.

  Not a workaround for a defect: this function uses the private name
  `update_checkpoint_state_internal`, because the public `tf.train.update_checkpoint_state`
  (checkpoint_management.py:129) has no argument `save_relative_paths`. With absolute paths, the
  paths in the `checkpoint` file would not exist after the folder is moved or mounted elsewhere.

  Args:
    model_dir: the path of the folder of the run.
    latest: the path of the checkpoint from which the next run resumes.
    paths: the paths of all checkpoints, the oldest first.
  """
  checkpoint_management.update_checkpoint_state_internal(model_dir, latest, paths,
                                                         save_relative_paths=True)
