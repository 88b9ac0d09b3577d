"""Draws the predictions of a scaling sweep for more replicas or workers than were measured."""

from typing import Any, Dict, List

from estimator_train.reports import charts, number_format, scaling_chart
from estimator_train.reports.charts import Chart

_FILE_NAME = 'scaling-prediction.png'


def draw_prediction_chart(sweep: Dict[str, Any]) -> Chart:
  """Draws the predicted rates with their intervals, and the measured rates.

  Args:
    sweep: the contents of `scaling.json`, which must have predictions.
  """
  figure, (axes,) = charts.make_subplots(330)
  unit = scaling_chart.unit_key(sweep)
  series: Dict[scaling_chart.SeriesKey, List[Dict[str, Any]]] = {}
  for row in sweep['predictions']['table']:
    series.setdefault((row['scaling'], row['input']), []).append(row)
  measured = scaling_chart.group_rows_by_series(sweep)
  descriptions = []
  for key, rows in series.items():
    color, marker, line_style = scaling_chart.LINE_STYLES[key]
    counts = [row[unit] for row in rows]
    axes.plot(counts, [row['examples_per_sec'] for row in rows], color=color, linestyle=line_style,
              label='{} scaling, {} input'.format(*key))
    axes.fill_between(counts, [row['low'] for row in rows], [row['high'] for row in rows],
                      color=color, alpha=.15, linewidth=0)
    points = measured.get(key, [])
    axes.plot([row[unit] for row in points], [row['examples_per_sec'] for row in points], marker,
              color=color, markersize=4.5)
    last = rows[-1]
    descriptions.append('{} scaling on {} input to {} ({} to {}) on {}'.format(
        *key, number_format.format_quantity(last['examples_per_sec'], 'examples/sec'),
        number_format.format_number(last['low']), number_format.format_number(last['high']),
        last[unit]))
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.xaxis.set_major_formatter(charts.TICK_FORMATTER)
  axes.yaxis.set_major_formatter(charts.TICK_FORMATTER)
  axes.set_ylabel('examples/sec')
  axes.set_xlabel(unit)
  axes.legend(loc='upper left')
  caption = ('Predicted rates with intervals of {:.0%}, and measured rates as points, with '
             'logarithmic axes. The model assumes that the connections of more {} are as fast as '
             'those measured.').format(sweep['predictions']['interval'], unit)
  return charts.render_chart(
      figure, _FILE_NAME, 'Line chart of predicted examples/sec over the number of {}: {}.'.format(
          unit, '; '.join(descriptions)), caption)
