"""What the figures of the benchmarks are made of: ratios, their spreads, and slopes."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / 'tests' / 'benchmarks'))
import growth  # noqa: E402
import pairs  # noqa: E402


def test_ratios_and_slopes():
  for sides, target, rates, expected in (
      # The ratio of medians, and not 4, which is the median of the pairs' ratios 5, 0.5 and 4.
      (['b'], 3.3, {'a': [10., 2., 12.], 'b': [2., 4., 3.]}, (10 / 3, .5, 5, True)),
      # Two that share the cores: of 6 and 3 a second, 2.
      (['b', 'c'], 3.4, {'a': [1.8, 2.], 'b': [6., 6.], 'c': [3., 6.]},
       (1.9 / 2.5, 2 / 3, .9, False))):
    ratio = pairs.Ratio('a title', ('a', 'rate'), tuple((side, 'rate') for side in sides), target)
    found = pairs.ratio_of(ratio, {side: {'rate': values} for side, values in rates.items()})
    assert (found['of_medians'], found['min'], found['max'], found['reached']) == (
        pytest.approx(expected))
  for medians, bound, slope, is_reached in (
      ([1., 10., 100.], growth.LINEAR, 1., True), ([1., 100., 10000.], growth.LINEAR, 2., False)):
    at = {size: [median / 2, median, 9 * median] for size, median in zip((10, 100, 1000), medians)}
    line = growth.line_of('a title', 's', at, bound)
    assert line['slope'] == pytest.approx(slope) and line['reached'] == is_reached
