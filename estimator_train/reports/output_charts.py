"""Draws the charts of an output that predicts numbers: predicted and true values, and errors."""

from typing import Any, Dict, Iterator

import numpy as np

from estimator_train.reports import chart_rendering, number_format
from estimator_train.reports.chart_rendering import Chart
from estimator_train.reports.samples import ERRORS_FILE, VALUES_FILE

_MAX_OUTPUTS = 10
_MIN_BINS, _MAX_BINS = 10, 40


def draw_output_charts(outputs: Dict[str, Any]) -> Iterator[Chart]:
  """Yields the charts of the first outputs in `outputs.json`."""
  for index, (name, output) in enumerate(list(outputs.items())[:_MAX_OUTPUTS]):
    true, predicted = (np.array(output[key], float) for key in ('true', 'predicted'))
    is_known = np.isfinite(true) & np.isfinite(predicted)
    if is_known.any():
      yield _draw_values(true[is_known], predicted[is_known], name, output['examples'],
                         VALUES_FILE.format(index))
      yield _draw_errors((predicted - true)[is_known], name, ERRORS_FILE.format(index))


def _draw_values(true: np.ndarray, predicted: np.ndarray, output_name: str, num_examples: int,
                 file_name: str) -> Chart:
  """Draws a point for each value, and the line on which predictions are equal to true values."""
  figure, (axes,) = chart_rendering.make_subplots(300)
  limits = [min(true.min(), predicted.min()), max(true.max(), predicted.max())]
  axes.plot(limits, limits, color=chart_rendering.TEXT_COLOR, linewidth=0.8, linestyle='--',
            label='predicted = true')
  axes.scatter(true, predicted, s=9, color=chart_rendering.BLUE, alpha=0.5, linewidths=0)
  axes.set_xlabel('true value')
  axes.set_ylabel('predicted value')
  axes.legend(loc='lower right', bbox_to_anchor=(1, 1), borderaxespad=0.2)
  variance = float(((true - true.mean()) ** 2).mean())
  explained = ''
  if variance:
    explained = '; R² {}'.format(number_format.format_number(
        1 - float(((predicted - true) ** 2).mean()) / variance))
  return chart_rendering.render_chart(
      figure, file_name, 'Scatter chart of the predicted and the true values of {}: true values '
      'from {} to {}, predicted values from {} to {}.'.format(output_name, *map(
          number_format.format_number, (true.min(), true.max(), predicted.min(),
                                        predicted.max()))),
      '{} values of {} test examples, evenly spaced{}.'.format(
          number_format.format_number(len(true)), number_format.format_number(num_examples),
          explained))


def _draw_errors(errors: np.ndarray, output_name: str, file_name: str) -> Chart:
  """Draws the histogram of the errors, predicted minus true."""
  figure, (axes,) = chart_rendering.make_subplots(300)
  num_bins = max(_MIN_BINS, min(_MAX_BINS, len(errors) // 10))
  axes.hist(errors, num_bins, color=chart_rendering.BLUE, alpha=0.75, edgecolor='white',
            linewidth=0.4)
  axes.axvline(0, color=chart_rendering.TEXT_COLOR, linewidth=0.8, linestyle='--')
  axes.set_xlabel('error: predicted − true')
  axes.set_ylabel('values')
  axes.grid(False, axis='x')
  figures = dict(zip(('mean', 'mean absolute error', 'root mean squared error', '5 % below',
                      '95 % below'), map(number_format.format_number, (
                          errors.mean(), np.abs(errors).mean(), np.sqrt((errors ** 2).mean()),
                          *np.percentile(errors, (5, 95))))))
  text = ', '.join('{} {}'.format(*item) for item in figures.items())
  return chart_rendering.render_chart(
      figure, file_name, 'Histogram of the errors of {}: {}.'.format(output_name, text),
      text[0].upper() + text[1:] + '.')
