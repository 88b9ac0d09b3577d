"""The scaling chart: examples/sec over the number of replicas or workers."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from estimator_train.reports import drawing, words
from estimator_train.reports.drawing import Chart

NAME = 'scaling.png'
# Colour, marker and line style of each series.
_LINE_STYLES = {('weak', 'real'): (drawing.BLUE, 'o', '-'),
                ('weak', 'synthetic'): (drawing.RED, 's', '-'),
                ('strong', 'real'): (drawing.GREEN, '^', '-.'),
                ('strong', 'synthetic'): (drawing.PURPLE, 'D', '-.')}

# (scaling, input): ('weak' or 'strong', 'real' or 'synthetic').
SeriesKey = Tuple[str, str]


def scaling_unit(scaling: Dict[str, Any]) -> str:
  """Returns `workers` or `replicas`, which is also the key of their number in a table row."""
  return 'workers' if scaling.get('scale_over') == 'workers' else 'replicas'


def rows_by_series(scaling: Dict[str, Any]) -> Dict[SeriesKey, List[Dict[str, Any]]]:
  """Returns the table rows that have a rate, by series, in ascending order of the unit's number.

  Args:
    scaling: the contents of `scaling.json`.
  """
  series: Dict[SeriesKey, List[Dict[str, Any]]] = {}
  for row in sorted(scaling.get('table', []), key=lambda row: row[scaling_unit(scaling)]):
    key = (row['scaling'], row['input'])
    if key in _LINE_STYLES and words.is_number(row.get('examples_per_sec')):
      series.setdefault(key, []).append(row)
  return {key: series[key] for key in _LINE_STYLES if key in series}


def describe_units(scaling: Dict[str, Any]) -> str:
  """Describes the replicas or workers in plural, for example `GPUs`."""
  kind = scaling.get('device_kind', '')
  if scaling_unit(scaling) == 'workers':
    cores = scaling.get('cores_per_worker')
    return 'workers' + (' with {} core(s) each'.format(cores) if words.is_number(cores) and cores
                        else '')
  return {'gpu': 'GPUs', 'cpu (logical)': 'logical CPU devices, which share the same cores'}.get(
      kind, kind or 'replicas')


def draw_scaling_chart(scaling: Dict[str, Any]) -> Chart:
  """Draws the rates with their ranges and the ideal line, and below them the efficiency."""
  figure, (rates, efficiencies) = drawing.make_axes(470, (5, 3))
  alts = []
  unit = scaling_unit(scaling)
  series = rows_by_series(scaling)
  for key, rows in series.items():
    numbers = [row[unit] for row in rows]
    _draw_rates(rates, key, rows, np.array(numbers))
    _draw_efficiency(efficiencies, key, rows, numbers)
    first, last = rows[0], rows[-1]
    alts.append('{} scaling on {} input from {} on {} to {} on {}'.format(
        *key, words.format_quantity(first['examples_per_sec'], 'examples/sec'), numbers[0],
        words.format_quantity(last['examples_per_sec'], 'examples/sec'), numbers[-1]))
  rates.plot([], [], color=drawing.FAINT, linestyle='--', linewidth=1, label='ideal')
  rates.set_ylim(bottom=0)
  rates.set_ylabel('examples/sec')
  rates.legend(loc='upper left')
  efficiencies.axhline(100, color=drawing.FAINT, linestyle='--', linewidth=1)
  efficiencies.set_ylim(bottom=0)
  efficiencies.set_ylabel('efficiency (%)')
  efficiencies.set_xlabel(_x_label(scaling))
  efficiencies.set_xticks(sorted({row[unit] for rows in series.values() for row in rows}))
  caption = 'Medians of the runs, with bars from the slowest to the fastest run. Dashed: linear ' \
            'scaling, the rate of one {} times the number of {}.'.format(unit[:-1], unit)
  return drawing.render_chart(
      figure, NAME, 'Line chart of examples/sec over the number of {}: {}.'.format(
          describe_units(scaling), '; '.join(alts)), caption)


def _x_label(scaling: Dict[str, Any]) -> str:
  if scaling_unit(scaling) == 'workers':
    return describe_units(scaling)
  kind = scaling.get('device_kind')
  if kind == 'cpu (logical)':
    return 'logical CPU devices (they share the same cores)'
  return 'GPUs' if kind == 'gpu' else 'replicas'


def _draw_rates(axes: Any, key: SeriesKey, rows: List[Dict[str, Any]],
                numbers: np.ndarray) -> None:
  color, marker, dashes = _LINE_STYLES[key]
  medians = np.array([row['examples_per_sec'] for row in rows])
  # Without a range, the error bar has length 0.
  lows, highs = (np.array([row['examples_per_sec'] if row.get(end) is None else row[end]
                           for row in rows]) for end in ('min', 'max'))
  axes.errorbar(numbers, medians, np.maximum([medians - lows, highs - medians], 0), color=color,
                marker=marker, linestyle=dashes, markersize=4.5, capsize=3,
                label='{} scaling, {} input'.format(*key))
  if numbers[0] == 1:
    axes.plot([1, numbers[-1]], [medians[0], medians[0] * numbers[-1]], color=color,
              linestyle='--', linewidth=1, alpha=0.7)


def _draw_efficiency(axes: Any, key: SeriesKey, rows: List[Dict[str, Any]],
                     numbers: Sequence[int]) -> None:
  color, marker, dashes = _LINE_STYLES[key]
  points = [(number, 100 * row['efficiency']) for number, row in zip(numbers, rows)
            if words.is_number(row.get('efficiency'))]
  if points:
    axes.plot(*zip(*points), color=color, marker=marker, linestyle=dashes, markersize=4.5)
