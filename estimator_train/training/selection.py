"""Finds the metric that selects the best checkpoint, and applies the rules that stop a training."""

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
from estimator_train.settings.flags import EvaluationFlags
from estimator_train.system import json_values, storage
from estimator_train.tf_patches import keras as keras_patches

_STOP_REASON_FILE = 'stopped.json'
# The settings on which the decision to stop depends.
_RULE_SETTINGS = ('early_stopping_steps', 'stop_at_accuracy', 'best_metric', 'best_mode')
# The words of names of metrics that are better if they are larger, or smaller.
_MAX_WORDS = {'acc', 'accuracy', 'auc', 'precision', 'recall', 'specificity', 'sensitivity', 'iou',
              'f1', 'top', 'bleu', 'r2', 'similarity', 'correct', 'positives', 'negatives'}
_MIN_WORDS = {'loss', 'error', 'mse', 'mae', 'mape', 'msle', 'rmse', 'crossentropy', 'hinge',
              'poisson', 'logcosh', 'divergence', 'kld', 'perplexity', 'false'}


class StopReason(NamedTuple):
  """The reason for which an evaluation stopped the training.

  Attributes:
    global_step: that of the evaluated checkpoint.
    text: the reason in words, for the log and the result.
  """
  global_step: int
  text: str


def find_stop_reason(flags: EvaluationFlags, metrics: Dict[str, Any],
                     best_metric: BestMetric, best: BestCheckpoint) -> Optional[StopReason]:
  """Returns the reason to stop after an evaluation, or None to continue.

  Args:
    metrics: the result of the evaluation, with its `global_step`.
    best: may be the checkpoint that was just evaluated.
  """
  if flags.stop_at_accuracy is not None and metrics['accuracy'] >= flags.stop_at_accuracy:
    return StopReason(metrics['global_step'], 'accuracy {:.4f} reaches {:g}'.format(
        metrics['accuracy'], flags.stop_at_accuracy))
  steps = flags.early_stopping_steps
  since = metrics['global_step'] - max(best.global_step, best.compared_since)
  if steps is not None and since >= steps:
    return StopReason(metrics['global_step'], 'no improvement in {} for {} steps'.format(
        best_metric, since))
  return None


def write_stop_reason(run_dir: RunDir, flags: EvaluationFlags, stop_reason: StopReason,
                      examples_digest: str) -> None:
  """Records the stop, so that the same command does not continue the training."""
  storage.write_json(run_dir.path_to(_STOP_REASON_FILE), dict(
      _rule_values(flags), examples_digest=examples_digest, global_step=stop_reason.global_step,
      why=stop_reason.text))


def read_stop_reason(run_dir: RunDir, flags: EvaluationFlags, global_step: int,
                     test: Optional[Source] = None) -> Optional[StopReason]:
  """Returns the recorded reason to stop; None if no stop is recorded or the record is ignored.

  Args:
    flags: a stop by other rules is ignored.
    global_step: a stop at a later step is ignored.
    test: the test examples of the run. A stop by an evaluation of other examples is ignored.
  """
  def parse(file: BinaryIO) -> Optional[StopReason]:
    recorded = storage.parse_json(file, json_values.fields(
        {'global_step': json_values.integer(), 'why': json_values.text}))
    stop_reason = StopReason(recorded['global_step'], recorded['why'])
    is_valid = _rule_values(flags).items() <= recorded.items() and (
        test is None or recorded.get('examples_digest') in (None, test.content_digest()))
    return stop_reason if is_valid and stop_reason.global_step <= global_step else None

  return storage.load_or_warn(run_dir.path_to(_STOP_REASON_FILE), parse,
                              'the next evaluation applies the rules again')


def remove_stop_reason(run_dir: RunDir) -> None:
  """Removes the record of a stop, because training continues."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(run_dir.path_to(_STOP_REASON_FILE))


def _rule_values(flags: EvaluationFlags) -> Dict[str, Any]:
  return {name: getattr(flags, name) for name in _RULE_SETTINGS}


def find_best_metric(flags: EvaluationFlags, model: tf.keras.Model,
                     num_classes: int) -> BestMetric:
  """Returns the metric that selects the best checkpoint.

  Without --best_metric, it is the accuracy or, without classes, the average loss. It is the
  complete loss if the outputs have no loss, or the model adds losses that depend on the examples.

  Args:
    model: must be compiled.
    num_classes: 0: the examples have no classes.

  Raises:
    UserError: the model has no such metric, or --best_mode is needed.
  """
  names = _metric_names(model, num_classes)
  name = flags.best_metric or names[0]
  if name not in names:
    raise UserError('--best_metric must be a metric of the evaluation', '--best_metric=' + name,
                    'choose from {}, or compile the model with this metric'.format(
                        ', '.join(names)))
  if flags.stop_at_accuracy is not None and 'accuracy' not in names:
    raise UserError('--stop_at_accuracy requires the metric `accuracy`',
                    '--stop_at_accuracy={} with {}'.format(flags.stop_at_accuracy,
                                                           ', '.join(names)),
                    'give --best_metric and --early_stopping_steps instead')
  return BestMetric(name, _is_better_if_larger(name, flags.best_mode))


def _metric_names(model: tf.keras.Model, num_classes: int) -> List[str]:
  """Returns the names of the metrics of an evaluation, first the default of --best_metric."""
  keys = evaluation_metrics.make_keys(keras_patches.outputs_with_loss(model),
                                      keras_patches.named_metrics(model), num_classes)
  names = (evaluation_metrics.classifier_metric_names(num_classes) if num_classes
           else ['average_loss', 'loss'])
  if not num_classes and (not model.loss or model.get_losses_for(model.inputs)):
    names.reverse()
  return [*names, *keys.losses.values(), *keys.metrics.values()]


def _is_better_if_larger(name: str, mode: str) -> bool:
  """Returns whether larger values of a metric are better, from `--best_mode` or its name."""
  if mode != 'auto':
    return mode == 'max'
  words = set(re.split('[^a-z0-9]+', re.sub('([a-z])([A-Z])', r'\1_\2', name).lower()))
  if words & _MIN_WORDS:
    return False
  if words & _MAX_WORDS:
    return True
  raise UserError('--best_mode is required for this --best_metric',
                  '--best_metric={} --best_mode=auto'.format(name),
                  'give --best_mode=max if larger values are better, or else min')
