"""The classic picture of scaling: examples a second over the number of devices or workers."""

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from estimator_train.reports import drawing, words
from estimator_train.reports.drawing import Picture

NAME = 'scaling.png'
# How each kind of sweep is drawn: colour, marker, dashes.
_LINES = {('weak', 'real'): (drawing.BLUE, 'o', '-'),
          ('weak', 'synthetic'): (drawing.RED, 's', '-'),
          ('strong', 'real'): (drawing.GREEN, '^', '-.'),
          ('strong', 'synthetic'): (drawing.PURPLE, 'D', '-.')}

Kind = Tuple[str, str]


def units(scaling: Dict[str, Any]) -> str:
  """Returns what the sweep was over, which is the name of their number in the table."""
  return 'workers' if scaling.get('scale_over') == 'workers' else 'replicas'


def series(scaling: Dict[str, Any]) -> Dict[Kind, List[Dict[str, Any]]]:
  """Returns the rows of the table that have a rate by (scaling, input), by rising number."""
  found: Dict[Kind, List[Dict[str, Any]]] = {}
  for row in sorted(scaling.get('table', []), key=lambda row: row[units(scaling)]):
    kind = (row['scaling'], row['input'])
    if kind in _LINES and words.is_number(row.get('examples_per_sec')):
      found.setdefault(kind, []).append(row)
  return {kind: found[kind] for kind in _LINES if kind in found}


def devices(scaling: Dict[str, Any]) -> str:
  """Returns what the rates are over the number of, in words."""
  kind = scaling.get('device_kind', '')
  if units(scaling) == 'workers':
    cores = scaling.get('cores_per_worker')
    return 'workers' + (' with {} core(s) each'.format(cores) if words.is_number(cores) and cores
                        else '')
  return {'gpu': 'GPUs', 'cpu (logical)': 'logical CPU devices, which share the same cores'}.get(
      kind, kind or 'replicas')


def chart(scaling: Dict[str, Any]) -> Picture:
  """Draws the rates with their ranges beside the ideal line, and below it the efficiency."""
  figure, (rates, efficiencies) = drawing.make_axes(470, (5, 3))
  alts = []
  for kind, rows in series(scaling).items():
    numbers = [row[units(scaling)] for row in rows]
    _draw_rates(rates, kind, rows, np.array(numbers))
    _draw_efficiency(efficiencies, kind, rows, numbers)
    first, last = rows[0], rows[-1]
    alts.append('{} scaling on {} input from {} on {} to {} on {}'.format(
        *kind, words.quantity(first['examples_per_sec'], 'examples/s'), numbers[0],
        words.quantity(last['examples_per_sec'], 'examples/s'), numbers[-1]))
  rates.plot([], [], color=drawing.FAINT, linestyle='--', linewidth=1, label='ideal')
  rates.set_ylim(bottom=0)
  rates.set_ylabel('examples/s')
  rates.legend(loc='upper left')
  efficiencies.axhline(100, color=drawing.FAINT, linestyle='--', linewidth=1)
  efficiencies.set_ylim(bottom=0)
  efficiencies.set_ylabel('efficiency (%)')
  efficiencies.set_xlabel(_x_label(scaling))
  efficiencies.set_xticks(sorted({row[units(scaling)] for rows in series(scaling).values()
                                  for row in rows}))
  caption = 'Medians of the runs, with bars from the slowest to the fastest; dashed: the ideal, ' \
            'the rate of one {} times their number.'.format(units(scaling)[:-1])
  return drawing.finish(figure, NAME, 'Line chart of examples a second over the number of {}: '
                        '{}.'.format(devices(scaling), '; '.join(alts)), caption)


def _x_label(scaling: Dict[str, Any]) -> str:
  if units(scaling) == 'workers':
    return devices(scaling)
  kind = scaling.get('device_kind')
  if kind == 'cpu (logical)':
    return 'logical CPU devices (they share the same cores)'
  return 'GPUs' if kind == 'gpu' else 'replicas'


def _draw_rates(axes: Any, kind: Kind, rows: List[Dict[str, Any]], numbers: np.ndarray) -> None:
  color, marker, dashes = _LINES[kind]
  medians = np.array([row['examples_per_sec'] for row in rows])
  # Where there is no range, the bar has no length.
  lows, highs = (np.array([row['examples_per_sec'] if row.get(end) is None else row[end]
                           for row in rows]) for end in ('min', 'max'))
  axes.errorbar(numbers, medians, np.maximum([medians - lows, highs - medians], 0), color=color,
                marker=marker, linestyle=dashes, markersize=4.5, capsize=3,
                label='{} scaling, {} input'.format(*kind))
  if numbers[0] == 1:
    axes.plot([1, numbers[-1]], [medians[0], medians[0] * numbers[-1]], color=color,
              linestyle='--', linewidth=1, alpha=0.7)


def _draw_efficiency(axes: Any, kind: Kind, rows: List[Dict[str, Any]],
                     numbers: Sequence[int]) -> None:
  color, marker, dashes = _LINES[kind]
  points = [(number, 100 * row['efficiency']) for number, row in zip(numbers, rows)
            if words.is_number(row.get('efficiency'))]
  if points:
    axes.plot(*zip(*points), color=color, marker=marker, linestyle=dashes, markersize=4.5)
