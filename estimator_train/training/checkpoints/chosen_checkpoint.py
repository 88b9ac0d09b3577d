"""The checkpoint that `--checkpoint` names, and the run that it is of."""

import glob
import os
import re
from typing import Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import choices, groups
from estimator_train.training.checkpoints import best_checkpoint, recovery


def resolve(settings: groups.Run, name: str) -> Tuple[str, int]:
  """Returns the path and global step of the checkpoint that `--checkpoint` names.

  Raises:
    UserError: there is none; it says which there are.
  """
  run_dir = RunDir(settings.model_dir)
  if name == 'latest':
    latest_sound = recovery.find(run_dir.path)
    recovery.tell(latest_sound)
    found = latest_sound.path
    if found is None:
      raise UserError('there is no checkpoint to {}'.format(settings.mode),
                      '--model_dir=' + run_dir.path,
                      'train first, or give the folder of a run that has')
  elif name == 'best':
    best = best_checkpoint.read(run_dir.path)
    if best is None:
      raise UserError('no checkpoint is kept as the best one',
                      '--checkpoint=best --model_dir=' + run_dir.path,
                      'train with --mode=train_and_evaluate and --eval_every_steps=N, or give '
                      + _choices(run_dir.path))
    found = best.path
  else:
    found = re.sub(r'\.(index|meta|data-\d+-of-\d+)$', '', name)
    if not os.path.isfile(found + '.index'):
      folder = name if os.path.isdir(name) else os.path.dirname(name) or '.'
      raise UserError('there is no such checkpoint', '--checkpoint=' + name,
                      'give ' + _choices(folder))
  try:
    return found, int(tf.train.load_variable(found, tf.GraphKeys.GLOBAL_STEP))
  except (tf.errors.OpError, ValueError) as error:
    raise UserError('the checkpoint is damaged, or not one of training',
                    '{} ({})'.format(found, str(error)), 'give another one') from error


def find_run_dir(model_dir: Optional[str], name: str) -> RunDir:
  """Returns the folder of the run whose checkpoint `--checkpoint` names."""
  if name in choices.KEPT_CHECKPOINTS:
    return RunDir(model_dir)
  return RunDir(os.path.dirname(name))


def check_labels(model_dir: Optional[str], name: str, labels: Sequence[str]) -> None:
  """Raises a UserError when the run whose checkpoint it is was trained with other classes."""
  run_dir = find_run_dir(model_dir, name)
  run_dir.check_labels(labels,
                       'model_dir' if run_dir.path == model_dir else 'checkpoint')


def _choices(folder: str) -> str:
  """Returns which checkpoints a folder has."""
  paths = [path[:-len('.index')] for path in
           glob.glob(os.path.join(glob.escape(folder), 'model.ckpt-*.index'))]
  if not paths:
    return 'another: there is none in ' + folder
  return 'one of ' + ', '.join(sorted(paths, key=lambda path: (len(path), path)))
