"""Draws the confusion matrix of the report page."""

from typing import Any

import numpy as np

from estimator_train.reports import chart_rendering, number_format
from estimator_train.reports.chart_rendering import Chart
from estimator_train.reports.class_selection import ShownClasses

_FILE_NAME = 'confusion-matrix.png'
_MAX_CLASSES_WITH_COUNTS = 12  # With more classes, the cells are too small for numbers.


def draw_confusion_matrix(shown_classes: ShownClasses) -> Chart:
  """Draws a heat map. The colour of a cell shows which percentage of the row the cell contains."""
  num_shown = len(shown_classes.rows)
  has_counts = num_shown <= _MAX_CLASSES_WITH_COUNTS
  supports = np.array([[max(row.support, 1)] for row in shown_classes.rows])
  percentages = 100. * shown_classes.matrix / supports
  figure, (axes,) = chart_rendering.make_subplots(chart_rendering.CHART_WIDTH)
  image = axes.imshow(percentages, cmap='Blues', vmin=0, vmax=100, aspect='auto')
  tick_labels = [
      chart_rendering.format_tick_label(row.class_name, 'class {}'.format(row.class_index))
      for row in shown_classes.rows]
  font_size = 8.5 if has_counts else 7
  axes.set_xticks(range(num_shown))
  axes.set_xticklabels(tick_labels, rotation=45 if has_counts else 90, ha='right',
                       va='top' if has_counts else 'center', rotation_mode='anchor',
                       fontsize=font_size)
  axes.set_yticks(range(num_shown))
  axes.set_yticklabels(tick_labels, fontsize=font_size)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  axes.grid(False)
  if has_counts:
    _draw_counts(axes, shown_classes.matrix, percentages)
  figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03).set_label('share of the true class (%)')
  num_correct = int(np.trace(shown_classes.matrix))
  num_examples = int(sum(row.support for row in shown_classes.rows))
  alt = 'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.'.format(
      num_shown, num_correct, num_examples,
      number_format.format_percent(num_correct / max(num_examples, 1)))
  if shown_classes.confusions:
    alt += ' The most frequent mistake: {0.true_class} predicted as {0.predicted_class}, ' \
           '{0.examples:,} times.'.format(shown_classes.confusions[0])
  caption = 'Rows are true classes, columns are predicted classes.'
  if num_shown < shown_classes.num_classes:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(
        num_shown, shown_classes.num_classes)
  return chart_rendering.render_chart(figure, _FILE_NAME, alt, caption)


def _draw_counts(axes: Any, matrix: np.ndarray, percentages: np.ndarray) -> None:
  """Writes the number of examples into each cell that is not 0."""
  for (row, column), count in np.ndenumerate(matrix):
    if count:
      axes.text(column, row, '{:,}'.format(count), ha='center', va='center', fontsize=7.5,
                color='white' if percentages[row, column] > 55 else chart_rendering.TEXT_COLOR)
