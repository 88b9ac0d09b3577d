"""Checks whether a checkpoint fits the model, the flags and the class names of a run."""

import re
from typing import Dict, List, Optional, Sequence

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import finding
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.settings.flags import NAMED_CHECKPOINTS

# The slot of an optimizer that has the moving average of a weight.
AVERAGE_SLOT = 'average'
# A checkpoint of a converted Keras model contains the variables of the model under their own names.
# Names of optimizer variables begin with `training` and the name of the optimizer. Examples are the
# hyperparameter training/Adam/learning_rate and the slot training/Adam/conv2d/kernel/m.
_OPTIMIZER_VARIABLE = re.compile(r'training(_\d+)?/([^/]+)/')
_AVERAGE_VARIABLE = re.compile(r'training(_\d+)?/[^/]+/(.+)/' + AVERAGE_SLOT + '$')
_LOSS_SCALE_VARIABLE = re.compile(r'training(_\d+)?/current_loss_scale$')


def check_class_names(settings: Settings, run_dir: RunDir, class_names: Sequence[str]) -> None:
  """Raises a UserError if the run that saved the checkpoint had other class names."""
  recorded = finding.run_dir_of_checkpoint(settings, run_dir)
  recorded.check_class_names(class_names, 'model_dir' if recorded is run_dir else 'checkpoint')


def check_fits_checkpoint(model: tf.keras.Model, settings: Settings, run_dir: RunDir,
                          path: str) -> None:
  """Checks that a checkpoint fits the model, optimizer, dtype and preprocessing of this run.

  Args:
    model: the model of this run.
    settings, run_dir: those of this run.
    path: the path of the checkpoint that `--checkpoint` names.

  Raises:
    UserError: the checkpoint does not fit. The error states the value of the flag in each run.
  """
  recorded = finding.run_dir_of_checkpoint(settings, run_dir)
  checkpoint_flags = recorded.flags()
  # A difference is None if the checkpoint fits.
  for flag, value, difference in (
      ('model', settings.model.model, describe_model_difference(model, path)),
      ('optimizer', settings.optimizer.optimizer,
       describe_optimizer_difference(model, path) if settings.run.trains else None),
      ('dtype', settings.devices.dtype, 'the checkpoint has no loss scale'
       if settings.run.trains and settings.devices.dtype == 'mixed'
       and lacks_loss_scale(path) else None),
      ('ema_decay', settings.optimizer.ema_decay, 'the checkpoint has no averages of the weights'
       if settings.run.trains and settings.optimizer.ema_decay is not None
       and not names_of_averages(path) else None),
      ('preprocess', settings.model.preprocess, 'the pixel values were scaled differently'
       if checkpoint_flags.get('preprocess', settings.model.preprocess)
       != settings.model.preprocess else None)):
    if difference:
      saved_value = checkpoint_flags.get(flag, 'unknown' if not checkpoint_flags else None)
      checkpoint = settings.checkpoints.checkpoint
      path_flag, folder = (('model_dir', run_dir.path)
                           if checkpoint in NAMED_CHECKPOINTS
                           else ('checkpoint', checkpoint))
      reason = difference
      if saved_value == value:
        before = 'with another network of --{}={}'.format(flag, value)
        reason = ', '.join([difference, *recorded.flag_differences(settings, ['image_size'])])
      elif saved_value is None:
        before = 'without --' + flag
      else:
        before = 'with --{}={}, not --{}={}'.format(flag, saved_value, flag, value)
      raise UserError(
          'the checkpoint does not fit --' + flag,
          '{} at step {} was trained {} ({})'.format(
              folder, tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP), before, reason),
          'give another --' + path_flag + ('' if saved_value in ('unknown', value, None)
                                           else ', or --{}={}'.format(flag, saved_value)))


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
