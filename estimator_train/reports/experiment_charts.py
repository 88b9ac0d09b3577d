"""Draws the charts of the modes `scaling` and `lr_finder`."""

from typing import Any, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from estimator_train.reports import charts
from estimator_train.reports.charts import BLUE, GREEN, MUTED_COLOR, PURPLE, RED, Chart
from estimator_train.reports.page_content import format_number, format_quantity, is_number

_SCALING_FILE, _LR_FINDER_FILE = 'scaling.png', 'lr-finder.png'
# (colour, marker, line style) of each series.
_LINE_STYLES = {
    ('weak', 'real'): (BLUE, 'o', '-'), ('weak', 'synthetic'): (RED, 's', '-'),
    ('strong', 'real'): (GREEN, '^', '-.'), ('strong', 'synthetic'): (PURPLE, 'D', '-.')}

# (`weak` or `strong` scaling, `real` or `synthetic` input).
SeriesKey = Tuple[str, str]


def unit_key(sweep: Dict[str, Any]) -> str:
  """Returns the plural of the unit that the sweep varies: `workers` or `replicas`.

  In a row of the table, this is the key of the number of units.

  Args:
    sweep: the contents of `scaling.json`, as in all functions of this module.
  """
  return 'workers' if sweep.get('scale_over') == 'workers' else 'replicas'


def group_rows_by_series(sweep: Dict[str, Any]) -> Dict[SeriesKey, List[Dict[str, Any]]]:
  """Returns the table rows that have a rate, by series, in ascending number of units."""
  unit = unit_key(sweep)
  series: Dict[SeriesKey, List[Dict[str, Any]]] = {}
  for row in sorted(sweep.get('table', []), key=lambda row: row[unit]):
    key = (row['scaling'], row['input'])
    if key in _LINE_STYLES and is_number(row.get('examples_per_sec')):
      series.setdefault(key, []).append(row)
  return {key: series[key] for key in _LINE_STYLES if key in series}


def describe_units(sweep: Dict[str, Any]) -> str:
  """Returns a plural noun for the units, for example `GPUs`."""
  device_kind = sweep.get('device_kind', '')
  if unit_key(sweep) == 'workers':
    cores = sweep.get('cores_per_worker')
    if is_number(cores) and cores:
      return 'workers with {} core(s) each'.format(cores)
    return 'workers'
  return {'gpu': 'GPUs', 'cpu (logical)': 'logical CPU devices, which share the same cores'}.get(
      device_kind, device_kind or 'replicas')


def draw_scaling_chart(sweep: Dict[str, Any]) -> Iterator[Chart]:
  """Draws the rates with their ranges and ideal scaling, and a second plot of the efficiencies.

  Yields:
    The chart, unless there are no rates.
  """
  series = group_rows_by_series(sweep)
  if not series:
    return
  figure, (rate_axes, efficiency_axes) = charts.make_subplots(470, (5, 3))
  descriptions = []
  unit = unit_key(sweep)
  for key, rows in series.items():
    counts = [row[unit] for row in rows]
    _draw_rates(rate_axes, key, rows, np.array(counts))
    _draw_efficiency(efficiency_axes, key, rows, counts)
    first, last = rows[0], rows[-1]
    descriptions.append('{} scaling on {} input from {} on {} to {} on {}'.format(
        *key, format_quantity(first['examples_per_sec'], 'examples/sec'), counts[0],
        format_quantity(last['examples_per_sec'], 'examples/sec'), counts[-1]))
  rate_axes.plot([], [], color=MUTED_COLOR, linestyle='--', linewidth=1, label='ideal')
  rate_axes.set_ylim(bottom=0)
  rate_axes.set_ylabel('examples/sec')
  rate_axes.legend(loc='upper left')
  efficiency_axes.axhline(100, color=MUTED_COLOR, linestyle='--', linewidth=1)
  efficiency_axes.set_ylim(bottom=0)
  efficiency_axes.set_ylabel('efficiency (%)')
  efficiency_axes.set_xlabel(describe_units(sweep))
  efficiency_axes.set_xticks(sorted({row[unit] for rows in series.values() for row in rows}))
  caption = 'Medians of the runs, with bars from the slowest to the fastest run. A dashed line ' \
            'is linear scaling: the rate of one {} times the number of {}.'.format(unit[:-1], unit)
  yield charts.render_chart(
      figure, _SCALING_FILE, 'Line chart of examples/sec over the number of {}: {}.'.format(
          describe_units(sweep), '; '.join(descriptions)), caption)


def _draw_rates(axes: Any, key: SeriesKey, rows: List[Dict[str, Any]],
                counts: np.ndarray) -> None:
  color, marker, line_style = _LINE_STYLES[key]
  medians = np.array([row['examples_per_sec'] for row in rows])
  lows, highs = (np.array([row[bound] for row in rows]) for bound in ('min', 'max'))
  axes.errorbar(counts, medians, [medians - lows, highs - medians], color=color, marker=marker,
                linestyle=line_style, markersize=4.5, capsize=3,
                label='{} scaling, {} input'.format(*key))
  if counts[0] == 1:  # Ideal scaling is relative to the rate of one unit.
    axes.plot([1, counts[-1]], [medians[0], medians[0] * counts[-1]], color=color,
              linestyle='--', linewidth=1, alpha=0.7)


def _draw_efficiency(axes: Any, key: SeriesKey, rows: List[Dict[str, Any]],
                     counts: Sequence[int]) -> None:
  color, marker, line_style = _LINE_STYLES[key]
  points = [(count, 100 * row['efficiency']) for count, row in zip(counts, rows)
            if is_number(row.get('efficiency'))]
  if points:
    axes.plot(*zip(*points), color=color, marker=marker, linestyle=line_style, markersize=4.5)


def draw_lr_finder_chart(finder: Dict[str, Any]) -> Iterator[Chart]:
  """Draws the contents of `lr_finder.json`: the loss of each step over its learning rate.

  Yields:
    The chart, unless there are no losses.
  """
  points = finder.get('points')
  if not points:
    return
  rates, losses, smoothed = ([point[key] for point in points]
                             for key in ('learning_rate', 'loss', 'smoothed_loss'))
  figure, (axes,) = charts.make_subplots(300)
  axes.set_xscale('log')
  axes.set_xlabel('learning rate')
  axes.set_ylabel('loss')
  axes.plot(rates, losses, color=BLUE, alpha=0.3, linewidth=1, label='loss')
  axes.plot(rates, smoothed, color=BLUE, label='smoothed loss')
  # The last losses can be so large that they would flatten the rest of the curve.
  lowest = min(smoothed)
  highest = max(smoothed[:smoothed.index(lowest) + 1])
  margin = (highest - lowest) / 2 or abs(lowest) or 1.
  axes.set_ylim(lowest - margin, highest + margin)
  descriptions = []
  for key, name, color in (('learning_rate', 'steepest descent', GREEN),
                           ('min_loss_rate', 'smallest loss', RED)):
    if is_number(finder.get(key)):
      axes.axvline(finder[key], color=color, linestyle='--', linewidth=1,
                   label='{}: {:.2g}'.format(name, finder[key]))
      descriptions.append('{} at {:.2g}'.format(name, finder[key]))
  axes.legend(loc='best')
  yield charts.render_chart(
      figure, _LR_FINDER_FILE, 'Line chart of the loss over the learning rate, from {:.2g} to '
      '{:.2g}: {}.'.format(rates[0], rates[-1], ', '.join(
          descriptions or ['smoothed loss ' + format_number(smoothed[-1])])))
