"""What the figures of the benchmarks are made of: ratios, their spreads, and slopes."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / 'tests' / 'benchmarks'))
import growth  # noqa: E402
import pairs  # noqa: E402
from comparisons import COMPARISONS  # noqa: E402


def ratio(under, target=None, over='a'):
  return pairs.Ratio('a title', (over, 'rate'), tuple((side, 'rate') for side in under), target)


# Of the ratio of medians, the smallest and the largest ratio of a pair.
@pytest.mark.parametrize('given, values, expected', [
    # Not 4, which is the median of the pairs' ratios 5, 0.5 and 4.
    (ratio(['b'], 3.3), {'a': [10., 2., 12.], 'b': [2., 4., 3.]}, (10 / 3, .5, 5, True)),
    (ratio(['b'], 3.4), {'a': [10., 2., 12.], 'b': [2., 4., 3.]}, (10 / 3, .5, 5, False)),
    # Two that share the cores: of 6 and 3 a second, 2.
    (ratio(['b', 'c']), {'a': [1.8, 2.], 'b': [6., 6.], 'c': [3., 6.]},
     (1.9 / 2.5, 2 / 3, .9, None)),
    # The faster of several sides counts.
    (ratio(['c|d'], 2, 'a|b'), {'a': [1., 9., 2.], 'b': [3., 3., 3.], 'c': [1., 1., 1.],
                                'd': [1.5, 1.5, 1.5]}, (2, 2, 2, True))])
def test_ratio_is_of_medians_and_its_spread_of_pairs(given, values, expected):
  found = pairs.ratio_of(given, {side: {'rate': rates} for side, rates in values.items()})
  assert (found['of_medians'], found['min'], found['max']) == pytest.approx(expected[:3])
  assert found.get('reached') == expected[3]


def test_ratios_are_of_sides_that_there_are():
  for comparison in COMPARISONS.values():
    assert comparison.ratios and set(comparison.needs) <= {
        'onednn', 'torch', 'keras3', 'images'}
    for each in comparison.ratios:
      assert {side for named, _ in (each.over,) + each.under
              for side in named.split('|')} <= set(comparison.sides)


@pytest.mark.parametrize('medians, bound, slope, steepest, reached', [
    ([5., 5., 5.], growth.FLAT, 0., 0., True),
    ([1., 10., 100.], growth.LINEAR, 1., 1., True),
    ([1., 100., 10000.], growth.LINEAR, 2., 2., False),
    # What begins late, behind a cost that is there at every size.
    ([100., 101., 5000.], growth.LINEAR, .85, 1.69, False),
    ([100., 10., 1.], growth.FLAT, -1., -1., True)])
def test_slope_is_the_power_of_the_size(medians, bound, slope, steepest, reached):
  at = {size: [median / 2, median, 9 * median] for size, median in zip((10, 100, 1000), medians)}
  line = growth.line_of('a title', 's', at, bound)
  assert line['medians'] == medians and line['reached'] == reached
  assert (line['slope'], line['steepest']) == pytest.approx((slope, steepest), abs=.01)
