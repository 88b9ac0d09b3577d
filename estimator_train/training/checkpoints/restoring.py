"""Finds the checkpoint to restore, compares it with a model, and recovers a damaged model_dir."""

import contextlib
import glob
import logging
import os
import re
import shutil
from typing import Dict, List, Optional, Sequence, Tuple

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError, one_line
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import NAMED_CHECKPOINTS
from estimator_train.tf_patches import checkpoints as checkpoint_patches
from estimator_train.tf_patches.optimizers import AVERAGE_SLOT
from estimator_train.training.checkpoints import best_checkpoint

_LOG = logging.getLogger('estimator_train')
_CHECKPOINT_FILE = re.compile(r'model\.ckpt-(\d+)\.(index|data-\d+-of-\d+)$')
# The temporary names that TensorFlow and system.storage use, and the folders that can contain them.
_TEMPORARY_NAME = re.compile(r'model\.ckpt-\d+_temp_\w+$|.+\.tmp[0-9a-f]{32}$|.+\.(\d+|h5)\.part$')
_FOLDERS_WITH_TEMPORARY_FILES = ('', 'keras', 'best', 'report')
# A checkpoint of a converted Keras model contains the variables of the model under their own names.
# Names of optimizer variables begin with `training` and the name of the optimizer. Examples are the
# hyperparameter training/Adam/learning_rate and the slot training/Adam/conv2d/kernel/m.
_OPTIMIZER_VARIABLE = re.compile(r'training(_\d+)?/([^/]+)/')
_AVERAGE_VARIABLE = re.compile(r'training(_\d+)?/[^/]+/(.+)/' + AVERAGE_SLOT + '$')
_LOSS_SCALE_VARIABLE = re.compile(r'training(_\d+)?/current_loss_scale$')


def latest_checkpoint_and_step(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint; (None, 0) if there is none."""
  path = tf.train.latest_checkpoint(model_dir)
  if path is None:
    return None, 0
  return path, int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))


def find_intact_checkpoint(model_dir: str) -> Tuple[Optional[str], int]:
  """Returns the path and global step of the latest checkpoint that can be read completely.

  First tries the latest checkpoint in TensorFlow's `checkpoint` file, which lists a checkpoint only
  when all files of the checkpoint are complete. Then tries all other checkpoints, the newest first.
  Reads all values, because only reading verifies the checksums. Changes no file. Logs which
  checkpoints were skipped, and why.

  Returns:
    (None, 0) if no checkpoint was saved completely.

  Raises:
    UserError: there are checkpoints, but no checkpoint loads. (A run killed while it saved its
      first checkpoint causes no error.)
  """
  listed_steps = _steps_in_checkpoint_file(model_dir)
  skip_reasons: List[str] = []
  has_lost_steps = False
  found: Tuple[Optional[str], int] = (None, 0)
  for step in listed_steps[:1] + [step for step in _steps_on_disk(model_dir)
                                  if step not in listed_steps[:1]]:
    path = _checkpoint_path(model_dir, step)
    try:
      saved_step = _read_all_values(path)
    except (tf.errors.OpError, OSError, ValueError) as error:
      skip_reasons.append('{}: {}'.format(path, one_line(str(getattr(error, 'message', error)))))
      # The first checkpoint of a run is that of step 0. If only this one is incomplete, no step is
      # lost.
      has_lost_steps = has_lost_steps or step in listed_steps or step > 0
      continue
    found = path, step if saved_step is None else saved_step
    break
  if found[0] is None and has_lost_steps:
    raise UserError('no checkpoint in --model_dir can be loaded', '; '.join(skip_reasons),
                    'restore a copy of a checkpoint, or give another --model_dir to start over; '
                    'nothing was deleted')
  for reason in skip_reasons:
    _LOG.warning('skipping a checkpoint that cannot be loaded: %s', reason)
  return found


def repair_model_dir(model_dir: str, checkpoint: Optional[str]) -> None:
  """Makes TensorFlow resume from a checkpoint, and removes unfinished files.

  A checkpoint that does not load stays until the run saves that step again. Deletions of
  checkpoints that a killed run had begun are completed, because TensorFlow would keep the remaining
  files.

  Args:
    model_dir: the directory of the run; no other process may write to it.
    checkpoint: the path that `find_intact_checkpoint` returns for this directory.
  """
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
  if listed_steps[:1] != [resumed_step] or unlisted_steps:
    # Lists all checkpoints, because TensorFlow deletes old checkpoints only if the file lists them.
    paths = [_checkpoint_path(model_dir, step) for step in reversed(_steps_on_disk(model_dir))
             if step <= resumed_step]
    checkpoint_patches.write_checkpoint_state(model_dir, checkpoint, paths)


def remove_unfinished_files(model_dir: str) -> None:
  """Removes files with temporary names; no other process may write to model_dir."""
  for folder in _FOLDERS_WITH_TEMPORARY_FILES:
    with contextlib.suppress(OSError):
      for name in filter(_TEMPORARY_NAME.match, os.listdir(os.path.join(model_dir, folder))):
        path = os.path.join(model_dir, folder, name)
        if os.path.isdir(path):
          shutil.rmtree(path, ignore_errors=True)
        else:
          os.remove(path)


def resolve_checkpoint(settings: Settings) -> Tuple[str, int]:
  """Returns the path and global step of the checkpoint that `--checkpoint` names.

  Raises:
    UserError: the checkpoint does not exist or cannot be read.
  """
  run_dir, checkpoint = RunDir(settings.run.model_dir), settings.checkpoints.checkpoint
  if checkpoint == 'latest':
    path, _ = find_intact_checkpoint(run_dir.path)
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


def run_dir_of_checkpoint(settings: Settings) -> RunDir:
  """Returns the directory of the run whose checkpoint `--checkpoint` names."""
  checkpoint = settings.checkpoints.checkpoint
  if checkpoint in NAMED_CHECKPOINTS:
    return RunDir(settings.run.model_dir)
  folder = os.path.dirname(checkpoint)
  parent = os.path.dirname(folder)
  # The best checkpoint is in RUN/best/STEP.
  return RunDir(os.path.dirname(parent) or '.' if (
      os.path.basename(parent) == best_checkpoint.BEST_FOLDER) else folder)


def check_class_names(settings: Settings, class_names: Sequence[str]) -> None:
  """Raises a UserError if the run that saved the checkpoint had other class names."""
  run_dir = run_dir_of_checkpoint(settings)
  run_dir.check_class_names(
      class_names, 'model_dir' if run_dir.path == settings.run.model_dir else 'checkpoint')


def describe_model_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns the first difference between a checkpoint's and a model's variables; None if equal."""
  expected = {weight.op.name: weight.shape.as_list() for weight in model.weights}
  # Ignores the optimizer's variables. A `tf.train` optimizer has scalars, and slots whose names are
  # the name of a weight and a suffix, such as conv2d/kernel/Adam.
  stored: Dict[str, List[int]] = {
      name: shape for name, shape in tf.train.list_variables(checkpoint)
      if name in expected or (
          shape and not _OPTIMIZER_VARIABLE.match(name)
          and name.rpartition('/')[0] not in expected)}
  for name in sorted(set(stored) | set(expected)):
    if stored.get(name) != expected.get(name):
      return '{} is {} in the checkpoint and {} in the model'.format(
          name, stored.get(name, 'missing'), expected.get(name, 'missing'))
  return None


def describe_optimizer_difference(model: tf.keras.Model, checkpoint: str) -> Optional[str]:
  """Returns the difference between a checkpoint's and a model's optimizer; None if equal."""
  stored = {match.group(2) for match in (
      _OPTIMIZER_VARIABLE.match(name) for name, _ in tf.train.list_variables(checkpoint)) if match}
  try:
    name = model.optimizer.get_config()['name']
  except NotImplementedError:  # An optimizer of `tf.train` cannot be compared by name.
    return None
  if stored and name not in stored:
    return '{} in the checkpoint and {} in the model'.format(', '.join(sorted(stored)), name)
  return None


def names_of_averages(checkpoint: str) -> Dict[str, str]:
  """Returns the names of the averages of the weights in a checkpoint, by the names of the weights.
  """
  matches = [_AVERAGE_VARIABLE.match(name) for name, _ in tf.train.list_variables(checkpoint)]
  return {match.group(2): match.group(0) for match in matches if match}


def make_saver(variables: Sequence[tf.Variable], checkpoint: str) -> tf.train.Saver:
  """Makes a saver that restores variables, and weights from their averages in the checkpoint.

  Also restores the tables of the default graph.
  """
  names = names_of_averages(checkpoint)
  by_name = {names.get(variable.op.name, variable.op.name): variable for variable in variables}
  by_name.update((table.name, table)
                 for table in tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS))
  return tf.train.Saver(by_name, sharded=True)


def lacks_loss_scale(checkpoint: str) -> bool:
  """Returns whether the checkpoint was saved by a training run without loss scaling."""
  return not any(_LOSS_SCALE_VARIABLE.match(name)
                 for name, _ in tf.train.list_variables(checkpoint))


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


def _describe_checkpoints(folder: str) -> str:
  """Returns text that lists the checkpoints in a folder, for the remedy in an error message."""
  paths = [path[:-len('.index')] for path in
           glob.glob(os.path.join(glob.escape(folder), 'model.ckpt-*.index'))]
  if not paths:
    return 'a checkpoint in another folder: there is none in ' + folder
  return 'one of ' + ', '.join(sorted(paths, key=lambda path: (len(path), path)))
