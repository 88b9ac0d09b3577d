"""Charts of the step times, the loss and the accuracy."""

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from estimator_train.reports import drawing, picture_of_classes, picture_of_scaling, words
from estimator_train.reports.classes import ShownClasses
from estimator_train.reports.drawing import Chart
from estimator_train.reports.page_files import PageData

STEP_TIME, HISTOGRAM, LOSS, ACCURACY = (
    'step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png')
# The y axis ends at this multiple of the median, because one outlier would flatten the curve.
_MAX_MEDIANS = 4

Curve = List[Tuple[int, float]]


def draw_charts(data: PageData, classes: Optional[ShownClasses]) -> Dict[str, Chart]:
  """Draws every chart for which the run has data.

  Args:
    data: data of the run.
    classes: classes in the confusion matrix; None without an evaluation.

  Returns:
    Charts by file name.
  """
  with drawing.chart_style():
    charts = [*_draw_step_charts(data.steps, data.throughput), *_draw_curves(data.curves)]
    if classes is not None:
      charts.append(picture_of_classes.draw_confusion_matrix(classes))
    if picture_of_scaling.rows_by_series(data.scaling):
      charts.append(picture_of_scaling.draw_scaling_chart(data.scaling))
  return {chart.name: chart for chart in charts}


def _draw_step_charts(steps: Dict[str, Any], throughput: Dict[str, Any]) -> Iterator[Chart]:
  if steps.get('global_step'):
    yield _draw_step_time(steps)
  if sum(steps.get('histogram', {}).get('counts', [])):
    yield _draw_histogram(steps['histogram'], throughput.get('steady_step_secs', {}))


def _draw_step_time(steps: Dict[str, Any]) -> Chart:
  global_step = np.array(steps['global_step'])
  means, longest = np.array(steps['mean_secs']), np.array(steps['max_secs'])
  median = float(np.median(means))
  factor, unit = words.secs_unit(median)
  figure, (axes,) = drawing.make_axes(300)
  is_every_step = np.array_equal(means, longest)
  if not is_every_step:
    axes.fill_between(global_step, means * factor, longest * factor, color=drawing.BLUE, alpha=0.2,
                      linewidth=0, label='up to the longest step')
  axes.plot(global_step, means * factor, color=drawing.BLUE, linewidth=1.2,
            marker='o' if len(global_step) == 1 else None,
            label='step time' if is_every_step else 'mean step time')
  top = max(_MAX_MEDIANS * median, 1.1 * float(means.max()) if not is_every_step else 0)
  axes.set_ylim(0, factor * min(top, 1.1 * float(longest.max())))
  axes.set_xlabel('global step')
  axes.set_ylabel('step time ({})'.format(unit))
  # The legend is above the axes, where it hides no data.
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  beyond = int(np.sum(longest > top))
  caption = 'Steady steps: excluding the warm-up, checkpoints and evaluations.'
  if beyond:
    caption += ' {} of {} points are above the top of the chart, up to {}.'.format(
        beyond, len(global_step), words.format_secs(longest.max()))
  return drawing.render_chart(
      figure, STEP_TIME, 'Line chart of the step time up to global step {}: median {}, maximum {}, '
      'last point {}.'.format(global_step[-1], words.format_secs(median),
                              words.format_secs(longest.max()), words.format_secs(means[-1])),
      caption)


def _draw_histogram(histogram: Dict[str, Any], spread: Dict[str, Any]) -> Chart:
  edges, counts = np.array(histogram['edges_secs']), np.array(histogram['counts'])
  factor, unit = words.secs_unit(float(edges[counts.argmax() + 1]))
  figure, (axes,) = drawing.make_axes(300)
  axes.bar(edges[:-1] * factor, counts, np.diff(edges) * factor, align='edge',
           color=drawing.BLUE, alpha=0.75, edgecolor='white', linewidth=0.4)
  for name, color, dashes in (('p50', drawing.INK, '-'), ('p90', drawing.GREEN, '--'),
                              ('p99', drawing.RED, ':')):
    if words.is_number(spread.get(name)):
      axes.axvline(spread[name] * factor, color=color, linestyle=dashes,
                   label='{}: {}'.format(name, words.format_secs(spread[name])))
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=3, borderaxespad=0.2)
  axes.set_xlabel('step time ({})'.format(unit))
  axes.set_ylabel('steps')
  axes.grid(False, axis='x')
  mode = int(counts.argmax())
  return drawing.render_chart(
      figure, HISTOGRAM, 'Histogram of the times of {:,} steps, from {} to {}; the largest bin has '
      '{:,} steps, from {} to {}.'.format(
          int(counts.sum()), words.format_secs(edges[0]), words.format_secs(edges[-1]),
          int(counts[mode]), words.format_secs(edges[mode]), words.format_secs(edges[mode + 1])))


def _draw_curves(curves: Dict[str, Any]) -> Iterator[Chart]:
  for metric, name, unit, factor in (('loss', LOSS, '', 1.), ('accuracy', ACCURACY, ' (%)', 100.)):
    train, evaluated = (_finite_points(curves.get(prefix + metric))
                        for prefix in ('train_', 'eval_'))
    if train or evaluated:
      yield _draw_curve(train, evaluated, metric, name, unit, factor)


def _finite_points(curve: Optional[Sequence[Tuple[int, Optional[float]]]]) -> Curve:
  return [(step, value) for step, value in curve or []
          if value is not None and words.is_number(value)]


def _draw_curve(train: Curve, evaluated: Curve, metric: str, name: str, unit: str,
                factor: float) -> Chart:
  figure, (axes,) = drawing.make_axes(300)
  alts = []
  for curve, source, color, marker in ((train, 'training', drawing.BLUE, ''),
                                       (evaluated, 'evaluation', drawing.RED, 'o')):
    if curve:
      steps, values = zip(*curve)
      axes.plot(steps, np.array(values) * factor, color=color, label=source,
                marker=marker or ('o' if len(curve) == 1 else None), markersize=4.5,
                linestyle='--' if marker else '-')
      format_value = words.format_percent if unit else words.format_number
      alts.append('in {}, {} at step {}{}'.format(
          source, format_value(values[0]), steps[0], '' if len(curve) == 1
          else ' to {} at step {}'.format(format_value(values[-1]), steps[-1])))
  axes.set_xlabel('global step')
  axes.set_ylabel(metric + unit)
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=2, borderaxespad=0.2)
  return drawing.render_chart(
      figure, name, 'Line chart of the {}: {}.'.format(metric, '; '.join(alts)))
