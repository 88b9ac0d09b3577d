"""Writes the report of an evaluation: `evaluation.json`, and examples for the report page.

`report/samples.json` has the predicted classes of a few images, which are written as PNG files.
`report/outputs.json` has the true and predicted values of outputs that predict numbers.
"""

import io
import logging
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from estimator_train.reports import make_report_folder, metrics_log, report_files
from estimator_train.run_dir import RunDir
from estimator_train.settings.flags import RunFlags
from estimator_train.system import storage
from estimator_train.system.formatting import format_count, format_metric

_LOG = logging.getLogger('estimator_train')
# The charts of an output, by its index in outputs.json.
VALUES_FILE, ERRORS_FILE = 'output-{}-values.png', 'output-{}-errors.png'
_MAX_VALUES = 5000  # Of each output. An example may have several values of an output.
# With many more classes, the class names would overlap on the axes of the confusion matrix.
_MAX_SHOWN_CLASSES = 30
_MAX_SHOWN_CONFUSIONS = 10
_MAX_LOGGED_METRICS = 5  # In a line of the log. The page shows all metrics.
_MAX_THRESHOLDS = 200


def write_evaluation_report(flags: RunFlags, class_names: Sequence[str],
                            metrics: Dict[str, Any], sample_predictions: Any,
                            run_dir: RunDir) -> Dict[str, Any]:
  """Writes `evaluation.json` and the sample predictions, and returns the main metrics.

  Args:
    class_names: the class names, by class index; empty if there are no classes.
    metrics: see Evaluator.evaluate.
    sample_predictions: a few examples with the outputs of the model, an EvaluationSamples.
    run_dir: the folder to write to: `model_dir`, or a folder in it.
  """
  report = dict(metrics)
  counts = report.pop('class_counts', None)
  if class_names:
    report['per_class'] = compute_class_metrics(class_names, **counts)
    report['calibration_bins'] = [
        {'examples': int(examples), 'confidence': _divide_or_none(confidence_sum, examples),
         'accuracy': _divide_or_none(correct, examples)}
        for examples, confidence_sum, correct in zip(*metrics['calibration_bins'])]
    if 'score_counts' in report:
      report['threshold_curve'] = compute_threshold_curve(*report.pop('score_counts'))
    if 'confusions' in report:
      report['confusions'] = [
          {'label': class_names[true], 'predicted': class_names[predicted], 'examples': examples}
          for true, predicted, examples in report['confusions']]
  report_files.write(run_dir.path, 'evaluation', report)
  write_samples(run_dir.path, class_names, sample_predictions.images, sample_predictions.mistakes)
  if sample_predictions.outputs:
    report_files.write(run_dir.path, 'outputs', {
        sample.output_name: {'examples': len(sample.targets),
                             'true': _list_numbers(sample.targets),
                             'predicted': _list_numbers(sample.outputs)}
        for sample in sample_predictions.outputs})
  values = {name: value for name, value in metrics.items() if isinstance(value, float)}
  metrics_log.append(run_dir.path, 'evaluation', metrics['global_step'], values)
  _LOG.info('%s', _format_log_line(values, metrics['examples'], metrics['global_step']))
  return {'mode': flags.mode, 'model_dir': flags.model_dir,
          'global_step': metrics['global_step'], 'checkpoint': metrics['checkpoint'], **values,
          'examples': metrics['examples']}


def _format_log_line(values: Dict[str, float], num_examples: int, global_step: int) -> str:
  """Returns the line of the log about an evaluation, with the first metrics."""
  texts = ['{} {}'.format(name.replace('_', ' '), format_metric(value))
           for name, value in list(values.items())[:_MAX_LOGGED_METRICS]]
  return 'evaluation: {} ({} at step {})'.format(
      ', '.join(texts), format_count(num_examples, 'example'), global_step)


def compute_class_metrics(class_names: Sequence[str], correct: Sequence[int], true: Sequence[int],
                      predicted: Sequence[int]) -> Dict[str, Dict[str, Any]]:
  """Computes precision, recall, F1 and support of each class; see ClassMetrics.

  Args:
    correct: for each class, the number of its examples that are predicted as this class.
    true: the number of examples of each class.
    predicted: the number of examples that are predicted as each class.
  """
  return {name: {'precision': _divide_or_none(hits, predictions),
                 'recall': _divide_or_none(hits, support),
                 'f1': _divide_or_none(2 * hits, support + predictions), 'support': support}
          for name, hits, support, predictions in zip(class_names, correct, true, predicted)}


def _divide_or_none(numerator: float, denominator: float) -> Optional[float]:
  return numerator / denominator if denominator and math.isfinite(numerator) else None


def compute_threshold_curve(thresholds: np.ndarray, negatives: np.ndarray,
                            positives: np.ndarray) -> List[Dict[str, Optional[float]]]:
  """Computes the points of the ROC curve and the precision-recall curve, by descending threshold.

  Without examples of both classes, there are no points. At most _MAX_THRESHOLDS points are
  returned, which are about evenly spaced on the ROC curve, from its first to its last point.

  Args:
    thresholds: the lowest score of each bin, in ascending order.
    negatives, positives: the numbers of examples of both classes in each bin.
  """
  num_negatives, num_positives = negatives.sum(), positives.sum()
  if not num_negatives or not num_positives:
    return []
  filled = np.flatnonzero(negatives + positives)[::-1]
  false_positives, true_positives = (np.cumsum(counts[filled]) for counts in (negatives, positives))
  recalls = true_positives / num_positives
  false_positive_rates = false_positives / num_negatives
  distances = recalls + false_positive_rates  # From the first point, along the ROC curve.
  selected = np.unique(np.searchsorted(distances, np.linspace(
      distances[0], distances[-1], _MAX_THRESHOLDS - 1)))
  precisions = true_positives / (true_positives + false_positives)
  return [{'threshold': None, 'recall': 0., 'false_positive_rate': 0., 'precision': None}] + [
      {'threshold': float(thresholds[filled[index]]), 'recall': float(recalls[index]),
       'false_positive_rate': float(false_positive_rates[index]),
       'precision': float(precisions[index])} for index in selected]


def write_samples(model_dir: str, class_names: Sequence[str], samples: Sequence[Any],
                  mistakes: Sequence[Any]) -> None:
  """Writes examples, and examples whose predicted class is wrong, with their images.

  An example has the attributes `image` (pixel values from 0 to 255, [height, width, 1 or 3]),
  `class_index` (of the true class), `probabilities` ([num_classes]) and `identity` (the keys and
  values that identify it).
  """
  if samples:
    folder = make_report_folder(model_dir)
    report_files.write(model_dir, 'samples', {
        'samples': _write_images(folder, 'sample', class_names, samples),
        'mistakes': _write_images(folder, 'mistake', class_names, mistakes)})


def _write_images(folder: str, kind: str, class_names: Sequence[str],
                  samples: Sequence[Any]) -> List[Dict[str, Any]]:
  """Writes the images of examples to `KIND-NN.png`; returns the items of samples.json."""
  from PIL import Image

  items = []
  for index, sample in enumerate(samples):
    image_name = '{}-{:02d}.png'.format(kind, index)
    pixels = np.clip(sample.image, 0, 255).astype(np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(png, 'PNG')
    storage.write_bytes(os.path.join(folder, image_name), png.getvalue())
    probabilities = convert_to_probabilities(sample.probabilities)
    predicted = int(np.argmax(probabilities))
    items.append({
        'label': class_names[sample.class_index], 'predicted': class_names[predicted],
        'probability': float(probabilities[predicted]), 'image': image_name, **sample.identity})
  return items


def _list_numbers(values: np.ndarray) -> List[Optional[float]]:
  """Returns the first _MAX_VALUES values as a list, with None for values that are not finite."""
  return [float('{:.6g}'.format(value)) if np.isfinite(value) else None
          for value in values.astype(np.float64).ravel()[:_MAX_VALUES]]


def convert_to_probabilities(outputs: np.ndarray) -> np.ndarray:
  """Returns the probabilities [num_classes] for the outputs of a model, which may be logits."""
  outputs = outputs.astype(np.float64)
  if outputs.min() >= 0 and abs(outputs.sum() - 1) < 1e-3:
    return outputs
  exponentials = np.exp(outputs - outputs.max())
  return exponentials / exponentials.sum()


class ClassMetrics(NamedTuple):
  """The metrics of a class.

  Attributes:
    precision: a fraction; None if no example was predicted as this class.
    recall: a fraction; None if no example is of this class.
    f1: the harmonic mean of precision and recall; None if both are None.
  """
  class_index: int
  class_name: str
  precision: Optional[float]
  recall: Optional[float]
  f1: Optional[float]
  support: int


class Confusion(NamedTuple):
  """The number of examples of one class that were predicted as another class.

  Attributes:
    share: `examples` as a fraction of all examples of the true class.
  """
  true_class: str
  predicted_class: str
  examples: int
  share: float


class ShownClasses(NamedTuple):
  """The classes that the report page shows.

  Attributes:
    num_classes: the number of all classes, including those that are not shown.
    rows: the metrics of the shown classes, in the order of the model's outputs.
    matrix: the confusion matrix of the shown classes, int [len(rows), len(rows)]; None if the
      evaluation has too many classes for a confusion matrix.
    confusions: the most frequent confusions of all classes, by descending `examples`.
  """
  num_classes: int
  rows: List[ClassMetrics]
  matrix: Optional[np.ndarray]
  confusions: List[Confusion]


def select_classes_to_show(evaluation: Dict[str, Any]) -> Optional[ShownClasses]:
  """Returns the classes to show; None if there are none, or the confusion matrix is not valid.

  Args:
    evaluation: the contents of `evaluation.json`; empty if there is no such file.
  """
  per_class, matrix = evaluation.get('per_class') or {}, None
  class_names = list(per_class)
  if class_names and evaluation.get('confusion_matrix') is None:  # There are too many classes.
    num_mistakes = np.array([metrics['support'] * (1 - (metrics['recall'] or 0))
                             for metrics in per_class.values()])
    confusions = [Confusion(pair['label'], pair['predicted'], pair['examples'],
                            pair['examples'] / per_class[pair['label']]['support'])
                  for pair in (evaluation.get('confusions') or [])[:_MAX_SHOWN_CONFUSIONS]
                  if per_class.get(pair['label'], {}).get('support')]
  else:
    matrix = np.array(evaluation.get('confusion_matrix') or [], np.int64)
    if not matrix.size or matrix.shape != (len(per_class), len(per_class)):
      return None
    mistakes = matrix - np.diag(np.diag(matrix))
    # Each mistake counts for both its true class and its predicted class.
    num_mistakes = mistakes.sum(axis=0) + mistakes.sum(axis=1)
    most_frequent = np.argsort(-mistakes, axis=None, kind='stable')[:_MAX_SHOWN_CONFUSIONS]
    confusions = [Confusion(class_names[true], class_names[predicted],
                            int(mistakes[true, predicted]),
                            mistakes[true, predicted] / matrix[true].sum())
                  for true, predicted in zip(*np.unravel_index(most_frequent, mistakes.shape))
                  if mistakes[true, predicted]]
  # The classes with the most mistakes, in the order of the model's outputs.
  shown_indices = np.sort(np.argsort(-num_mistakes, kind='stable')[:_MAX_SHOWN_CLASSES])
  rows = [ClassMetrics(int(index), class_names[index],
                       *map(per_class[class_names[index]].get, ClassMetrics._fields[2:]))
          for index in shown_indices]
  return ShownClasses(len(class_names), rows, None if matrix is None else matrix[
      np.ix_(shown_indices, shown_indices)], confusions)
