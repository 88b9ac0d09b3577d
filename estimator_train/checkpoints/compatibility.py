"""Checks that a checkpoint fits the model and the flags of a run."""

import re
from typing import Dict, Iterable, List, Mapping, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.restoring import map_weights_to_averages
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import NAMED_CHECKPOINTS

# In a checkpoint of a converted Keras model, the variables of the model have their own names. The
# names of optimizer variables begin with `training` and the name of the optimizer. Examples are the
# hyperparameter training/Adam/learning_rate and the slot training/Adam/conv2d/kernel/m.
_OPTIMIZER_VARIABLE = re.compile(r'training(_\d+)?/([^/]+)/')
_LOSS_SCALE_VARIABLE = re.compile(r'training(_\d+)?/current_loss_scale$')


def check_fits_checkpoint(model: tf.keras.Model, settings: Settings, checkpoint_run_dir: RunDir,
                          path: str) -> None:
  """Checks that a checkpoint fits the model, optimizer, dtype and preprocessing of this run.

  Args:
    model: the compiled model of this run.
    checkpoint_run_dir: the folder of the run that has saved the checkpoint.
    path: the path of the checkpoint.

  Raises:
    UserError: the checkpoint does not fit. The error names a flag and its value in each run.
  """
  flags = checkpoint_run_dir.read_flags()
  shapes: Dict[str, List[int]] = dict(tf.train.list_variables(path))
  # (flag, its value in this run, what does not fit the checkpoint or None)
  misfits = [('model', settings.model.model, _describe_model_difference(model, shapes))]
  if settings.run.trains:
    misfits += [
        ('optimizer', settings.optimizer.optimizer, _describe_optimizer_difference(model, shapes)),
        ('dtype', settings.devices.dtype, 'the checkpoint has no loss scale'
         if settings.devices.dtype == 'mixed'
         and not any(map(_LOSS_SCALE_VARIABLE.match, shapes)) else None),
        ('ema_decay', str(settings.optimizer.ema_decay),
         'the checkpoint has no averages of the weights'
         if settings.optimizer.ema_decay is not None and not map_weights_to_averages(path)
         else None)]
  preprocess = settings.model.chosen_preprocess
  misfits.append(('preprocess', preprocess, 'the pixel values were scaled differently'
                  if flags.get('preprocess', preprocess) not in (
                      preprocess, settings.model.preprocess) else None))
  for flag, value, difference in misfits:
    if difference is not None:
      raise _make_misfit_error(flag, value, difference, settings, checkpoint_run_dir, path)


def _make_misfit_error(flag: str, value: str, difference: str, settings: Settings,
                       checkpoint_run_dir: RunDir, path: str) -> UserError:
  flags = checkpoint_run_dir.read_flags()  # Empty if flags.txt is missing.
  saved_value = flags.get(flag) if flags else 'unknown'
  remedy = ''
  if saved_value == value:
    trained_how = 'with another network of --{}={}'.format(flag, value)
    difference = ', '.join(
        [difference, *checkpoint_run_dir.flag_differences(settings, ['image_size'])])
  elif saved_value is None:
    trained_how = 'without --' + flag
  else:
    trained_how = 'with --{}={}, not --{}={}'.format(flag, saved_value, flag, value)
    remedy = ', or --{}={}'.format(flag, saved_value) if flags else ''
  checkpoint = settings.checkpoints.checkpoint
  path_flag, folder = (('model_dir', checkpoint_run_dir.path) if checkpoint in NAMED_CHECKPOINTS
                       else ('checkpoint', checkpoint))
  return UserError(
      'the checkpoint does not fit --' + flag,
      '{} at step {} was trained {} ({})'.format(
          folder, tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP), trained_how, difference),
      'give another --' + path_flag + remedy)


def _describe_model_difference(model: tf.keras.Model,
                               shapes: Mapping[str, List[int]]) -> Optional[str]:
  """Describes the first difference between the variables of a checkpoint and a model, if any."""
  expected = {weight.op.name: weight.shape.as_list() for weight in model.weights}
  # The variables of the optimizer are ignored. A `tf.train` optimizer has scalars, and slots with
  # the name of a weight and a suffix, such as conv2d/kernel/Adam.
  saved = {name: shape for name, shape in shapes.items()
           if name in expected or (
               shape and not _OPTIMIZER_VARIABLE.match(name)
               and name.rpartition('/')[0] not in expected)}
  for name in sorted(set(saved) | set(expected)):
    if saved.get(name) != expected.get(name):
      return '{} is {} in the checkpoint and {} in the model'.format(
          name, saved.get(name, 'missing'), expected.get(name, 'missing'))
  return None


def _describe_optimizer_difference(model: tf.keras.Model, names: Iterable[str]) -> Optional[str]:
  """Describes the difference between the optimizers of a checkpoint and a model, if any."""
  saved = {match.group(2) for match in map(_OPTIMIZER_VARIABLE.match, names) if match}
  try:
    name = model.optimizer.get_config()['name']
  except NotImplementedError:  # An optimizer of `tf.train` cannot be compared by name.
    return None
  if saved and name not in saved:
    return '{} in the checkpoint and {} in the model'.format(', '.join(sorted(saved)), name)
  return None
