"""From runs with known rates to the table of a sweep."""

import csv
import json
import os

import pytest

from estimator_train.benchmarking import scaling_report
from estimator_train.benchmarking.sweep import (
  BOTH,
  CPU,
  GPU,
  REAL,
  STRONG,
  SYNTHETIC,
  WEAK,
  WORKER,
  Point,
  PointResult,
)
from estimator_train.settings import Settings


def outcome(replicas, kind, rate, repeat=1, device=GPU, share=None, data=REAL):
  point = Point(device, replicas, kind, data, repeat)
  if rate is None:
    return PointResult(point, 1., None, 2, 'what: {}: remedy'.format(point.name))
  figures = {'steady_examples_per_sec': rate, 'tensorflow_version': '1.15.0',
             'devices': ['/gpu:{}'.format(number) for number in range(replicas)]}
  if share is not None:
    figures['shares'] = {'input': share, 'compute': 1 - share, 'between': 0.}
  return PointResult(point, 1., figures)


def settings(model_dir='x', **values):
  return Settings(mode='scaling', model_dir=str(model_dir), batch_size=12, **values)


# Medians: 100 alone; 180 of two, 160 of three.
OUTCOMES = [
    outcome(1, BOTH, 100., 1, share=0.1), outcome(1, BOTH, 110., 2, share=0.3),
    outcome(1, BOTH, 90., 3, share=0.2),
    outcome(2, WEAK, 180., 1), outcome(2, WEAK, None, 2), outcome(2, WEAK, 180., 3),
    outcome(2, STRONG, 150., 1), outcome(2, STRONG, 160., 2), outcome(2, STRONG, 190., 3),
    outcome(3, WEAK, None, 1), outcome(3, WEAK, None, 2), outcome(3, WEAK, None, 3)]


def rows(outcomes, **values):
  table = scaling_report.summarize(settings(**values), outcomes)['table']
  return {(row['scaling'], row['input'], row['replicas']): row for row in table}


def test_figures():
  table = rows(OUTCOMES)
  assert list(table) == [(WEAK, REAL, 1), (WEAK, REAL, 2), (WEAK, REAL, 3),
                         (STRONG, REAL, 1), (STRONG, REAL, 2)]
  alone = table[WEAK, REAL, 1]
  assert alone == dict(table[STRONG, REAL, 1], scaling=WEAK)
  assert alone == {
      'scaling': WEAK, 'input': REAL, 'replicas': 1, 'global_batch_size': 12, 'runs': 3,
      'failed': 0, 'examples_per_sec': 100., 'min': 90., 'max': 110., 'spread': 0.2,
      'speed_up': 1., 'efficiency': 1., 'input_share': 0.2, 'error': None}
  weak, strong = table[WEAK, REAL, 2], table[STRONG, REAL, 2]
  assert (weak['global_batch_size'], strong['global_batch_size']) == (24, 12)
  assert (weak['speed_up'], weak['efficiency']) == (1.8, 0.9)
  assert (strong['speed_up'], strong['efficiency']) == (1.6, 0.8)
  assert strong['spread'] == pytest.approx(40 / 160)
  assert strong['input_share'] is None


def test_failures():
  result = scaling_report.summarize(settings(), OUTCOMES)
  table = {(row['scaling'], row['replicas']): row for row in result['table']}
  some, none = table[WEAK, 2], table[WEAK, 3]
  assert (some['runs'], some['failed'], some['spread']) == (2, 1, 0.)
  assert some['error'] == 'what: gpu2-weak-real-2: remedy'
  assert (none['runs'], none['failed']) == (0, 3)
  assert none['error'] == 'what: gpu3-weak-real-1: remedy'
  assert {none[name] for name in ('examples_per_sec', 'min', 'max', 'spread', 'speed_up',
                                  'efficiency', 'input_share')} == {None}
  assert [failure['point'] for failure in result['failures']] == [
      'gpu2-weak-real-2', 'gpu3-weak-real-1', 'gpu3-weak-real-2', 'gpu3-weak-real-3']
  assert result['failures'][0] == {
      'point': 'gpu2-weak-real-2', 'repeat': 2, 'code': 2, 'error': some['error'],
      'log': 'x/points/gpu2-weak-real-2/log.txt'}


def test_without_one_replica_there_is_no_speed_up():
  table = rows([outcome(1, BOTH, None), outcome(2, WEAK, 180.)])
  assert table[WEAK, REAL, 2]['examples_per_sec'] == 180.
  assert table[WEAK, REAL, 2]['speed_up'] is table[WEAK, REAL, 2]['efficiency'] is None
  assert table[WEAK, REAL, 2]['spread'] is None  # Of a single run.


def test_real_and_made_up_input_have_their_own_baselines():
  table = rows([outcome(1, BOTH, 100.), outcome(1, BOTH, 200., data=SYNTHETIC),
                outcome(2, WEAK, 150., data=SYNTHETIC), outcome(2, WEAK, 150.)])
  assert table[WEAK, REAL, 2]['speed_up'] == 1.5
  assert table[WEAK, SYNTHETIC, 2]['speed_up'] == 0.75


@pytest.mark.parametrize('device, kind, has_note', [(GPU, 'gpu', False),
                                                    (CPU, 'cpu (logical)', True)])
def test_conditions(device, kind, has_note):
  result = scaling_report.summarize(settings(repeats=5), [outcome(1, BOTH, 1., device=device),
                                                          outcome(2, WEAK, 1., device=device)])
  assert result['device_kind'] == kind
  assert bool(result['note']) == has_note
  if has_note:
    assert 'no speed-up is expected' in result['note']
  assert result['devices'] == ['/gpu:0', '/gpu:1'] and result['tensorflow_version'] == '1.15.0'
  assert (result['repeats'], result['steps'], result['warmup_steps']) == (5, 30, 10)
  assert result['mode'] == 'scaling' and result['scale_over'] == 'replicas'
  assert result['distribution_strategy'] == 'mirrored'


@pytest.mark.parametrize('gpus, cores, kind, each, note', [
    (1, 8, 'gpu', None, None), (0, 8, 'cpu', 1, 'pinned to 1 core(s)'),
    (0, 1, 'cpu', 0, 'share a single core')])
def test_conditions_over_workers(monkeypatch, gpus, cores, kind, each, note):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(cores)))
  result = scaling_report.summarize(
      settings(scale_over='workers', num_gpus=gpus),
      [outcome(1, BOTH, 100., device=WORKER), outcome(2, WEAK, 150., device=WORKER)])
  assert (result['device_kind'], result['cores_per_worker']) == (kind, each)
  assert (note or '') in (result['note'] or '') and bool(note) == bool(result['note'])
  assert [(row['workers'], row['speed_up']) for row in result['table']] == [
      (1, 1.), (2, 1.5), (1, 1.)]
  assert 'replicas' not in result['table'][0]


def test_files_and_table(tmp_path, capsys):
  result = scaling_report.write_scaling_report(settings(tmp_path), OUTCOMES)
  assert json.loads((tmp_path / 'scaling.json').read_text()) == result
  with (tmp_path / 'scaling.csv').open() as file:
    read = list(csv.DictReader(file))
  assert [row['speed_up'] for row in read] == ['1.0', '1.8', '', '1.0', '1.6']
  assert list(read[0]) == list(result['table'][0])
  head, titles, *lines = capsys.readouterr().out.splitlines()
  assert 'replicas on /gpu:0, /gpu:1' in head
  assert titles.split() == ['scaling', 'input', 'replicas', 'batch', 'runs', 'examples/sec',
                            'slowest', 'to', 'fastest', 'spread', 'speed-up', 'efficiency',
                            'waits', 'for', 'input']
  assert lines[0].split() == ['weak', 'real', '1', '12', '3', '100', '90', 'to', '110', '20.0%',
                              '1.00', '100%', '20.0%']
  assert lines[2].split() == ['weak', 'real', '3', '36', '0', '-', '-', '-', '-', '-', '-']
  assert lines[5] == 'gpu2-weak-real-2 failed: what: gpu2-weak-real-2: remedy'
  assert lines.index('predictions, with an interval of 90%:') == 9


def sweep_of(counts, unit=GPU, share=0., scale=1.):
  """Runs whose steps take 10 ms, 1 ms per example, and 20 ms of transfer."""
  outcomes = []
  for count in counts:
    for kind in (BOTH,) if count == 1 else (WEAK, STRONG):
      batch_size = 12 * (count if kind == WEAK else 1)
      secs = .01 + .001 * batch_size / count + .04 * (count - 1) / count
      outcomes.append(outcome(count, kind, scale * batch_size / secs * (1 - share), device=unit,
                              share=share))
  return outcomes


def test_predictions():
  predictions = scaling_report.summarize(settings(), sweep_of([1, 2, 4]))['predictions']
  table = {(row['scaling'], row['replicas']): row for row in predictions['table']}
  # Strong scaling ends where a replica has less than one example.
  assert [key for key in table if key[0] == STRONG] == [(STRONG, 1), (STRONG, 2), (STRONG, 4),
                                                        (STRONG, 8)]
  assert [key for key in table if key[0] == WEAK][-1] == (WEAK, 128)
  weak, strong = table[WEAK, 8], table[STRONG, 8]
  assert weak['examples_per_sec'] == pytest.approx(96 / (.01 + .012 + .035), rel=.02)
  assert weak['low'] < weak['examples_per_sec'] < weak['high']
  assert strong['examples_per_sec'] == pytest.approx(12 / (.01 + .0015 + .035), rel=.02)
  assert weak['efficiency'] == pytest.approx((.01 + .012) / (.01 + .012 + .035), rel=.02)
  assert weak['global_batch_size'] == 96 and strong['global_batch_size'] == 12
  validation, _ = predictions['validation']
  assert (validation['scaling'], validation['replicas']) == (WEAK, 4)
  assert validation['measured'] == pytest.approx(48 / (.01 + .012 + .03))
  assert validation['error'] == pytest.approx(
      validation['predicted'] / validation['measured'] - 1)
  model, = predictions['models']
  assert model['input'] == REAL and model['input_examples_per_sec'] is None


def test_predictions_of_replicas_end_at_the_rate_of_their_input_pipeline():
  predictions = scaling_report.summarize(
      settings(), sweep_of([1, 2], share=.4, scale=.9))['predictions']
  model, = predictions['models']
  weak = [row for row in predictions['table'] if row['scaling'] == WEAK]
  assert weak[-1]['examples_per_sec'] == model['input_examples_per_sec'] < weak[-1]['high'] * 1.01
  workers = scaling_report.summarize(
      settings(scale_over='workers'), sweep_of([1, 2], WORKER, share=.4))['predictions']
  rate = workers['models'][0]['input_examples_per_sec']
  assert rate == pytest.approx(12 / .022 * .6)
  # Each worker has a pipeline of its own.
  assert workers['table'][0]['examples_per_sec'] == rate
  assert rate * 1.1 < workers['table'][1]['examples_per_sec'] < rate * 2


@pytest.mark.parametrize('outcomes', [sweep_of([1, 2, 4], CPU), sweep_of([2])],
                         ids=['replicas that share cores', 'a single number'])
def test_no_predictions(outcomes):
  assert scaling_report.summarize(settings(), outcomes)['predictions'] is None


def test_predictions_are_printed(tmp_path, capsys):
  scaling_report.write_scaling_report(settings(tmp_path), sweep_of([1, 2, 4]))
  lines = capsys.readouterr().out.splitlines()
  index = lines.index('predictions, with an interval of 90%:')
  assert lines[index + 1].split() == ['scaling', 'input', 'replicas', 'batch', 'examples/sec',
                                      'interval', 'efficiency']
  assert lines[index + 2].split()[:4] == ['weak', 'real', '1', '12']
  assert lines[-1].startswith('predicted from fewer replicas: strong scaling, real input, 4 repl')
