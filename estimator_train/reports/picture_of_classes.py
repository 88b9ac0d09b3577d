"""The picture of a confusion matrix."""

from typing import Any

import numpy as np

from estimator_train.reports import drawing, words
from estimator_train.reports.classes import Classes
from estimator_train.reports.drawing import Picture

NAME = 'confusion-matrix.png'
_MAX_WITH_COUNTS = 12  # Classes whose fields are large enough for a number.


def confusion_matrix(classes: Classes) -> Picture:
  """Draws a field for each pair of true and predicted class, the darker the more frequent."""
  size = len(classes.rows)
  supports = np.array([[max(row.support, 1)] for row in classes.rows])
  shares = 100. * classes.matrix / supports
  figure, (axes,) = drawing.make_axes(drawing.WIDTH)
  image = axes.imshow(shares, cmap='Blues', vmin=0, vmax=100, aspect='auto')
  names = [drawing.label(row.label, 'class {}'.format(row.number)) for row in classes.rows]
  letters = 8.5 if size <= _MAX_WITH_COUNTS else 7
  axes.set_xticks(range(size))
  axes.set_xticklabels(names, rotation=90 if size > _MAX_WITH_COUNTS else 45, ha='right',
                       va='center' if size > _MAX_WITH_COUNTS else 'top', rotation_mode='anchor',
                       fontsize=letters)
  axes.set_yticks(range(size))
  axes.set_yticklabels(names, fontsize=letters)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  axes.grid(False)
  if size <= _MAX_WITH_COUNTS:
    _write_counts(axes, classes.matrix, shares)
  figure.colorbar(image, ax=axes, fraction=0.045, pad=0.03).set_label('of the true class (%)')
  right, all_shown = int(np.trace(classes.matrix)), int(sum(row.support for row in classes.rows))
  alt = 'Confusion matrix of {} classes: {:,} of {:,} examples ({}) are on the diagonal.'.format(
      size, right, all_shown, words.percent(right / max(all_shown, 1)))
  if classes.confusions:
    alt += ' The most frequent mistake: {0.label} taken for {0.predicted}, {0.examples:,} ' \
           'times.'.format(classes.confusions[0])
  caption = 'Rows are true classes, columns what was predicted.'
  if size < classes.total:
    caption += ' The {} of {:,} classes with the most mistakes.'.format(size, classes.total)
  return drawing.finish(figure, NAME, alt, caption)


def _write_counts(axes: Any, matrix: np.ndarray, shares: np.ndarray) -> None:
  for (row, column), count in np.ndenumerate(matrix):
    if count:
      axes.text(column, row, '{:,}'.format(count), ha='center', va='center', fontsize=7.5,
                color='white' if shares[row, column] > 55 else drawing.INK)
