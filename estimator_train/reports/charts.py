"""Draws the charts of the report page as PNG images, all in the same style.

Matplotlib is slow to import. Therefore, page.py imports this module only to write a page.
"""

import contextlib
import io
import warnings
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import matplotlib
import numpy as np
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from estimator_train.reports.evaluation import ERRORS_FILE, VALUES_FILE, ShownClasses
from estimator_train.reports.learning_curves import Curve
from estimator_train.reports.page_content import (
  choose_secs_unit,
  format_number,
  format_percent,
  format_quantity,
  format_secs,
  is_number,
)

# In CSS pixels. The text of a chart is legible even on a phone, which shows the chart at 3/4 of
# this width.
_CHART_WIDTH = 480
_CSS_DPI, _PNG_DPI = 100, 200  # Twice as many pixels keep the charts sharp on phones and in print.
_TEXT_COLOR, MUTED_COLOR = '#1f2933', '#6b7785'
# Colours of the Okabe-Ito palette, which colour-blind readers can distinguish.
BLUE, RED, GREEN, PURPLE = '#0072b2', '#d55e00', '#009e73', '#cc79a7'
_RUN_COLORS = (BLUE, RED, GREEN, PURPLE, '#e69f00', '#56b4e9')
_STYLE: Dict[str, Any] = {
    'axes.axisbelow': True, 'axes.edgecolor': '#aab4bf', 'axes.grid': True,
    'axes.labelcolor': _TEXT_COLOR, 'axes.labelsize': 9, 'axes.spines.right': False,
    'axes.spines.top': False, 'font.size': 9, 'grid.color': '#e6eaee', 'legend.fontsize': 8.5,
    'legend.frameon': False, 'lines.linewidth': 1.6, 'lines.markersize': 4.5,
    'text.color': _TEXT_COLOR, 'text.usetex': False, 'xtick.color': MUTED_COLOR,
    'xtick.labelcolor': _TEXT_COLOR, 'ytick.color': MUTED_COLOR, 'ytick.labelcolor': _TEXT_COLOR,
    'font.family': 'DejaVu Sans'}  # The font comes with matplotlib, so every machine has it.
_MAX_TICK_LABEL_LENGTH = 18  # In characters.
_TICK_FORMATTER = ticker.StrMethodFormatter('{x:,.10g}')
# The y axis of the step time may end at this multiple of the median step time and cut off slower
# steps. Otherwise, a single outlier would flatten the rest of the curve.
_MAX_MULTIPLE_OF_MEDIAN = 4
_MAX_CLASSES_WITH_COUNTS = 12  # With more classes, the cells are too small for numbers.
_MAX_OUTPUTS = 10
# (metric, factor from the values of a curve to those at the y axis, their unit, their format).
_METRICS = (('loss', 1., '', format_number), ('accuracy', 100., ' (%)', format_percent))

class Chart(NamedTuple):
  """A rendered chart of the report page.

  Attributes:
    name: file name of the chart; page.html refers to the chart by this name.
    alt: alternative text for readers who cannot see the chart.
    caption: caption below the chart; may be empty.
    width, height: size in CSS pixels.
    png: contents of the PNG file.
  """
  name: str
  alt: str
  caption: str
  width: int
  height: int
  png: bytes


@contextlib.contextmanager
def apply_chart_style() -> Iterator[None]:
  """Returns a context in which the style of this module replaces the user's matplotlib settings."""
  with matplotlib.rc_context(), warnings.catch_warnings():
    # tight_layout warns if the axis labels do not fit. The chart is usable anyway.
    warnings.simplefilter('ignore')
    matplotlib.rcdefaults()
    # An old matplotlib lacks some of the settings: 3.3 has no `xtick.labelcolor`.
    matplotlib.rcParams.update(
        {name: value for name, value in _STYLE.items() if name in matplotlib.rcParams})
    yield


def make_subplots(height: int, height_ratios: Sequence[int] = (1,)) -> Tuple[Figure, Any]:
  """Returns a matplotlib figure with subplots that share one x axis, and an array of their axes.

  Args:
    height: height of the figure in CSS pixels.
    height_ratios: relative heights of the subplots, from top to bottom.
  """
  figure = Figure(figsize=(_CHART_WIDTH / _CSS_DPI, height / _CSS_DPI))
  FigureCanvasAgg(figure)
  all_axes = figure.subplots(len(height_ratios), 1, sharex=True, squeeze=False,
                             gridspec_kw={'height_ratios': list(height_ratios)})[:, 0]
  for axes in all_axes:
    axes.xaxis.set_major_formatter(_TICK_FORMATTER)
    axes.yaxis.set_major_formatter(_TICK_FORMATTER)
  return figure, all_axes


def _make_axes(x_label: str, y_label: str, height: int = 300) -> Any:
  """Returns the labelled axes of a new figure with one plot."""
  _, (axes,) = make_subplots(height)
  axes.set_xlabel(x_label)
  axes.set_ylabel(y_label)
  return axes


def _add_legend(axes: Any, columns: int = 1) -> None:
  """Adds a legend above the axes, where it hides no data."""
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=columns, borderaxespad=0.2)


def render_chart(figure: Figure, name: str, alt: str, caption: str = '') -> Chart:
  """Renders a matplotlib figure and returns the Chart; see Chart for the other arguments."""
  figure.tight_layout(pad=0.4)
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png', dpi=_PNG_DPI, facecolor='white')
  width, height = (int(round(inches * _CSS_DPI)) for inches in figure.get_size_inches())
  return Chart(name, alt, caption, width, height, buffer.getvalue())


def format_tick_label(class_name: str, fallback: str) -> str:
  """Converts a class name to one short line of text that matplotlib can draw.

  Args:
    class_name: the class name, which may contain any characters.
    fallback: the text to return if the class name is empty or not printable, or if the font lacks
      a character of the class name.
  """
  line = ' '.join(class_name.split())
  if len(line) > _MAX_TICK_LABEL_LENGTH:
    line = line[:_MAX_TICK_LABEL_LENGTH - 1] + '…'
  font = font_manager.get_font(font_manager.findfont('DejaVu Sans'))
  if not line or not line.isprintable() or not all(
      font.get_char_index(ord(character)) for character in line):
    line = fallback
  return line.replace('$', r'\$')  # Otherwise, `$` could begin a formula.


def draw_step_charts(steps: Dict[str, Any], throughput: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of `steps.json`. The histogram shows percentiles from `throughput.json`."""
  if steps.get('global_step'):
    yield _draw_step_time(*(np.array(steps[key])
                            for key in ('global_step', 'mean_secs', 'max_secs')))
  if sum(steps.get('histogram', {}).get('counts', [])):
    yield _draw_histogram(steps['histogram'], throughput.get('steady_step_secs', {}))


def _draw_step_time(global_steps: np.ndarray, mean_secs: np.ndarray,
                    max_secs: np.ndarray) -> Chart:
  """Draws the mean and the longest step time of each point, which stands for one or more steps."""
  median_secs = float(np.median(mean_secs))
  factor, unit = choose_secs_unit(median_secs)
  axes = _make_axes('global step', 'step time ({})'.format(unit))
  points_are_single_steps = np.array_equal(mean_secs, max_secs)
  if not points_are_single_steps:
    axes.fill_between(global_steps, mean_secs * factor, max_secs * factor, color=BLUE, alpha=0.2,
                      linewidth=0, label='up to the longest step')
  axes.plot(global_steps, mean_secs * factor, color=BLUE, linewidth=1.2, markersize=6,
            marker='o' if len(global_steps) == 1 else None,
            label='step time' if points_are_single_steps else 'mean step time')
  top_secs = max(_MAX_MULTIPLE_OF_MEDIAN * median_secs,
                 0 if points_are_single_steps else 1.1 * float(mean_secs.max()))
  axes.set_ylim(0, factor * min(top_secs, 1.1 * float(max_secs.max())))
  _add_legend(axes, 2)
  num_above = int(np.sum(max_secs > top_secs))
  caption = 'Steady steps: excluding the warm-up, checkpoints and evaluations.'
  if num_above:
    caption += ' {} of {} points are above the top of the chart, up to {}.'.format(
        num_above, len(global_steps), format_secs(max_secs.max()))
  return render_chart(
      axes.figure, 'step-time.png', 'Line chart of the step time up to global step {}: median {}, '
      'maximum {}, last point {}.'.format(global_steps[-1], *map(format_secs, (
          median_secs, max_secs.max(), mean_secs[-1]))), caption)


def _draw_histogram(histogram: Dict[str, Any], percentiles: Dict[str, Any]) -> Chart:
  """Draws the histogram of the step times, with lines at the p50, p90 and p99."""
  edges, counts = np.array(histogram['edges_secs']), np.array(histogram['counts'])
  largest_bin = int(counts.argmax())
  factor, unit = choose_secs_unit(float(edges[largest_bin + 1]))
  axes = _make_axes('step time ({})'.format(unit), 'steps')
  axes.bar(edges[:-1] * factor, counts, np.diff(edges) * factor, align='edge', color=BLUE,
           alpha=0.75, edgecolor='white', linewidth=0.4)
  for name, color, line_style in (('p50', _TEXT_COLOR, '-'), ('p90', GREEN, '--'),
                                  ('p99', RED, ':')):
    if is_number(percentiles.get(name)):
      axes.axvline(percentiles[name] * factor, color=color, linestyle=line_style,
                   label='{}: {}'.format(name, format_secs(percentiles[name])))
  if axes.get_legend_handles_labels()[0]:
    _add_legend(axes, 3)
  axes.grid(False, axis='x')
  return render_chart(
      axes.figure, 'step-histogram.png', 'Histogram of the times of {:,} steps, from {} to {}; the '
      'largest bin has {:,} steps, from {} to {}.'.format(
          int(counts.sum()), *map(format_secs, (edges[0], edges[-1])), int(counts[largest_bin]),
          *map(format_secs, edges[largest_bin:largest_bin + 2])))


def _plot_curve(axes: Any, curve: Curve, factor: float, is_evaluation: bool, color: str,
                label: Optional[str] = None) -> None:
  """Plots a curve: of training as a line, of evaluations as points on a dashed line."""
  steps, values = zip(*curve)
  axes.plot(steps, np.array(values) * factor, color=color, label=label,
            marker='o' if is_evaluation or len(curve) == 1 else None,
            linestyle='--' if is_evaluation else '-')


def draw_curves(curves: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of loss and accuracy from the contents of `curves.json`."""
  for metric, factor, unit, format_value in _METRICS:
    found = {source: [(step, value) for step, value in curves.get(prefix + metric) or []
                      if is_number(value)]
             for source, prefix in (('training', 'train_'), ('evaluation', 'eval_'))}
    if not any(found.values()):
      continue
    axes, descriptions = _make_axes('global step', metric + unit), []
    for (source, curve), color in zip(found.items(), (BLUE, RED)):
      if curve:
        _plot_curve(axes, curve, factor, source == 'evaluation', color, source)
        descriptions.append('in {}, {} at step {}{}'.format(
            source, format_value(curve[0][1]), curve[0][0], '' if len(curve) == 1
            else ' to {} at step {}'.format(format_value(curve[-1][1]), curve[-1][0])))
    _add_legend(axes, 2)
    yield render_chart(axes.figure, metric + '.png', 'Line chart of the {}: {}.'.format(
        metric, '; '.join(descriptions)))


def draw_confusion_matrix(shown_classes: ShownClasses) -> Chart:
  """Draws a heat map. The colour of a cell shows which percentage of the row the cell contains."""
  rows, matrix = shown_classes.rows, shown_classes.matrix
  has_counts = len(rows) <= _MAX_CLASSES_WITH_COUNTS
  percentages = 100. * matrix / np.array([[max(row.support, 1)] for row in rows])
  axes = _make_axes('predicted class', 'true class', _CHART_WIDTH)
  image = axes.imshow(percentages, cmap='Blues', vmin=0, vmax=100, aspect='auto')
  tick_labels = [format_tick_label(row.class_name, 'class {}'.format(row.class_index))
                 for row in rows]
  axes.set_xticks(range(len(rows)))
  axes.set_xticklabels(tick_labels, rotation=45 if has_counts else 90, ha='right',
                       va='top' if has_counts else 'center', rotation_mode='anchor')
  axes.set_yticks(range(len(rows)))
  axes.set_yticklabels(tick_labels)
  axes.tick_params(labelsize=8.5 if has_counts else 7)
  axes.grid(False)
  for (row, column), count in np.ndenumerate(matrix):
    if count and has_counts:
      axes.text(column, row, '{:,}'.format(count), ha='center', va='center', fontsize=7.5,
                color='white' if percentages[row, column] > 55 else _TEXT_COLOR)
  axes.figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03,
                       label='share of the true class (%)')
  num_correct, num_examples = int(np.trace(matrix)), int(sum(row.support for row in rows))
  alt = 'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.'.format(
      len(rows), num_correct, num_examples, format_percent(num_correct / max(num_examples, 1)))
  if shown_classes.confusions:
    alt += ' The most frequent mistake: {0.true_class} predicted as {0.predicted_class}, ' \
           '{0.examples:,} times.'.format(shown_classes.confusions[0])
  caption = 'Rows are true classes, columns are predicted classes.'
  if len(rows) < shown_classes.num_classes:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(
        len(rows), shown_classes.num_classes)
  return render_chart(axes.figure, 'confusion-matrix.png', alt, caption)


def draw_output_charts(outputs: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of the first outputs that predict numbers, as in `outputs.json`."""
  for index, (name, output) in enumerate(list(outputs.items())[:_MAX_OUTPUTS]):
    true, predicted = (np.array(output[key], float) for key in ('true', 'predicted'))
    is_known = np.isfinite(true) & np.isfinite(predicted)
    if is_known.any():
      yield _draw_values(true[is_known], predicted[is_known], name, output['examples'], index)
      yield _draw_errors((predicted - true)[is_known], name, index)


def _draw_values(true: np.ndarray, predicted: np.ndarray, output_name: str, num_examples: int,
                 index: int) -> Chart:
  """Draws a point for each value, and the line on which predictions are equal to true values."""
  axes = _make_axes('true value', 'predicted value')
  limits = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
  axes.plot(limits, limits, color=_TEXT_COLOR, linewidth=0.8, linestyle='--',
            label='predicted = true')
  axes.scatter(true, predicted, s=9, color=BLUE, alpha=0.5, linewidths=0)
  _add_legend(axes)
  variance = float(((true - true.mean()) ** 2).mean())
  explained = '; R² ' + format_number(
      1 - float(((predicted - true) ** 2).mean()) / variance) if variance else ''
  return render_chart(
      axes.figure, VALUES_FILE.format(index), 'Scatter chart of the predicted and the true values '
      'of {}: true values from {} to {}, predicted values from {} to {}.'.format(output_name, *map(
          format_number, (true.min(), true.max(), predicted.min(), predicted.max()))),
      '{} values of {} test examples, evenly spaced{}.'.format(
          format_number(len(true)), format_number(num_examples), explained))


def _draw_errors(errors: np.ndarray, output_name: str, index: int) -> Chart:
  """Draws the histogram of the errors, predicted minus true."""
  axes = _make_axes('error: predicted − true', 'values')
  axes.hist(errors, min(max(len(errors) // 10, 10), 40), color=BLUE, alpha=0.75, edgecolor='white',
            linewidth=0.4)
  axes.axvline(0, color=_TEXT_COLOR, linewidth=0.8, linestyle='--')
  axes.grid(False, axis='x')
  text = 'mean {}, mean absolute error {}, root mean squared error {}, 5 % below {}, 95 % below {}'
  text = text.format(*map(format_number, (
      errors.mean(), np.abs(errors).mean(), np.sqrt((errors ** 2).mean()),
      *np.percentile(errors, (5, 95)))))
  return render_chart(
      axes.figure, ERRORS_FILE.format(index), 'Histogram of the errors of {}: {}.'.format(
          output_name, text), text[0].upper() + text[1:] + '.')


def draw_comparison_charts(names: Sequence[str], rates: Sequence[Dict[str, Optional[float]]],
                           curves: Sequence[Dict[str, Curve]]) -> Iterator[Chart]:
  """Yields the charts that compare runs: their rates, and their loss and accuracy by step.

  Args:
    names: names of the runs.
    rates, curves: for each run, its rates by their unit, and the contents of `curves.json`.
  """
  short_names = [format_tick_label(name, 'run {}'.format(number))
                 for number, name in enumerate(names, 1)]
  colors = [_RUN_COLORS[index % len(_RUN_COLORS)] for index in range(len(names))]
  # One bar chart shows the first unit in which the rates of all runs are known.
  for unit in rates[0]:
    if None not in [of_run[unit] for of_run in rates]:
      axes = _make_axes(unit, '', 70 + 28 * len(names))
      axes.barh(range(len(names)), [of_run[unit] for of_run in rates], color=colors, height=.7)
      axes.set_yticks(range(len(names)))
      axes.set_yticklabels(short_names)
      axes.invert_yaxis()
      axes.grid(False, axis='y')
      yield render_chart(axes.figure, 'rates.png', 'Bar chart of the rates: {}.'.format('; '.join(
          '{}: {}'.format(name, format_quantity(of_run[unit], unit))
          for name, of_run in zip(names, rates))))
      break
  for metric, factor, unit, _ in _METRICS:
    kinds = [prefix + metric for prefix in ('train_', 'eval_')]
    if not any(of_run.get(kind) for of_run in curves for kind in kinds):
      continue
    axes = _make_axes('global step', metric + unit, 320)
    for name, color, of_run in zip(short_names, colors, curves):
      # This empty line gives the legend one entry per run, which stands for all its curves.
      axes.plot([], [], color=color, label=name)
      for kind in kinds:
        if of_run.get(kind):
          _plot_curve(axes, of_run[kind], factor, kind == kinds[1], color)
    axes.legend(loc='best')
    yield render_chart(axes.figure, 'compared-{}.png'.format(metric),
                       'Line chart of the {} of {} runs by global step.'.format(metric, len(names)),
                       'Lines: training. Dashed lines with points: evaluations.')
