"""What the benchmarks' comparisons are made of: turns, ratios, spreads, tables."""

import json
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / 'tests' / 'benchmarks'))
import common  # noqa: E402
import compare  # noqa: E402
import growth  # noqa: E402
import pairs  # noqa: E402
from comparisons import COMPARISONS  # noqa: E402

CONDITIONS = pairs.Conditions({}, 'data', None, True, 1.)


def sides_of(calls, **values):
  """Makes sides that note each call and return the next of their values."""
  def make(name, left):
    def run(conditions):
      assert conditions is CONDITIONS
      calls.append(name)
      return {'rate': left.pop(0)}
    return run
  return {name: make(name, list(left)) for name, left in values.items()}


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


def test_tables_have_medians_spread_and_verdict():
  rounds = {'a': {'rate': [4., 1000., 6.]}, 'b': {'rate': [2., 2., 2.]}}
  rows = pairs.ratio_rows([pairs.ratio_of(ratio(['b'], target), rounds) for target in (None, 3, 4)])
  assert rows == [['a title', '3.00 (2.00 to 500.00)', *verdict]
                  for verdict in (['', ''], ['3', 'PASS'], ['4', 'short of it'])]
  assert pairs.figure_rows(rounds)[0] == ['a', 'rate', '6', '4 to 1,000']


def test_ratios_are_of_sides_that_there_are():
  for comparison in COMPARISONS.values():
    assert comparison.ratios and set(comparison.needs) <= {'onednn', 'torch', 'images'}
    for each in comparison.ratios:
      assert {side for named, _ in (each.over,) + each.under
              for side in named.split('|')} <= set(comparison.sides)


def test_the_command(monkeypatch, tmp_path, capsys):
  """On two comparisons of its own: `good`, and `bad`, which fails and leaves the other."""
  def fail(conditions):
    raise common.ChildFailed('it ended badly', ['its last line'])

  def run(*arguments):
    monkeypatch.setattr(sys, 'argv', ['compare.py', '--output', str(output), *arguments])
    with pytest.raises(SystemExit) as end:
      compare.main()
    return (end.value.code, *capsys.readouterr())

  calls, output = [], tmp_path / 'b.json'
  good = pairs.Comparison('Good.', sides_of(calls, a=[6.], b=[2.]), (ratio(['b'], 2),))
  monkeypatch.setattr(compare, 'COMPARISONS', {
      'bad': good._replace(sides={'a': fail}), 'good': good,
      'with_images': good._replace(needs=('images',))})
  monkeypatch.setattr(compare, '_conditions', lambda args, names: CONDITIONS)
  for arguments, message in (
      (['nothing'], 'no such comparison: nothing: choose from bad, good, with_images'),
      (['with_images'], 'image files are needed: with_images without --train_pattern: give it'),
      (['good', '--pairs=0'], 'argument --pairs: out of range: 0')):
    code, out, err = run(*arguments)
    assert (code, out) == (2, '') and err.startswith('error: ' + message) and err.count('\n') == 1
  assert not output.exists()
  code, out, err = run('--quick')
  assert code == 1 and 'its last line' in err and 'with_images is left out' in err
  assert calls == ['a', 'b']
  result = json.loads(out.splitlines()[-1])
  assert result == json.loads(output.read_text())
  assert result['failed'] == {'bad': 'it ended badly'}
  assert result['comparisons']['good']['figures']['a'] == {'rate': [6.]}
  assert {'cpu', 'cores', 'load', 'commit'} <= set(result['machine'])
  page = output.with_suffix('.md').read_text()
  assert '3.00 (3.00 to 3.00)' in page and 'NO MEASUREMENT' in page and 'Failed: it ended' in page


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
