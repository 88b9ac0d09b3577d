"""Comparisons: what runs in turn, the ratios of medians that result, and how they are reported."""

import statistics
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import common

Figures = Dict[str, float]
# By side and figure, a value per repetition.
Repetitions = Dict[str, Dict[str, List[float]]]


class Conditions(NamedTuple):
  """What every side of a comparison has in common with the others.

  Attributes:
    pythons: interpreters by what they have: `stock`, `onednn`, `torch`, `keras3`.
    data_dir: folder of Fashion-MNIST's four files.
    train_pattern: of image files; None: none were given.
    quick: whether sizes are tiny, which shows that all works and gives no figures.
    deadline_secs: after which a process is killed.
  """
  pythons: Dict[str, str]
  data_dir: str
  train_pattern: Optional[str]
  quick: bool
  deadline_secs: float


Side = Callable[[Conditions], Figures]


class Ratio(NamedTuple):
  """How many times one figure is another one.

  Attributes:
    title: what it shows.
    over: side and figure above the line; of several sides, separated by `|`, the one with the
      highest median.
    under: those below it; of several rates, that of doing all of it for each image.
    target: it is to be at least that; None: it is only reported.
  """
  title: str
  over: Tuple[str, str]
  under: Tuple[Tuple[str, str], ...]
  target: Optional[float]


class Comparison(NamedTuple):
  """Sides that do the same work, in turn.

  Attributes:
    title: what is compared, and at what size.
    sides: what to run, by name, in their order.
    ratios: of their figures.
    needs: of `onednn`, `torch`, `keras3` and `images`, what there must be.
  """
  title: str
  sides: Dict[str, Side]
  ratios: Tuple[Ratio, ...]
  needs: Tuple[str, ...] = ()


def measure(name: str, comparison: Comparison, conditions: Conditions, pairs: int) -> Repetitions:
  """Runs all sides in turn, so many times.

  Raises:
    common.ChildFailed: one of them failed.
  """
  repetitions: Repetitions = {side: {} for side in comparison.sides}
  for number in range(1, pairs + 1):
    for side, run in comparison.sides.items():
      figures = run(conditions)
      for figure, value in figures.items():
        repetitions[side].setdefault(figure, []).append(value)
      common.log('{} {}/{}: {}: {}'.format(name, number, pairs, side, ', '.join(
          '{} {:,.5g}'.format(figure, value) for figure, value in figures.items())))
  return repetitions


def combined(rates: Sequence[float]) -> float:
  """Returns the rate of doing all for each image, where each by itself would have these rates.

  What two parts that keep all cores busy reach at best together, on the same cores.
  """
  return 1 / sum(1 / rate for rate in rates)


def side_of(sides: str, figure: str, repetitions: Repetitions) -> str:
  """Returns that of several sides, separated by `|`, whose figure has the highest median."""
  return max(sides.split('|'), key=lambda side: statistics.median(repetitions[side][figure]))


def ratio_of(ratio: Ratio, repetitions: Repetitions) -> Dict[str, Any]:
  """Returns the ratio of the medians, the least and the greatest of a pair, and the verdict."""
  over, *others = [repetitions[side_of(sides, figure, repetitions)][figure]
                   for sides, figure in (ratio.over,) + ratio.under]
  under = others[0] if len(others) == 1 else [combined(values) for values in zip(*others)]
  found: Dict[str, Any] = dict(common.median_ratio(over, under))
  found.update(title=ratio.title, target=ratio.target, figure=ratio.over[1],
               medians=[statistics.median(over), statistics.median(under)])
  if ratio.target is not None:
    found['reached'] = found['of_medians'] >= ratio.target
  return found


def ratio_rows(ratios: Sequence[Dict[str, Any]]) -> List[List[str]]:
  """Returns the cells of a table of ratios: title, ratio with its spread, the two medians."""
  return [[ratio['title'], '{of_medians:.2f} ({min:.2f} to {max:.2f})'.format(**ratio),
           _medians(ratio['figure'], *ratio['medians'])] for ratio in ratios]


def _medians(figure: str, over: float, under: float) -> str:
  """Returns two medians with their unit, which the end of the name of their figure shows."""
  units = [unit for end, unit in (('_per_sec', '/s'), ('_secs', ' s'), ('_mb', ' MB'))
           if figure.endswith(end)]
  return ' / '.join(('{:,.0f}' if value >= 100 else '{:.3g}').format(value) + ''.join(units)
                    for value in (over, under))


def figure_rows(repetitions: Repetitions) -> List[List[str]]:
  """Returns the cells of a table of figures: side, figure, median, least and greatest."""
  return [[side, figure, '{:,.5g}'.format(statistics.median(values)),
           '{:,.5g} to {:,.5g}'.format(min(values), max(values))]
          for side, figures in repetitions.items() for figure, values in figures.items()]
