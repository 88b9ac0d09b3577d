"""Draws the charts of the report page.

This module draws the charts of step times, loss and accuracy, and calls the modules of the other
charts.
"""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from estimator_train.reports import (
  chart_rendering,
  confusion_matrix_chart,
  number_format,
  output_charts,
  prediction_chart,
  scaling_chart,
)
from estimator_train.reports.chart_rendering import Chart
from estimator_train.reports.class_selection import ShownClasses
from estimator_train.reports.page_data import PageData

_STEP_TIME_FILE, _HISTOGRAM_FILE, _LOSS_FILE, _ACCURACY_FILE = (
    'step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png')
# The y axis of the step time may end at this multiple of the median step time and cut off slower
# steps. Otherwise, a single outlier would flatten the rest of the curve.
_MAX_MULTIPLE_OF_MEDIAN = 4

Curve = List[Tuple[int, float]]  # (global step, value)


def draw_charts(data: PageData, shown_classes: Optional[ShownClasses]) -> Dict[str, Chart]:
  """Draws every chart for which the run has data.

  Args:
    data: data of the run.
    shown_classes: the classes in the confusion matrix; None if the run has no evaluation.

  Returns:
    Charts by file name.
  """
  with chart_rendering.apply_chart_style():
    charts = [*_draw_step_charts(data.steps, data.throughput), *_draw_curves(data.curves)]
    if shown_classes is not None:
      charts.append(confusion_matrix_chart.draw_confusion_matrix(shown_classes))
    charts.extend(output_charts.draw_output_charts(data.outputs))
    if scaling_chart.group_rows_by_series(data.scaling):
      charts.append(scaling_chart.draw_scaling_chart(data.scaling))
      if data.scaling.get('predictions'):
        charts.append(prediction_chart.draw_prediction_chart(data.scaling))
  return {chart.name: chart for chart in charts}


def _draw_step_charts(steps: Dict[str, Any], throughput: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of `steps.json`. The histogram shows percentiles from `throughput.json`."""
  if steps.get('global_step'):
    yield _draw_step_time(steps)
  if sum(steps.get('histogram', {}).get('counts', [])):
    yield _draw_histogram(steps['histogram'], throughput.get('steady_step_secs', {}))


def _draw_step_time(steps: Dict[str, Any]) -> Chart:
  """Draws the mean and the longest step time of each point, which stands for one or more steps."""
  global_steps = np.array(steps['global_step'])
  mean_secs, max_secs = np.array(steps['mean_secs']), np.array(steps['max_secs'])
  median_secs = float(np.median(mean_secs))
  factor, unit = number_format.choose_secs_unit(median_secs)
  figure, (axes,) = chart_rendering.make_subplots(300)
  points_are_single_steps = np.array_equal(mean_secs, max_secs)
  if not points_are_single_steps:
    axes.fill_between(global_steps, mean_secs * factor, max_secs * factor,
                      color=chart_rendering.BLUE, alpha=0.2, linewidth=0,
                      label='up to the longest step')
  axes.plot(global_steps, mean_secs * factor, color=chart_rendering.BLUE, linewidth=1.2,
            marker='o' if len(global_steps) == 1 else None,
            label='step time' if points_are_single_steps else 'mean step time')
  top_secs = max(_MAX_MULTIPLE_OF_MEDIAN * median_secs,
                 0 if points_are_single_steps else 1.1 * float(mean_secs.max()))
  axes.set_ylim(0, factor * min(top_secs, 1.1 * float(max_secs.max())))
  axes.set_xlabel('global step')
  axes.set_ylabel('step time ({})'.format(unit))
  # The legend is above the axes, where it hides no data.
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  num_above = int(np.sum(max_secs > top_secs))
  caption = 'Steady steps: excluding the warm-up, checkpoints and evaluations.'
  if num_above:
    caption += ' {} of {} points are above the top of the chart, up to {}.'.format(
        num_above, len(global_steps), number_format.format_secs(max_secs.max()))
  return chart_rendering.render_chart(
      figure, _STEP_TIME_FILE, 'Line chart of the step time up to global step {}: median {}, '
      'maximum {}, last point {}.'.format(
          global_steps[-1], number_format.format_secs(median_secs),
          number_format.format_secs(max_secs.max()), number_format.format_secs(mean_secs[-1])),
      caption)


def _draw_histogram(histogram: Dict[str, Any], percentiles: Dict[str, Any]) -> Chart:
  """Draws the histogram of the step times, with lines at the p50, p90 and p99."""
  edges, counts = np.array(histogram['edges_secs']), np.array(histogram['counts'])
  largest_bin = int(counts.argmax())
  factor, unit = number_format.choose_secs_unit(float(edges[largest_bin + 1]))
  figure, (axes,) = chart_rendering.make_subplots(300)
  axes.bar(edges[:-1] * factor, counts, np.diff(edges) * factor, align='edge',
           color=chart_rendering.BLUE, alpha=0.75, edgecolor='white', linewidth=0.4)
  for name, color, line_style in (('p50', chart_rendering.TEXT_COLOR, '-'),
                                  ('p90', chart_rendering.GREEN, '--'),
                                  ('p99', chart_rendering.RED, ':')):
    if number_format.is_number(percentiles.get(name)):
      axes.axvline(percentiles[name] * factor, color=color, linestyle=line_style,
                   label='{}: {}'.format(name, number_format.format_secs(percentiles[name])))
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=3, borderaxespad=0.2)
  axes.set_xlabel('step time ({})'.format(unit))
  axes.set_ylabel('steps')
  axes.grid(False, axis='x')
  return chart_rendering.render_chart(
      figure, _HISTOGRAM_FILE, 'Histogram of the times of {:,} steps, from {} to {}; the largest '
      'bin has {:,} steps, from {} to {}.'.format(
          int(counts.sum()), *map(number_format.format_secs, (edges[0], edges[-1])),
          int(counts[largest_bin]),
          *map(number_format.format_secs, edges[largest_bin:largest_bin + 2])))


def _draw_curves(curves: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of loss and accuracy from the contents of `curves.json`."""
  for metric, file_name, unit_suffix, factor in (('loss', _LOSS_FILE, '', 1.),
                                                 ('accuracy', _ACCURACY_FILE, ' (%)', 100.)):
    train, evaluation = (_select_finite_points(curves.get(prefix + metric))
                         for prefix in ('train_', 'eval_'))
    if train or evaluation:
      yield _draw_metric_curves(train, evaluation, metric, file_name, unit_suffix, factor)


def _select_finite_points(curve: Optional[Sequence[Tuple[int, Optional[float]]]]) -> Curve:
  return [(step, value) for step, value in curve or []
          if value is not None and number_format.is_number(value)]


def _draw_metric_curves(train: Curve, evaluation: Curve, metric: str, file_name: str,
                        unit_suffix: str, factor: float) -> Chart:
  """Draws the curves of a metric in training and in evaluation.

  Args:
    train: curve of training; may be empty.
    evaluation: curve of evaluation; may be empty.
    metric: name of the metric.
    file_name: file name of the chart.
    unit_suffix: text after the name of the metric at the y axis.
    factor: factor that converts a value of the curves to the unit of the y axis.
  """
  figure, (axes,) = chart_rendering.make_subplots(300)
  descriptions = []
  for curve, source, color, marker in ((train, 'training', chart_rendering.BLUE, ''),
                                       (evaluation, 'evaluation', chart_rendering.RED, 'o')):
    if curve:
      steps, values = zip(*curve)
      axes.plot(steps, np.array(values) * factor, color=color, label=source,
                marker=marker or ('o' if len(curve) == 1 else None), markersize=4.5,
                linestyle='--' if marker else '-')
      format_value = number_format.format_percent if unit_suffix else number_format.format_number
      descriptions.append('in {}, {} at step {}{}'.format(
          source, format_value(values[0]), steps[0], '' if len(curve) == 1
          else ' to {} at step {}'.format(format_value(values[-1]), steps[-1])))
  axes.set_xlabel('global step')
  axes.set_ylabel(metric + unit_suffix)
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  return chart_rendering.render_chart(
      figure, file_name, 'Line chart of the {}: {}.'.format(metric, '; '.join(descriptions)))
