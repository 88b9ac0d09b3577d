"""The chart of a confusion matrix."""

from typing import Any

import numpy as np

from estimator_train.reports import drawing, words
from estimator_train.reports.classes import ShownClasses
from estimator_train.reports.drawing import Chart

NAME = 'confusion-matrix.png'
_MAX_WITH_COUNTS = 12  # With more classes, the cells are too small for numbers.


def draw_confusion_matrix(classes: ShownClasses) -> Chart:
  """Draws the confusion matrix as a heat map, normalized over the true classes."""
  size = len(classes.rows)
  supports = np.array([[max(row.support, 1)] for row in classes.rows])
  shares = 100. * classes.matrix / supports
  figure, (axes,) = drawing.make_axes(drawing.WIDTH)
  image = axes.imshow(shares, cmap='Blues', vmin=0, vmax=100, aspect='auto')
  names = [drawing.chart_label(row.label, 'class {}'.format(row.class_index))
           for row in classes.rows]
  font_size = 8.5 if size <= _MAX_WITH_COUNTS else 7
  axes.set_xticks(range(size))
  axes.set_xticklabels(names, rotation=90 if size > _MAX_WITH_COUNTS else 45, ha='right',
                       va='center' if size > _MAX_WITH_COUNTS else 'top', rotation_mode='anchor',
                       fontsize=font_size)
  axes.set_yticks(range(size))
  axes.set_yticklabels(names, fontsize=font_size)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  axes.grid(False)
  if size <= _MAX_WITH_COUNTS:
    _draw_counts(axes, classes.matrix, shares)
  figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03).set_label('share of the true class (%)')
  correct, all_shown = int(np.trace(classes.matrix)), int(sum(row.support for row in classes.rows))
  alt = 'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.'.format(
      size, correct, all_shown, words.format_percent(correct / max(all_shown, 1)))
  if classes.confusions:
    alt += ' The most frequent mistake: {0.label} predicted as {0.predicted}, ' \
           '{0.examples:,} times.'.format(classes.confusions[0])
  caption = 'Rows are true classes, columns are predicted classes.'
  if size < classes.total:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(size, classes.total)
  return drawing.render_chart(figure, NAME, alt, caption)


def _draw_counts(axes: Any, matrix: np.ndarray, shares: np.ndarray) -> None:
  for (row, column), count in np.ndenumerate(matrix):
    if count:
      axes.text(column, row, '{:,}'.format(count), ha='center', va='center', fontsize=7.5,
                color='white' if shares[row, column] > 55 else drawing.INK)
