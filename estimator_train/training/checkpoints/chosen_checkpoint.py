"""Finds the checkpoint that `--checkpoint` names, and the run that saved the checkpoint."""

import glob
import os
import re
from typing import Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import choices, groups
from estimator_train.training.checkpoints import best_checkpoint, recovery


def resolve_checkpoint(settings: groups.Run, checkpoint: str) -> Tuple[str, int]:
  """Returns the path and global step of the checkpoint that `--checkpoint` names.

  Args:
    settings: the flags of the group `run`, of which `model_dir` is used.
    checkpoint: the value of `--checkpoint`: `latest`, `best` or a path.

  Raises:
    UserError: the checkpoint does not exist or cannot be read.
  """
  run_dir = RunDir(settings.model_dir)
  if checkpoint == 'latest':
    recovered = recovery.find_checkpoint(run_dir.path)
    recovery.log_skipped(recovered)
    path = recovered.path
    if path is None:
      raise UserError('there is no checkpoint in --model_dir', run_dir.path,
                      'train first, or give the --model_dir of a run with a checkpoint')
  elif checkpoint == 'best':
    best = best_checkpoint.read_best(run_dir.path)
    if best is None:
      raise UserError('there is no best checkpoint',
                      '--checkpoint=best --model_dir=' + run_dir.path,
                      'train with --mode=train_and_evaluate and --eval_every_steps=N, or give '
                      + _describe_checkpoints(run_dir.path))
    path = best.path
  else:
    path = re.sub(r'\.(index|meta|data-\d+-of-\d+)$', '', checkpoint)
    if not os.path.isfile(path + '.index'):
      folder = checkpoint if os.path.isdir(checkpoint) else os.path.dirname(checkpoint) or '.'
      raise UserError('there is no such checkpoint', '--checkpoint=' + checkpoint,
                      'give ' + _describe_checkpoints(folder))
  try:
    return path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
  except (tf.errors.OpError, ValueError) as error:
    raise UserError('the checkpoint is damaged, or was not saved by a training run',
                    '{} ({})'.format(path, str(error)), 'give another checkpoint') from error


def find_run_dir(model_dir: Optional[str], checkpoint: str) -> RunDir:
  """Returns the directory of the run whose checkpoint `--checkpoint` names."""
  if checkpoint in choices.NAMED_CHECKPOINTS:
    return RunDir(model_dir)
  folder = os.path.dirname(checkpoint)
  parent = os.path.dirname(folder)
  # The best checkpoint is in RUN/best/STEP.
  return RunDir(os.path.dirname(parent) or '.' if (
      os.path.basename(parent) == best_checkpoint.BEST_FOLDER) else folder)


def check_class_names(model_dir: Optional[str], checkpoint: str,
                      class_names: Sequence[str]) -> None:
  """Raises a UserError if the run that saved the checkpoint had other class names."""
  run_dir = find_run_dir(model_dir, checkpoint)
  run_dir.check_class_names(
      class_names, 'model_dir' if run_dir.path == model_dir else 'checkpoint')


def _describe_checkpoints(folder: str) -> str:
  """Returns text that lists the checkpoints in a folder, for the remedy in an error message."""
  paths = [path[:-len('.index')] for path in
           glob.glob(os.path.join(glob.escape(folder), 'model.ckpt-*.index'))]
  if not paths:
    return 'a checkpoint in another folder: there is none in ' + folder
  return 'one of ' + ', '.join(sorted(paths, key=lambda path: (len(path), path)))
