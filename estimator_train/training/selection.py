"""Finds the metric that selects the best checkpoint, and decides whether to stop the training."""

import contextlib
import os
import re
from typing import Any, BinaryIO, Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.checkpoints.best_checkpoint import BestCheckpoint, BestMetric
from estimator_train.data.source import Source
from estimator_train.errors import UserError
from estimator_train.model import evaluation_metrics
from estimator_train.run_dir import RunDir
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings.flags import EvaluationFlags
from estimator_train.system import json_values, storage
from estimator_train.system.formatting import format_metric
from estimator_train.tf_patches import keras as keras_patches

_STOP_REASON_FILE = 'stopped.json'
_STOPPING_FLAGS = ('early_stopping_epochs', 'early_stopping_steps', 'stop_at_accuracy',
                   'best_metric', 'best_mode')
# Words in the names of the metrics of which larger values, or smaller values, are better.
_LARGER_IS_BETTER_WORDS = {
    'acc', 'accuracy', 'auc', 'precision', 'recall', 'specificity', 'sensitivity', 'iou', 'f1',
    'top', 'bleu', 'r2', 'similarity', 'correct', 'positives', 'negatives'}
_SMALLER_IS_BETTER_WORDS = {
    'loss', 'error', 'mse', 'mae', 'mape', 'msle', 'rmse', 'crossentropy', 'hinge', 'poisson',
    'logcosh', 'divergence', 'kld', 'perplexity', 'false'}


class StopReason(NamedTuple):
  """The reason why an evaluation of the checkpoint of `global_step` stopped the training."""
  global_step: int
  text: str


def find_stop_reason(flags: EvaluationFlags, metrics: Dict[str, Any],
                     best_metric: BestMetric, best: BestCheckpoint,
                     clock: StepClock) -> Optional[StopReason]:
  """Returns the reason to stop the training after an evaluation; None if it must continue.

  A checkpoint that replaces the best one only because of a lower loss, at an equal metric, does not
  improve the metric.

  Args:
    metrics: the result of the evaluation; see Evaluator.evaluate.
    best: the best checkpoint after this evaluation.
  """
  if flags.stop_at_accuracy is not None and metrics['accuracy'] >= flags.stop_at_accuracy:
    return StopReason(metrics['global_step'], 'accuracy {} reaches {:g}'.format(
        format_metric(metrics['accuracy']), flags.stop_at_accuracy))
  step, last_improvement = metrics['global_step'], max(best.improved_at, best.compared_since)
  steps, epochs = flags.early_stopping_steps, flags.early_stopping_epochs
  if steps is not None and step - last_improvement >= steps:
    return StopReason(step, 'no improvement in {} for {} steps'.format(
        best_metric, step - last_improvement))
  if epochs is not None:
    # Only epochs that began after the improvement count.
    epochs_since = clock.completed_epochs(step) - (
        clock.epoch_at(last_improvement) if last_improvement else 0)
    if epochs_since >= epochs:
      return StopReason(step, 'no improvement in {} for {} epoch{}'.format(
          best_metric, epochs_since, '' if epochs_since == 1 else 's'))
  return None


def write_stop_reason(run_dir: RunDir, flags: EvaluationFlags, stop_reason: StopReason,
                      examples_digest: str) -> None:
  """Records why the training stopped, so that the same command does not resume it."""
  storage.write_json(run_dir.path_to(_STOP_REASON_FILE), dict(
      _select_stopping_flags(flags), examples_digest=examples_digest,
      global_step=stop_reason.global_step, why=stop_reason.text))


def read_stop_reason(run_dir: RunDir, flags: EvaluationFlags, global_step: int,
                     test: Optional[Source] = None) -> Optional[StopReason]:
  """Returns the recorded reason to stop; None if there is no record, or if it does not apply.

  A record does not apply if its stopping flags had other values, if it is of a step after
  `global_step`, or if other test examples were evaluated.

  Args:
    test: the test examples of this run; None if any test examples are accepted.
  """
  def parse(file: BinaryIO) -> Optional[StopReason]:
    recorded = storage.parse_json(file, json_values.fields(
        {'global_step': json_values.integer(), 'why': json_values.text}))
    stop_reason = StopReason(recorded['global_step'], recorded['why'])
    # A record of an earlier version lacks newer flags, which were not set.
    has_same_flags = all(recorded.get(name) == value
                         for name, value in _select_stopping_flags(flags).items())
    applies = stop_reason.global_step <= global_step and has_same_flags and (
        test is None or recorded.get('examples_digest') in (None, test.content_digest()))
    return stop_reason if applies else None

  return storage.load_or_warn(run_dir.path_to(_STOP_REASON_FILE), parse,
                              'the next evaluation applies the rules again')


def remove_stop_reason(run_dir: RunDir) -> None:
  """Removes the record of a stop. Must be called when the training continues."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(run_dir.path_to(_STOP_REASON_FILE))


def _select_stopping_flags(flags: EvaluationFlags) -> Dict[str, Any]:
  return {name: getattr(flags, name) for name in _STOPPING_FLAGS}


def find_best_metric(flags: EvaluationFlags, model: tf.keras.Model,
                     num_classes: int) -> BestMetric:
  """Returns the metric that selects the best checkpoint.

  The default of --best_metric is the accuracy if the examples have classes, and otherwise the
  average loss. If the outputs have no loss, or the model adds losses that depend on the examples,
  the default is `loss`, the loss with all penalties, instead of `average_loss`.

  Args:
    model: the compiled model.
    num_classes: 0 if the examples have no classes.

  Raises:
    UserError: the model has no such metric, or --best_mode is needed.
  """
  names = _list_metric_names(model, num_classes)
  name = flags.best_metric or names[0]
  if name not in names:
    name = _complete_name(name)
  if name not in names:
    raise UserError('--best_metric must be a metric of the evaluation',
                    '--best_metric={}'.format(flags.best_metric),
                    'choose from {}, or compile the model with this metric'.format(
                        ', '.join(names)))
  if flags.stop_at_accuracy is not None and 'accuracy' not in names:
    raise UserError('--stop_at_accuracy requires the metric `accuracy`',
                    '--stop_at_accuracy={} with {}'.format(flags.stop_at_accuracy,
                                                           ', '.join(names)),
                    'give --best_metric and --early_stopping_steps instead')
  return BestMetric(name, _is_larger_better(name, flags.best_mode))


def _complete_name(name: str) -> str:
  """Returns the name that an evaluation has for an abbreviation of Keras, such as `mae`."""
  try:
    return str(getattr(tf.keras.metrics.get(name), '__name__', name))
  except ValueError:  # Keras has no such metric.
    return name


def _list_metric_names(model: tf.keras.Model, num_classes: int) -> List[str]:
  """Returns the metrics of an evaluation, the default of --best_metric first."""
  keys = evaluation_metrics.make_metric_keys(
      keras_patches.outputs_with_loss(model), keras_patches.metrics_by_name(model), num_classes)
  names = (evaluation_metrics.classifier_metric_names(num_classes) if num_classes
           else ['average_loss', 'loss'])
  if not num_classes and (not model.loss or model.get_losses_for(model.inputs)):
    names.reverse()
  return [*names, *keys.losses.values(), *keys.metrics.values()]


def _is_larger_better(name: str, best_mode: str) -> bool:
  """Returns whether larger values of a metric are better, by `--best_mode` or the metric's name."""
  if best_mode != 'auto':
    return best_mode == 'max'
  words = set(re.split('[^a-z0-9]+', re.sub('([a-z])([A-Z])', r'\1_\2', name).lower()))
  if words & _SMALLER_IS_BETTER_WORDS:
    return False
  if words & _LARGER_IS_BETTER_WORDS:
    return True
  raise UserError('--best_mode is required for this --best_metric',
                  '--best_metric={} --best_mode=auto'.format(name),
                  'give --best_mode=max if larger values are better, or else min')
