"""Draws the chart of a confusion matrix."""

from typing import Any

import numpy as np

from estimator_train.reports import chart_rendering, number_format
from estimator_train.reports.chart_rendering import Chart
from estimator_train.reports.class_selection import ShownClasses

_FILE_NAME = 'confusion-matrix.png'
_MAX_CLASSES_WITH_COUNTS = 12  # With more classes, the cells are too small for numbers.


def draw_confusion_matrix(classes: ShownClasses) -> Chart:
  """Draws the confusion matrix as a heat map, in percent of the examples of each true class."""
  num_classes = len(classes.rows)
  has_counts = num_classes <= _MAX_CLASSES_WITH_COUNTS
  supports = np.array([[max(row.support, 1)] for row in classes.rows])
  percentages = 100. * classes.matrix / supports
  figure, (axes,) = chart_rendering.make_subplots(chart_rendering.CHART_WIDTH)
  image = axes.imshow(percentages, cmap='Blues', vmin=0, vmax=100, aspect='auto')
  names = [chart_rendering.format_label(row.label, 'class {}'.format(row.class_index))
           for row in classes.rows]
  font_size = 8.5 if has_counts else 7
  axes.set_xticks(range(num_classes))
  axes.set_xticklabels(names, rotation=45 if has_counts else 90, ha='right',
                       va='top' if has_counts else 'center', rotation_mode='anchor',
                       fontsize=font_size)
  axes.set_yticks(range(num_classes))
  axes.set_yticklabels(names, fontsize=font_size)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  axes.grid(False)
  if has_counts:
    _draw_counts(axes, classes.matrix, percentages)
  figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03).set_label('share of the true class (%)')
  num_correct = int(np.trace(classes.matrix))
  num_examples = int(sum(row.support for row in classes.rows))
  alt = 'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.'.format(
      num_classes, num_correct, num_examples,
      number_format.format_percent(num_correct / max(num_examples, 1)))
  if classes.confusions:
    alt += ' The most frequent mistake: {0.label} predicted as {0.predicted}, ' \
           '{0.examples:,} times.'.format(classes.confusions[0])
  caption = 'Rows are true classes, columns are predicted classes.'
  if num_classes < classes.total:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(num_classes, classes.total)
  return chart_rendering.render_chart(figure, _FILE_NAME, alt, caption)


def _draw_counts(axes: Any, matrix: np.ndarray, percentages: np.ndarray) -> None:
  for (row, column), count in np.ndenumerate(matrix):
    if count:
      axes.text(column, row, '{:,}'.format(count), ha='center', va='center', fontsize=7.5,
                color='white' if percentages[row, column] > 55 else chart_rendering.TEXT_COLOR)
