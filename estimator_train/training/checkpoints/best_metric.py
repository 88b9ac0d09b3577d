"""Resolves --best_metric and --best_mode to the metric that selects the best checkpoint."""

import re
from typing import Any, Dict, List, NamedTuple, Optional

import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.settings import groups

# The words of names of metrics that are better if they are larger, or smaller.
_MAX_WORDS = {'acc', 'accuracy', 'auc', 'precision', 'recall', 'specificity', 'sensitivity', 'iou',
              'f1', 'top', 'bleu', 'r2', 'similarity', 'correct', 'positives', 'negatives'}
_MIN_WORDS = {'loss', 'error', 'mse', 'mae', 'mape', 'msle', 'rmse', 'crossentropy', 'hinge',
              'poisson', 'logcosh', 'divergence', 'kld', 'perplexity', 'false'}


class BestMetric(NamedTuple):
  """The metric by which checkpoints are compared.

  Attributes:
    name: the name of the metric.
    is_max: whether larger values are better.
  """
  name: str
  is_max: bool

  def is_better(self, value: Optional[float], best_value: Optional[float]) -> bool:
    """Returns whether a value is better than the best so far; None is the worst value."""
    if value is None or best_value is None:
      return value is not None
    return value > best_value if self.is_max else value < best_value

  def __str__(self) -> str:
    return self.name.replace('_', ' ')


def resolve(settings: groups.Evaluation, model: tf.keras.Model, has_classes: bool) -> BestMetric:
  """Returns the metric that selects the best checkpoint.

  Args:
    settings: the evaluation flags. If --best_metric is not given, the metric is the accuracy or,
      without classes, the average loss; it is the complete loss if the outputs have no loss, or
      the model adds losses that depend on the examples.
    model: the compiled model, which gives the names of its metrics.
    has_classes: whether the examples have classes.

  Raises:
    UserError: the model has no such metric, or --best_mode is needed.
  """
  names = _metric_names(model, has_classes)
  name = settings.best_metric or names[0]
  if name not in names:
    raise UserError('--best_metric must be a metric of the evaluation', '--best_metric=' + name,
                    'choose from {}, or compile the model with this metric'.format(
                        ', '.join(names)))
  if settings.stop_at_accuracy is not None and 'accuracy' not in names:
    raise UserError('--stop_at_accuracy requires the metric `accuracy`',
                    '--stop_at_accuracy={} with {}'.format(settings.stop_at_accuracy,
                                                           ', '.join(names)),
                    'give --best_metric and --early_stopping_steps instead')
  return BestMetric(name, _is_max(name, settings.best_mode))


def values_of(metrics: Dict[str, Any]) -> Dict[str, Optional[float]]:
  """Returns the metrics of an evaluation that can select the best checkpoint."""
  return {name: value for name, value in metrics.items()
          if value is None or isinstance(value, float)}


def _metric_names(model: tf.keras.Model, has_classes: bool) -> List[str]:
  """Returns the names of the metrics of an evaluation, first the default of --best_metric."""
  compiled = [name for name in model.metrics_names if name != 'loss']
  names = ['accuracy', 'average_loss'] if has_classes else ['average_loss', 'loss']
  if not has_classes and (not model.loss or model.get_losses_for(model.inputs)):
    names.reverse()
  return names + [name for name in compiled if name not in names]


def _is_max(name: str, mode: str) -> bool:
  """Returns whether larger values of a metric are better."""
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
