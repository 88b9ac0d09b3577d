"""Draws the charts that compare runs: their rates, and their loss and accuracy by step."""

from typing import Dict, Iterator, List, Optional, Sequence

from estimator_train.reports import chart_rendering
from estimator_train.reports.chart_rendering import Chart
from estimator_train.reports.run_comparison import Run, describe_rate

_RATE_FILE = 'rates.png'
_COLORS = (chart_rendering.BLUE, chart_rendering.RED, chart_rendering.GREEN,
           chart_rendering.PURPLE, '#e69f00', '#56b4e9')
_BAR_HEIGHT, _MARGIN_HEIGHT = 28, 70  # CSS pixels.


def draw_comparison_charts(runs: Sequence[Run]) -> Dict[str, Chart]:
  """Returns the charts by file name. A chart without data is left out."""
  with chart_rendering.apply_chart_style():
    return {chart.name: chart for chart in _draw_charts(runs)}


def _draw_charts(runs: Sequence[Run]) -> Iterator[Chart]:
  short_names = [chart_rendering.format_tick_label(run.name, 'run {}'.format(number))
                 for number, run in enumerate(runs, 1)]
  # One bar chart shows examples/sec or, if a run has no such rate, steps/sec.
  for unit, rates in (('examples/sec', [run.examples_per_sec for run in runs]),
                      ('steps/sec', [run.steps_per_sec for run in runs])):
    if None not in rates:
      yield _draw_rates(runs, short_names, rates, unit)
      break
  for metric, factor, unit in (('loss', 1., ''), ('accuracy', 100., ' (%)')):
    if any(run.data.curves.get(prefix + metric) for run in runs for prefix in ('train_', 'eval_')):
      yield _draw_curves(runs, short_names, metric, factor, unit)


def _draw_rates(runs: Sequence[Run], short_names: List[str], rates: Sequence[Optional[float]],
                unit: str) -> Chart:
  figure, (axes,) = chart_rendering.make_subplots(_MARGIN_HEIGHT + _BAR_HEIGHT * len(runs))
  positions = range(len(runs))
  axes.barh(positions, rates, color=[_COLORS[index % len(_COLORS)] for index in positions],
            height=.7)
  axes.set_yticks(positions)
  axes.set_yticklabels(short_names)
  axes.invert_yaxis()
  axes.grid(False, axis='y')
  axes.set_xlabel(unit)
  return chart_rendering.render_chart(
      figure, _RATE_FILE, 'Bar chart of the rates: {}.'.format('; '.join(
          '{}: {}'.format(run.name, describe_rate(run)) for run in runs)))


def _draw_curves(runs: Sequence[Run], short_names: List[str], metric: str, factor: float,
                 unit: str) -> Chart:
  figure, (axes,) = chart_rendering.make_subplots(320)
  for index, (run, short_name) in enumerate(zip(runs, short_names)):
    color = _COLORS[index % len(_COLORS)]
    # This empty line gives the legend one entry per run, which stands for all curves of the run.
    axes.plot([], [], color=color, label=short_name)
    for prefix, style in (('train_', '-'), ('eval_', 'o--')):
      curve = run.data.curves.get(prefix + metric)
      if curve:
        steps, values = zip(*curve)
        axes.plot(steps, [value * factor for value in values], style, color=color, markersize=4.5)
  axes.set_xlabel('global step')
  axes.set_ylabel(metric + unit)
  axes.legend(loc='best')
  return chart_rendering.render_chart(
      figure, 'compared-{}.png'.format(metric),
      'Line chart of the {} of {} runs by global step.'.format(metric, len(runs)),
      'Lines: training. Dashed lines with points: evaluations.')
