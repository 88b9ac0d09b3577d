"""Draws the charts of the report page."""

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from estimator_train.reports.evaluation import ERRORS_FILE, VALUES_FILE, ShownClasses
from estimator_train.reports.learning_curves import EPOCH_CURVE, Curve
from estimator_train.reports.page_content import format_percent, format_quantity, format_secs
from estimator_train.reports.plotting import (
  Axis,
  Box,
  Chart,
  Line,
  compute_axis_ends,
  compute_log_axis_ends,
  draw_chart,
  lay_out_cells,
)
from estimator_train.system.formatting import choose_secs_unit, format_number, is_number

_MAX_TICK_LABEL_LENGTH = 18  # In characters.
# The y axis of the step time may end at this multiple of the median step time and cut off slower
# steps. Otherwise, a single outlier would flatten the rest of the curve.
_MAX_MULTIPLE_OF_MEDIAN = 4
MAX_CLASSES_WITH_COUNTS = 12  # With more classes, the cells are too small for numbers.
_MAX_OUTPUTS_WITH_CHARTS = 10
_RUN_COLORS = ('blue', 'red', 'green', 'purple', 'orange', 'sky')
# A scale is logarithmic if the largest value is at least the first of these multiples of the
# smallest value, and at least the second one of the median. A learning rate that decays linearly or
# like a cosine is not far below half of its maximum at the median.
_MIN_RATIO_OF_LOG_SCALE, _MIN_RATIO_TO_MEDIAN_OF_LOG_SCALE = 50, 5
# A curve with fewer points is not smoothed.
_MIN_SMOOTHED_POINTS = 30
# The standard deviation of the kernel that smooths a curve, as a fraction of its steps.
_SMOOTHED_FRACTION = .015
# (metric, factor that converts its values to those on the y axis, unit on the y axis, function that
# formats its values).
_METRICS = (('loss', 1., '', format_number), ('accuracy', 100., ' (%)', format_percent))


def format_tick_label(name: str, fallback: str) -> str:
  """Shortens a name to one short line; returns `fallback` if the line is empty or unprintable."""
  line = ' '.join(name.split())
  if len(line) > _MAX_TICK_LABEL_LENGTH:
    line = line[:_MAX_TICK_LABEL_LENGTH - 1] + '…'
  return line if line and line.isprintable() else fallback


def draw_step_charts(steps: Dict[str, Any], throughput: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of `steps.json`. The histogram shows percentiles from `throughput.json`."""
  if steps.get('global_step'):
    yield _draw_step_times(*(np.array(steps[key])
                             for key in ('global_step', 'mean_secs', 'max_secs')))
  if sum(steps.get('histogram', {}).get('counts', [])):
    yield _draw_histogram(steps['histogram'], throughput.get('steady_step_secs') or {})


def _draw_step_times(global_steps: np.ndarray, mean_secs: np.ndarray,
                     max_secs: np.ndarray) -> Chart:
  """Draws the mean and the longest step time of each point, which represents several steps."""
  median_secs = float(np.median(mean_secs))
  factor, unit = choose_secs_unit(median_secs)
  top_secs = min(_MAX_MULTIPLE_OF_MEDIAN * median_secs, 1.1 * float(max_secs.max()))
  num_above = int(np.sum(max_secs > top_secs))
  caption = 'Steady steps: excluding the warm-up, checkpoints and evaluations.'
  if num_above:
    caption += ' {} of {} points are above the top of the chart.'.format(
        num_above, len(global_steps))
  return draw_chart(
      'step-time.png', 'Line chart of the step time up to global step {}: median {}, maximum {}, '
      'last point {}.'.format(global_steps[-1], *map(format_secs, (
          median_secs, max_secs.max(), mean_secs[-1]))),
      Axis('global step', *compute_axis_ends(global_steps, .02), is_integer=True),
      Axis('step time ({})'.format(unit), 0, factor * top_secs),
      [Line('sky', global_steps, max_secs * factor, 'longest step', 1),
       Line('blue', global_steps, mean_secs * factor, 'mean', 1.2)], caption=caption)


def _draw_histogram(histogram: Dict[str, Any], percentiles: Dict[str, Any]) -> Chart:
  """Draws the histogram of the step times, with lines at the p50, p90 and p99."""
  bin_edges, counts = np.array(histogram['edges_secs']), np.array(histogram['counts'])
  largest_bin, max_count = int(counts.argmax()), counts.max()
  factor, unit = choose_secs_unit(float(bin_edges[largest_bin + 1]))
  lines = [
      Line(color, [percentiles[name] * factor] * 2, [0, 1.05 * max_count],
           name, dash=dash)
      for name, color, dash in (('p50', 'ink', 0), ('p90', 'green', 5), ('p99', 'red', 2))
      if is_number(percentiles.get(name))]
  return draw_chart(
      'step-histogram.png', 'Histogram of the times of {:,} steps, from {} to {}; the '
      'largest bin has {:,} steps, from {} to {}.'.format(
          int(counts.sum()), *map(format_secs, (bin_edges[0], bin_edges[-1])),
          int(counts[largest_bin]), *map(format_secs, bin_edges[largest_bin:largest_bin + 2])),
      Axis('step time ({})'.format(unit), *compute_axis_ends(bin_edges * factor, .02)),
      Axis('steps', 0, 1.05 * max_count, is_integer=True), lines,
      _make_bars(bin_edges * factor, counts, unit + ': ', 'steps'))


def _make_bars(bin_edges: np.ndarray, counts: np.ndarray, unit: str, noun: str) -> List[Box]:
  return [Box(start, count, end, 0, '{} to {} {}{:,} {}'.format(
      format_number(start), format_number(end), unit, count, noun))
          for start, end, count in zip(bin_edges, bin_edges[1:], counts) if count]


def draw_curves(curves: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of loss, accuracy and learning rate from the contents of `curves.json`."""
  x_scale = _XScale([curves])
  yield from _draw_metrics('', [_MetricCurves(curves, 'train_', 'training', 'blue', True),
                                _MetricCurves(curves, 'eval_', 'evaluation', 'red', True)], x_scale)
  curve = _known_points(curves.get('learning_rate'))
  rates = [rate for _, rate in curve]
  if len(set(rates)) > 1:
    xs = x_scale.convert([step for step, _ in curve], curves)
    yield draw_chart(
        'learning-rate.png', 'Line chart of the learning rate, from {} at step {} to {} at step {}.'
        .format(format_number(rates[0]), curve[0][0], format_number(rates[-1]), curve[-1][0]),
        x_scale.make_axis(xs), _make_value_axis('learning rate', rates, rates),
        [Line('blue', xs, rates, 'learning rate')], height=220)


class _XScale:
  """The x axis of curves: epochs if they are known for each of the runs, otherwise global steps.

  Args:
    all_curves: for each run, the contents of its `curves.json`.
  """

  def __init__(self, all_curves: Sequence[Mapping[str, Any]]) -> None:
    epochs = [_known_points(curves.get(EPOCH_CURVE)) for curves in all_curves]
    self._has_epochs = all(len(points) > 1 and points[-1][1] >= 1 for points in epochs)
    self._epochs = {id(curves): np.array(points) for curves, points in zip(all_curves, epochs)}

  def convert(self, steps: Sequence[float], curves: Mapping[str, Any]) -> np.ndarray:
    """Converts global steps of a run, which has these curves, to values on the axis."""
    steps = np.asarray(steps, float)
    if not self._has_epochs:
      return steps
    known_steps, epochs = self._epochs[id(curves)].T
    # A killed run may have written points after the last known step.
    slope = (epochs[-1] - epochs[-2]) / (known_steps[-1] - known_steps[-2] or 1)
    return np.interp(steps, known_steps, epochs) + np.maximum(steps - known_steps[-1], 0) * slope

  def make_axis(self, values: Any) -> Axis:
    return Axis('epoch' if self._has_epochs else 'global step', *compute_axis_ends(values, .02),
                is_integer=not self._has_epochs)


def _known_points(curve: Optional[Curve]) -> Curve:
  return [(step, value) for step, value in curve or [] if is_number(value)]


def _make_value_axis(label: str, values: Sequence[float],
                     typical_values: Sequence[float]) -> Axis:
  """Returns an axis for all values, which is logarithmic if the typical values span decades."""
  if min(values) > 0 and max(typical_values) >= max(
      _MIN_RATIO_OF_LOG_SCALE * min(typical_values),
      _MIN_RATIO_TO_MEDIAN_OF_LOG_SCALE * float(np.median(typical_values))):
    return Axis(label, *compute_log_axis_ends(values), is_log=True)
  return Axis(label, *compute_axis_ends(values))


class _MetricCurves(NamedTuple):
  """A curve of each metric of a run, for training or evaluation.

  Attributes:
    curves: the contents of `curves.json`.
    prefix: `train_` or `eval_`.
    is_smoothed_only: whether a smoothed curve takes the place of the points of the training.
  """
  curves: Mapping[str, Any]
  prefix: str
  label: str
  color: str
  in_legend: bool
  is_smoothed_only: bool = False

  def make_lines(self, points: Curve, factor: float, x_scale: _XScale) -> List[Line]:
    """Returns a line through the points and, if there are many, a smoothed line."""
    steps, values = np.array(points).T
    values = values * factor
    xs = x_scale.convert(steps, self.curves)
    # Training is a line, and evaluations are points on a dashed line.
    if self.prefix == 'eval_':
      return [Line(self.color, xs, values, self.label, 1.6, 5, 6, self.in_legend)]
    if len(points) < _MIN_SMOOTHED_POINTS:
      return [Line(self.color, xs, values, self.label, in_legend=self.in_legend)]
    smoothed = _smooth(steps, values)
    if self.is_smoothed_only:
      return [Line(self.color, xs, smoothed, self.label, in_legend=self.in_legend)]
    return [Line('sky', xs, values, self.label, .8),
            Line(self.color, xs, smoothed, self.label + ', smoothed')]


def _smooth(steps: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Returns means of neighboring values, weighted by a Gaussian kernel over the steps."""
  # The range of the steps is at least as large as the number of points.
  deviation = _SMOOTHED_FRACTION * (steps[-1] - steps[0])
  weights = np.exp(-.5 * ((steps[:, np.newaxis] - steps) / deviation) ** 2)
  smoothed: np.ndarray = weights @ values / weights.sum(1)
  return smoothed


def _draw_metrics(name_prefix: str, all_curves: Sequence[_MetricCurves], x_scale: _XScale,
                  caption: str = '') -> Iterator[Chart]:
  for metric, factor, unit, format_value in _METRICS:
    lines: List[Line] = []
    descriptions = []
    for curves in all_curves:
      points = _known_points(curves.curves.get(curves.prefix + metric))
      if points:
        lines += curves.make_lines(points, factor, x_scale)
        descriptions.append('{}, {} at step {}{}'.format(
            curves.label, format_value(points[0][1]), points[0][0], '' if len(points) == 1
            else ' to {} at step {}'.format(format_value(points[-1][1]), points[-1][0])))
    if lines:
      values = np.concatenate([line.ys for line in lines])
      # The thin lines, of single batches, do not decide whether the scale is logarithmic.
      typical = np.concatenate([line.ys for line in lines if line.width > 1])
      yield draw_chart(
          name_prefix + metric + '.png',
          'Line chart of the {}: {}.'.format(metric, '; '.join(descriptions)),
          x_scale.make_axis(np.concatenate([line.xs for line in lines])),
          _make_value_axis(metric, values, typical) if metric == 'loss'
          else Axis(metric + unit, *compute_axis_ends(values)),
          lines, caption=caption)


def draw_confusion_matrix(shown: ShownClasses) -> Chart:
  """Draws a heat map. The opacity of a cell shows its fraction of the examples in its row."""
  rows, matrix, size = shown.rows, shown.matrix, len(shown.rows)
  assert matrix is not None
  has_counts = size <= MAX_CLASSES_WITH_COUNTS
  names = [format_tick_label(row.class_name, 'class {}'.format(row.class_index)) for row in rows]
  cells = []
  for (row, column), count in np.ndenumerate(matrix):
    share = min(count / max(rows[row].support, 1), 1)
    if count:
      cells.append(Box(column, row, column + 1, row + 1, '{} predicted as {}: {:,}, {}'.format(
          names[row], names[column], count, format_percent(share)), opacity=.04 + .96 * share,
                       text='{:,}'.format(count) if has_counts else ''))
  ticks = [(index + .5, name) for index, name in enumerate(names)]
  num_correct, num_examples = int(np.trace(matrix)), int(sum(row.support for row in rows))
  description = (
      'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.{}').format(
          size, num_correct, num_examples, format_percent(num_correct / max(num_examples, 1)),
          ' The most frequent mistake: {0.true_class} predicted as {0.predicted_class}, '
          '{0.examples:,} times.'.format(shown.confusions[0]) if shown.confusions else '')
  caption = 'Rows are true classes, columns are predicted classes. The stronger the color of a ' \
            'cell, the larger its share of the true class.'
  if size < shown.num_classes:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(
        size, shown.num_classes)
  layout = lay_out_cells(names, 45 if has_counts else 90)
  return draw_chart(
      'confusion-matrix.png', description,
      Axis('predicted class', 0, size, ticks=ticks, angle=layout.angle),
      Axis('true class', size, 0, ticks=ticks), (), cells, caption, layout.height, layout.width)


def draw_reliability(evaluation: Dict[str, Any]) -> Iterator[Chart]:
  """Draws the accuracy over the confidence, which is the probability of the predicted class.

  Args:
    evaluation: the contents of `evaluation.json`. Files of earlier versions have no bins.

  Yields:
    The chart, unless no bin has examples.
  """
  bins = evaluation.get('calibration_bins') or []
  filled_bins = [each for each in bins if is_number(each.get('confidence'))
                 and is_number(each.get('accuracy'))]
  if not filled_bins:
    return
  num_examples = sum(each['examples'] for each in bins)
  bin_edges = np.linspace(0, 100, len(bins) + 1)
  bars = [Box(start, 100 * each['examples'] / num_examples, end, 0,
              'confidence {} to {} %: {:,} examples, mean confidence {}, accuracy {}'.format(
                  *map(format_number, (start, end)), each['examples'],
                  *map(format_percent, (each['confidence'], each['accuracy']))), 'sky', .35)
          for start, end, each in zip(bin_edges, bin_edges[1:], bins) if each in filled_bins]
  num_over_confident = sum(each['accuracy'] < each['confidence'] for each in filled_bins)
  yield draw_chart(
      'reliability.png', 'Line chart of the accuracy over the confidence: in {} of {} bins with '
      'examples, the accuracy is below the confidence; in the last of them, it is {} at a '
      'confidence of {}.'.format(num_over_confident, len(filled_bins), *map(format_percent, (
          filled_bins[-1]['accuracy'], filled_bins[-1]['confidence']))),
      Axis('confidence (%)', 0, 100), Axis('accuracy (%)', 0, 100),
      [Line('ink', [0, 100], [0, 100], 'accuracy = confidence', 1, 5),
       Line('blue', [100 * each['confidence'] for each in filled_bins],
            [100 * each['accuracy'] for each in filled_bins], 'accuracy', dot=6)], bars,
      'The confidence is the probability of the predicted class. Below the dashed line, the model '
      'is over-confident. Bars: the share of the examples in each of {} bins. Calibration error: '
      '{}.'.format(len(bins), format_percent(evaluation.get('calibration_error'))), 360)


def draw_threshold_curves(evaluation: Dict[str, Any]) -> Iterator[Chart]:
  """Draws the ROC curve and the precision-recall curve of an evaluation of two classes.

  Args:
    evaluation: the contents of `evaluation.json`.

  Yields:
    The two charts, unless there are no points.
  """
  points, class_names = evaluation.get('threshold_curve') or [], list(evaluation['per_class'])
  if len(points) < 2 or len(class_names) < 2:
    return
  name = format_tick_label(class_names[1], 'class 1')
  recalls, false_positive_rates = (
      [100 * point[key] for point in points] for key in ('recall', 'false_positive_rate'))
  chosen = _rates_of_predictions(evaluation)
  auc, average_precision = (
      format_number(evaluation.get(key)) for key in ('roc_auc', 'average_precision'))
  yield draw_chart(
      'roc.png', 'Line chart of the recall of {} over its false positive rate: the area under the '
      'curve is {}.'.format(name, auc),
      Axis('false positive rate (%)', 0, 100), Axis('recall (%)', 0, 100),
      [Line('ink', [0, 100], [0, 100], 'random scores', 1, 5),
       Line('blue', false_positive_rates, recalls, 'ROC'), *[
           Line('red', [100 * rates.false_positive_rate], [100 * rates.recall], 'threshold 0.5',
                width=0, dot=7) for rates in chosen]],
      caption='The positive class is {}. Area under the ROC curve (AUC): {}.'.format(name, auc))
  shares = [evaluation['per_class'][each]['support'] for each in class_names]
  share = 100 * shares[1] / (sum(shares) or 1)
  curve = [(100 * point['recall'], 100 * point['precision']) for point in points
           if is_number(point.get('precision'))]
  if curve:
    yield draw_chart(
        'precision-recall.png', 'Line chart of the precision of {} over its recall: the average '
        'precision is {}.'.format(name, average_precision),
        Axis('recall (%)', 0, 100), Axis('precision (%)', 0, 100),
        [Line('ink', [0, 100], [share, share], 'random scores', 1, 5),
         Line('blue', [recall for recall, _ in curve], [precision for _, precision in curve],
              'precision'), *[
             Line('red', [100 * rates.recall], [100 * rates.precision], 'threshold 0.5', width=0,
                  dot=7) for rates in chosen]],
        caption='Area under the precision-recall curve (average precision): {}.'.format(
            average_precision))


class _PredictionRates(NamedTuple):
  """The rates of the predictions of the positive class, which have the higher probability."""
  recall: float
  false_positive_rate: float
  precision: float


def _rates_of_predictions(evaluation: Dict[str, Any]) -> List[_PredictionRates]:
  """Returns the rates of the predictions; [] if one of them is unknown."""
  matrix = np.array(evaluation.get('confusion_matrix') or [])
  if matrix.shape != (2, 2) or not matrix.sum(1).all() or not matrix[:, 1].sum():
    return []
  return [_PredictionRates(*(float(matrix[row, 1] / total) for row, total in (
      (1, matrix[1].sum()), (0, matrix[0].sum()), (1, matrix[:, 1].sum()))))]


def draw_output_charts(outputs: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of the first outputs that predict numbers, as in `outputs.json`."""
  for index, (name, output) in enumerate(list(outputs.items())[:_MAX_OUTPUTS_WITH_CHARTS]):
    true, predicted = (np.array(output[key], float) for key in ('true', 'predicted'))
    is_known = np.isfinite(true) & np.isfinite(predicted)
    if is_known.any():
      yield _draw_values(true[is_known], predicted[is_known], name, output['examples'], index)
      yield _draw_errors((predicted - true)[is_known], name, index)


def _draw_values(true: np.ndarray, predicted: np.ndarray, output_name: str, num_examples: int,
                 index: int) -> Chart:
  """Draws a point for each value, and the line on which predictions equal the true values."""
  line_ends = [max(true.min(), predicted.min()), min(true.max(), predicted.max())]
  variance = float(((true - true.mean()) ** 2).mean())
  r_squared_text = '; R² ' + format_number(
      1 - float(((predicted - true) ** 2).mean()) / variance) if variance else ''
  return draw_chart(
      VALUES_FILE.format(index), 'Scatter chart of the predicted and the true values '
      'of {}: true values from {} to {}, predicted values from {} to {}.'.format(output_name, *map(
          format_number, (true.min(), true.max(), predicted.min(), predicted.max()))),
      Axis('true value', *compute_axis_ends(true)),
      Axis('predicted value', *compute_axis_ends(predicted)),
      [Line('blue', true, predicted, width=0, dot=2.5),
       Line('ink', line_ends, line_ends, 'predicted = true', 1, 5)],
      caption='{} values of {} test examples, evenly spaced{}.'.format(
          format_number(len(true)), format_number(num_examples), r_squared_text))


def _draw_errors(errors: np.ndarray, output_name: str, index: int) -> Chart:
  """Draws the histogram of the errors, predicted minus true."""
  counts, bin_edges = np.histogram(errors, min(max(len(errors) // 10, 10), 40))
  text = 'mean {}, mean absolute error {}, root mean squared error {}, 5 % below {}, 95 % below {}'
  text = text.format(*map(format_number, (
      errors.mean(), np.abs(errors).mean(), np.sqrt((errors ** 2).mean()),
      *np.percentile(errors, (5, 95)))))
  return draw_chart(
      ERRORS_FILE.format(index), 'Histogram of the errors of {}: {}.'.format(output_name, text),
      Axis('error: predicted − true', *compute_axis_ends([*bin_edges, 0], .02)),
      Axis('values', 0, 1.05 * counts.max(), is_integer=True),
      [Line('ink', [0, 0], [0, 1.05 * counts.max()], width=1, dash=5)],
      _make_bars(bin_edges, counts, '', 'values'), text[0].upper() + text[1:] + '.')


def draw_comparison_charts(names: Sequence[str], rates: Sequence[Dict[str, Optional[float]]],
                           curves: Sequence[Dict[str, Curve]]) -> Iterator[Chart]:
  """Yields the charts that compare runs: their rates, and their loss and accuracy by step.

  Args:
    curves: for each run, the contents of `curves.json`.
  """
  short_names = [format_tick_label(name, 'run {}'.format(number))
                 for number, name in enumerate(names, 1)]
  colors = [_RUN_COLORS[index % len(_RUN_COLORS)] for index in range(len(names))]
  # One bar chart shows the first unit in which the rates of all runs are known.
  for unit in rates[0]:
    known_rates = [rate for rate in (each[unit] for each in rates) if rate is not None]
    if len(known_rates) == len(names):
      texts = [format_quantity(rate, unit) for rate in known_rates]
      yield draw_chart(
          'rates.png', 'Bar chart of the rates: {}.'.format('; '.join(
              map(': '.join, zip(names, texts)))), Axis(unit, 0, 1.05 * max(known_rates) or 1),
          Axis('', len(names), 0, ticks=[
              (index + .5, name) for index, name in enumerate(short_names)]), (),
          [Box(0, index + .15, rate, index + .85, text, color)
           for index, (rate, text, color) in enumerate(zip(known_rates, texts, colors))],
          height=70 + 28 * len(names))
      break
  yield from _draw_metrics('compared-', [
      _MetricCurves(curves_of_run, prefix, name + label, color, not label, True)
      for name, color, curves_of_run in zip(short_names, colors, curves)
      for prefix, label in (('train_', ''), ('eval_', ', evaluation'))], _XScale([
          each for each in curves if any(each.get(name) for name in each if name != EPOCH_CURVE)]),
                           'Lines: training, smoothed. Dashed lines with points: evaluations.')
