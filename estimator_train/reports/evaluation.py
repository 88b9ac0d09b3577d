"""Writes `evaluation.json`, the report of an evaluation."""

import logging
from typing import Any, Dict, Optional, Sequence

from estimator_train.files import atomic
from estimator_train.reports import samples
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

_LOG = logging.getLogger('estimator_train')
EVALUATION_FILE = 'evaluation.json'


def write_evaluation_report(settings: groups.Run, class_names: Sequence[str],
                            metrics: Dict[str, Any],
                            sample_predictions: Any) -> Dict[str, Any]:
  """Writes `evaluation.json` and the sample predictions, and returns the main metrics.

  Args:
    settings: `--mode` and `--model_dir`.
    class_names: class names, by class index; empty if there are no classes.
    metrics: the metrics, `global_step` and `checkpoint`; see Evaluator.evaluate.
    sample_predictions: a few examples with the outputs of the model; see `samples.py`.
  """
  report, run_dir = dict(metrics), RunDir(settings.model_dir)
  if class_names:
    report['per_class'] = per_class_metrics(class_names, metrics['confusion_matrix'])
  atomic.write_json(run_dir.path_to(EVALUATION_FILE), report)
  samples.write_samples(run_dir.path, class_names, sample_predictions.images)
  samples.write_output_samples(run_dir.path, sample_predictions.outputs)
  values = {name: value for name, value in metrics.items() if isinstance(value, float)}
  _LOG.info('%s over %d examples at step %d', ', '.join(
      '{} {:.4f}'.format(name.replace('_', ' '), value) for name, value in values.items()),
            metrics['examples'], metrics['global_step'])
  return {'mode': settings.mode, 'model_dir': settings.model_dir,
          'global_step': metrics['global_step'], 'checkpoint': metrics['checkpoint'], **values,
          'examples': metrics['examples']}


def per_class_metrics(class_names: Sequence[str],
                      matrix: Sequence[Sequence[int]]) -> Dict[str, Dict[str, Any]]:
  """Computes precision, recall and support of each class.

  Args:
    class_names: class names, by class index.
    matrix: confusion matrix, with a row per true class and a column per predicted class, in the
      order of `class_names`.

  Returns:
    By class name: `precision` (None if no example was predicted as this class), `recall` (None if
    no example is of this class) and `support`, the number of examples of this class.
  """
  metrics = {}
  for index, class_name in enumerate(class_names):
    support = sum(matrix[index])
    predicted = sum(row[index] for row in matrix)
    metrics[class_name] = {'precision': _ratio(matrix[index][index], predicted),
                           'recall': _ratio(matrix[index][index], support),
                           'support': support}
  return metrics


def _ratio(numerator: int, denominator: int) -> Optional[float]:
  return numerator / denominator if denominator else None
