"""Draws the charts of the modes `scaling` and `lr_finder`."""

from typing import Any, Dict, Iterator, List, Tuple

from estimator_train.reports.page_content import format_quantity
from estimator_train.reports.plotting import Axis, Chart, Line, compute_axis_ends, draw_chart
from estimator_train.system.formatting import format_number, is_number

# The color of each series, by its SeriesKey.
_COLORS = {('weak', 'real'): 'blue', ('weak', 'synthetic'): 'red',
           ('strong', 'real'): 'green', ('strong', 'synthetic'): 'purple'}

# (`weak` or `strong` scaling, `real` or `synthetic` input).
SeriesKey = Tuple[str, str]


def _group_by_series(sweep: Dict[str, Any]) -> Dict[SeriesKey, List[Dict[str, Any]]]:
  """Returns the rows of `scaling.json` that have a rate, sorted by the number of units."""
  unit = sweep.get('scale_over')
  series: Dict[SeriesKey, List[Dict[str, Any]]] = {}
  for row in sorted(sweep.get('table', []), key=lambda row: row[unit]):
    key = (row['scaling'], row['input'])
    if key in _COLORS and is_number(row.get('examples_per_sec')):
      series.setdefault(key, []).append(row)
  return {key: series[key] for key in _COLORS if key in series}


def _describe_units(sweep: Dict[str, Any]) -> str:
  """Returns a plural noun for the units, for example `GPUs`."""
  device_kind = sweep.get('device_kind', '')
  if sweep['scale_over'] == 'workers':
    cores = sweep.get('cores_per_worker')
    if is_number(cores) and cores:
      return 'workers with {} core(s) each'.format(cores)
    return 'workers'
  return {'gpu': 'GPUs', 'cpu (logical)': 'logical CPU devices, which share the same cores'}.get(
      device_kind, device_kind or 'replicas')


def draw_scaling_charts(sweep: Dict[str, Any]) -> Iterator[Chart]:
  """Draws a chart of the rates, with their ranges and ideal scaling, and a chart of efficiencies.

  Yields:
    The two charts, unless there are no rates.
  """
  series = _group_by_series(sweep)
  if not series:
    return
  unit = sweep['scale_over']
  all_counts = sorted({row[unit] for rows in series.values() for row in rows})
  rates, efficiencies, descriptions = [Line('faint', [], [], 'ideal', 1, 2)], [
      Line('faint', [all_counts[0], all_counts[-1]], [100, 100], width=1, dash=2)], []
  for key, rows in series.items():
    color, name = _COLORS[key], '{} scaling, {} input'.format(*key)
    counts, medians = ([row[column] for row in rows] for column in (unit, 'examples_per_sec'))
    rates.append(Line(color, counts, medians, name, dot=6))
    rates += [Line(color, [row[unit]] * 2, [row['min'], row['max']]) for row in rows]
    if counts[0] == 1:  # Ideal scaling is relative to the rate of one unit.
      rates.append(Line(color, [1, counts[-1]], [medians[0], medians[0] * counts[-1]], width=1,
                        dash=2))
    rows_with_efficiency = [row for row in rows if is_number(row.get('efficiency'))]
    efficiencies.append(Line(color, [row[unit] for row in rows_with_efficiency], [
        100 * row['efficiency'] for row in rows_with_efficiency], name, dot=6))
    descriptions.append('{} scaling on {} input from {} on {} to {} on {}'.format(
        *key, format_quantity(medians[0], 'examples/sec'), counts[0],
        format_quantity(medians[-1], 'examples/sec'), counts[-1]))
  units, caption = _describe_units(sweep), 'A dotted line is linear scaling: the rate of one {} ' \
      'times the number of {}.'.format(unit[:-1], unit)
  x_axis = Axis(units, *compute_axis_ends(all_counts), ticks=[
      (count, '{:,}'.format(count)) for count in all_counts])
  for name, y_label, lines, caption_beginning in (
      ('scaling', 'examples/sec', rates,
       'Medians of the runs, with bars from the slowest to the fastest run. '),
      ('scaling-efficiency', 'efficiency (%)', efficiencies, '')):
    highest = max(value for line in lines for value in line.ys)
    yield draw_chart(name + '.png', 'Line chart of {} over the number of {}: {}.'.format(
        y_label, units, '; '.join(descriptions)), x_axis, Axis(y_label, 0, 1.05 * highest), lines,
                     caption=caption_beginning + caption)


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
  # The last losses can be so large that they would flatten the rest of the curve.
  num_shown = smoothed.index(min(smoothed)) + 1
  low, high = compute_axis_ends([*smoothed[:num_shown], min(losses[:num_shown])], .1)
  lines = [Line('sky', rates, losses, 'loss', 1), Line('blue', rates, smoothed, 'smoothed loss')]
  descriptions = []
  for key, name, color in (('learning_rate', 'steepest descent', 'green'),
                           ('min_loss_rate', 'smallest loss', 'red')):
    if is_number(finder.get(key)):
      text = format_number(finder[key])
      lines.append(Line(color, [finder[key]] * 2, [low, high], '{}: {}'.format(name, text), 1, 5))
      descriptions.append('{} at {}'.format(name, text))
  yield draw_chart(
      'lr-finder.png', 'Line chart of the loss over the learning rate, from {} to {}: {}.'
      .format(*map(format_number, (rates[0], rates[-1])), ', '.join(
          descriptions or ['smoothed loss ' + format_number(smoothed[-1])])),
      Axis('learning rate', rates[0], rates[-1], True), Axis('loss', low, high), lines,
      caption='The lines end where the loss exceeds the chart.' if max(losses) > high else '')
