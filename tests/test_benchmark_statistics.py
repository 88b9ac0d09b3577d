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


def ratio(under, target=None):
  return pairs.Ratio('a title', ('a', 'rate'), tuple((side, 'rate') for side in under), target)


def test_sides_run_in_turn():
  calls = []
  comparison = pairs.Comparison('', sides_of(calls, a=[1, 2, 3], b=[4, 5, 6]), ())
  rounds = pairs.measure('name', comparison, CONDITIONS, 3)
  assert calls == ['a', 'b'] * 3
  assert rounds == {'a': {'rate': [1, 2, 3]}, 'b': {'rate': [4, 5, 6]}}


@pytest.mark.parametrize('target, reached', [(None, None), (3.3, True), (3.4, False)])
def test_ratio_is_of_medians_and_its_spread_of_pairs(target, reached):
  rounds = {'a': {'rate': [10., 2., 12.]}, 'b': {'rate': [2., 4., 3.]}}
  found = pairs.ratio_of(ratio(['b'], target), rounds)
  # Not 4, which is the median of the pairs' ratios 5, 0.5 and 4.
  assert found['of_medians'] == pytest.approx(10 / 3)
  assert (found['min'], found['max'], found.get('reached')) == (.5, 5, reached)


def test_parts_that_share_the_cores():
  assert pairs.combined([6.]) == 6
  assert pairs.combined([6., 3.]) == pytest.approx(2)
  rounds = {'a': {'rate': [1.8, 2.]}, 'b': {'rate': [6., 6.]}, 'c': {'rate': [3., 6.]}}
  found = pairs.ratio_of(ratio(['b', 'c']), rounds)
  assert found['of_medians'] == pytest.approx(1.9 / 2.5)
  assert (found['min'], found['max']) == pytest.approx((2 / 3, .9))


def test_faster_of_several_sides_counts():
  rounds = {'a': {'rate': [1., 9., 2.]}, 'b': {'rate': [3., 3., 3.]},
            'c': {'rate': [1., 1., 1.]}, 'd': {'rate': [1.5, 1.5, 1.5]}}
  found = pairs.ratio_of(pairs.Ratio('', ('a|b', 'rate'), (('c|d', 'rate'),), 2), rounds)
  assert (found['of_medians'], found['min'], found['max'], found['reached']) == (2, 2, 2, True)


def test_tables_tell_medians_spread_and_verdict():
  rounds = {'a': {'rate': [4., 1000., 6.]}, 'b': {'rate': [2., 2., 2.]}}
  rows = pairs.ratio_rows([pairs.ratio_of(ratio(['b'], target), rounds) for target in (None, 3, 4)])
  assert rows == [['a title', '3.00 (2.00 to 500.00)', '', ''],
                  ['a title', '3.00 (2.00 to 500.00)', '3', 'PASS'],
                  ['a title', '3.00 (2.00 to 500.00)', '4', 'short of it']]
  assert pairs.figure_rows(rounds)[0] == ['a', 'rate', '6', '4 to 1,000']


@pytest.mark.parametrize('name', COMPARISONS)
def test_ratios_are_of_sides_that_there_are(name):
  comparison = COMPARISONS[name]
  assert comparison.ratios and set(comparison.needs) <= {'onednn', 'torch', 'images'}
  for each in comparison.ratios:
    assert {side for named, _ in (each.over,) + each.under
            for side in named.split('|')} <= set(comparison.sides)


def run(arguments, monkeypatch, tmp_path, capsys):
  """Runs the command on two comparisons of its own: `good`, and `bad`, which fails."""
  def fail(conditions):
    raise common.ChildFailed('it ended badly', ['its last line'])

  good = pairs.Comparison('Good.', sides_of([], a=[6.], b=[2.]), (ratio(['b'], 2),))
  monkeypatch.setattr(compare, 'COMPARISONS', {
      'bad': good._replace(sides={'a': fail}), 'good': good,
      'with_images': good._replace(needs=('images',))})
  monkeypatch.setattr(compare, '_conditions', lambda args, names: CONDITIONS)
  output = tmp_path / 'b.json'
  monkeypatch.setattr(sys, 'argv', ['compare.py', '--quick', '--output', str(output)] + arguments)
  code = 0
  try:
    compare.main()
  except SystemExit as end:
    code = end.code
  return code, capsys.readouterr(), output


def test_one_that_fails_leaves_the_others(monkeypatch, tmp_path, capsys):
  code, (out, err), output = run([], monkeypatch, tmp_path, capsys)
  assert code == 1 and 'its last line' in err and 'with_images is left out' in err
  result = json.loads(out.splitlines()[-1])
  assert result == json.loads(output.read_text())
  assert result['failed'] == {'bad': 'it ended badly'}
  assert result['comparisons']['good']['figures'] == {'a': {'rate': [6.]}, 'b': {'rate': [2.]}}
  assert result['comparisons']['good']['ratios'][0]['of_medians'] == 3
  assert {'cpu', 'cores', 'load', 'commit'} <= set(result['machine'])
  page = output.with_suffix('.md').read_text()
  assert '3.00 (3.00 to 3.00)' in page and 'NO MEASUREMENT' in page and 'Failed: it ended' in page


@pytest.mark.parametrize('arguments, told', [
    (['nothing'], 'no such comparison: nothing: choose from bad, good, with_images'),
    (['with_images'], 'image files are needed: with_images without --train_pattern: give it'),
    (['good', '--pairs=0'], 'argument --pairs: out of range: 0')])
def test_wrong_arguments_are_one_line(arguments, told, monkeypatch, tmp_path, capsys):
  code, (out, err), output = run(arguments, monkeypatch, tmp_path, capsys)
  assert (code, out) == (2, '') and err.startswith('error: ' + told) and err.count('\n') == 1
  assert not output.exists()


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
  assert line['medians'] == medians
  assert (line['slope'], line['steepest']) == pytest.approx((slope, steepest), abs=.01)
  assert line['reached'] == reached
