"""Known times of steps give known figures, points of a curve, and lines of the log."""

import json
import logging

import numpy as np
import pytest

from estimator_train.reports import step_curve, step_statistics, summary, throughput
from estimator_train.reports.step_times import Pause, Timing
from estimator_train.settings import Settings

START_UP = {'import': 3., 'model': 1., 'first_step': 0.5}
CONDITIONS = {'global_batch_size': 8, 'examples_per_step': 8, 'num_replicas': 1,
              'devices': ['/cpu:0']}


def timing(*spans, pauses=(), traced=(), discarded_steps=0):
  """Makes a Timing of steps that are given as (seconds before, inside, of that waiting: or 0)."""
  now, began, ended, waited = 100., [], [], []
  for before, inside, *wait in spans:
    began.append(now + before)
    now = began[-1] + inside
    ended.append(now)
    waited.append(wait[0] if wait else 0.)
  return Timing(began, ended, waited, START_UP, global_step=100 + len(spans), loss=0.25,
                pauses=pauses, traced_steps=frozenset(traced))._replace(
                    discarded_steps=discarded_steps)


def summarize(timing, warmup_steps, examples_per_step=1, num_replicas=1):
  return step_statistics.summarize(step_statistics.select_timed_steps(timing, warmup_steps),
                                   examples_per_step, num_replicas)


def write(folder, timing, warmup_steps=10, workers=(), **conditions):
  """Returns the result and `throughput.json`."""
  settings = Settings(model_dir=str(folder), train_steps=2, throughput_warmup_steps=warmup_steps)
  result = throughput.write_throughput_report(
      settings, dict(CONDITIONS, **conditions), timing, dict(workers))
  return result, json.loads((folder / 'throughput.json').read_text())


def test_steady_run():
  figures = summarize(timing((0, 5), (0, 3), (1, 1), (1, 3), (0, 2)), 2, 8, num_replicas=2)
  assert figures['wall_secs'] == pytest.approx(2 + 4 + 2) and figures['steps_timed'] == 3
  assert figures['examples_per_sec'] == pytest.approx(3 * 8 / 8)  # No mean of rates.
  assert figures['examples_per_sec_per_replica'] == pytest.approx(1.5)
  assert figures['step_secs'] == pytest.approx(
      {'mean': 8 / 3, 'p50': 2, 'p90': 3.6, 'p99': 3.96, 'max': 4})
  assert figures['session_run_secs'] == pytest.approx(
      {'mean': 2, 'p50': 2, 'p90': 2.8, 'p99': 2.98, 'max': 3})


def test_warm_up_of_short_and_of_long_runs(tmp_path):
  for spans, warmup_steps, discarded, steady, timed, secs in (
      ([(0, 3), (1, 1)], 0, 0, True, 2, 5), ([(0, 3), (1, 1)], 1, 0, True, 1, 2),
      ([(0, 3), (1, 1)], 2, 0, False, 2, 5), ([(0, 3), (1, 1)], 10, 0, False, 2, 5),
      ([(0, 5), (0, 3), (1, 1)], 2, 0, True, 1, 2), ([(0, 5), (0, 3), (1, 1)], 2, 1, True, 2, 5),
      ([(0, 5), (0, 3), (1, 1)], 2, 2, True, 3, 10), ([(0, 5), (0, 3), (1, 1)], 2, 9, True, 3, 10)):
    result, figures = write(tmp_path, timing(*spans, discarded_steps=discarded), warmup_steps)
    assert result['steps_run'] == discarded + len(spans)
    assert figures['steady_state'] is steady and figures['steps_timed'] == timed
    assert figures['warmup_steps'] == (warmup_steps if steady else 0)
    assert figures['wall_secs'] == pytest.approx(secs)
    assert figures['examples_per_sec'] == pytest.approx(8 * timed / secs)


def test_pauses_are_reported_and_taken_out():
  # Steps end at 101, 102, 107, 108 and 113; the first pause is in the warm-up, the last after all.
  pauses = [Pause('checkpoint', 101.2, 0.1), Pause('checkpoint', 102.5, 1.5),
            Pause('evaluation', 104., 2.), Pause('checkpoint', 108.5, 3.),
            Pause('checkpoint', 113.5, 9.)]
  figures = summarize(
      timing((0, 1), (.5, .5), (4, 1), (0, 1), (4, 1), pauses=pauses), 2, 6)
  assert figures['pauses'] == {'checkpoint': {'count': 2, 'secs': 4.5},
                               'evaluation': {'count': 1, 'secs': 2.}}
  assert figures['examples_per_sec'] == pytest.approx(3 * 6 / 11)
  assert figures['steady_examples_per_sec'] == pytest.approx(3 * 6 / (11 - 6.5))
  assert figures['steady_step_secs']['max'] == 2 and figures['step_secs']['max'] == 5
  assert figures['between_secs']['mean'] == pytest.approx(8 / 3)


def test_spread_drift_and_outliers():
  secs = [1., 1., 2., 2., 1.5, 1.5, 40., 3.]
  figures = summarize(timing((0, 9), *[(0, value) for value in secs]), 1)
  assert figures['standard_error_secs'] == pytest.approx(13.55149 / 8 ** .5)
  assert figures['drift'] == pytest.approx((40 + 3) / (1 + 1) - 1)
  assert figures['outliers'] == [{'global_step': 108, 'secs': pytest.approx(40)}]
  figures = summarize(timing((0, 1)), 0)
  assert figures['standard_error_secs'] is figures['drift'] is None and not figures['outliers']
  figures = summarize(timing(*[(0, 1)] * 200, *[(0, 50 + index) for index in range(30)]), 0)
  assert [found['secs'] for found in figures['outliers']] == pytest.approx(range(60, 80))


def test_shares_of_the_time():
  for spans, input_share, between, verdict in (
      ([(0, 1, 0)] * 4, 0, 0, 'compute-bound'), ([(0, 1, .09)] * 4, .09, 0, 'compute-bound'),
      ([(0, 1, .12), (1, 11, 1.44)], .12, 1 / 13, 'compute-bound'),
      ([(0, 1, .25), (0, 1, .27)], .26, 0, 'input-bound'),
      ([(0, 1, .25), (0, 1, .25)], .25, 0, 'input-bound'),
      ([(1, 3, 2), (0, 4, 1)], 3 / 8, 1 / 8, 'input-bound'),
      ([(2, 2, .5), (2, 2, .5)], 1 / 8, 1 / 2, 'overhead-bound'),
      ([(0, 1, -5), (0, 1, 0)], 0, 0, 'compute-bound'),  # The system's clock was set.
      ([(0, 1, 0), (0, 1, 3600)], .5, 0, 'input-bound')):
    figures = summarize(timing((0, 7, 7), *spans), 1)
    assert figures['shares'] == pytest.approx(
        {'input': input_share, 'between': between, 'compute': 1 - input_share - between})
    assert figures['verdict'] == verdict
  for spans, verdict in (([(0, 1, np.nan)] * 2, None), ([(1, 1, np.nan)] * 2, 'overhead-bound')):
    figures = summarize(timing(*spans), 0)  # The wait was not observed.
    assert figures['shares']['input'] is None and figures['verdict'] == verdict
    assert figures['input_wait_secs'] is None
  figures = summarize(timing((0, 1), (5, 1), pauses=[Pause('evaluation', 101.5, 5.)]), 1)
  assert figures['shares'] == pytest.approx({'input': 0, 'between': 0, 'compute': 1})


def test_traced_steps_are_reported_and_taken_out():
  spans = [(0, 1), (0, 2), (0, 9, 9), (0, 9, 9), (0, 3)]
  figures = summarize(timing(*spans, traced=[103, 104]), 0, 5)
  assert figures['traced_steps'] == 2 and figures['steps_timed'] == 5
  assert figures['examples_per_sec'] == pytest.approx(25 / 24)
  assert figures['steady_examples_per_sec'] == pytest.approx(15 / 6)
  assert figures['steady_step_secs']['max'] == 3 and figures['shares']['input'] == 0
  assert figures['input_wait_secs']['max'] == 9
  assert summarize(timing(*spans, traced=range(101, 106)), 0)['steady_step_secs']['max'] == 9


def test_files_and_result(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2)
  no_step = Timing([], [], [], {}, 2, None)
  assert throughput.write_throughput_report(settings, CONDITIONS, no_step)['steps_run'] == 0
  assert not list(tmp_path.iterdir())
  result, written = write(tmp_path, timing((0, 1), (0, 1)))
  assert result['steps_run'] == 2 and result['train_loss'] == 0.25
  assert result['time_to_first_step_secs'] == 4.5 and not result['steady_state']
  assert result['verdict'] == 'compute-bound'
  assert written['devices'] == ['/cpu:0'] and written['global_step'] == 102
  assert written['first_step_parts_secs'] == START_UP
  assert written['examples_per_sec'] == result['examples_per_sec'] == pytest.approx(8)
  assert json.loads((tmp_path / 'report' / 'steps.json').read_text())['global_step'] == [101, 102]


def worker(**given):
  return dict({'steps_timed': 2, 'wall_secs': 5., 'examples': 16, 'step_secs_p50': 1.,
               'session_run_secs_p50': 1., 'input_wait_secs_p50': 0., 'between_secs_p50': 0.,
               'shares': {}}, **given)


def test_workers(tmp_path):
  for strategy, of_other, slowest, examples in (
      ('multi_worker_mirrored', {'input_wait_secs_p50': .5, 'between_secs_p50': .5}, 'worker 1',
       16),  # Each has counted those of all.
      ('multi_worker_mirrored', {'input_wait_secs_p50': .5, 'step_secs_p50': 9.}, 'chief', 16),
      ('parameter_server', {'examples': 80, 'step_secs_p50': .5}, 'chief', 16 + 80)):
    other = worker(**of_other)
    _, figures = write(tmp_path, timing((0, 1, .25), (1, 3, .25)), 0, {'worker 1': other},
                       num_replicas=2, distribution_strategy=strategy)
    assert figures['slowest_worker'] == slowest
    assert figures['examples_per_sec'] == pytest.approx(examples / 5)
    assert figures['examples_per_sec_per_replica'] == pytest.approx(examples / 5 / 2)
    assert figures['workers']['chief']['between_secs_p50'] == pytest.approx(.5)
    assert figures['workers']['worker 1'] == other


def test_what_a_worker_reports_to_the_chief(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, throughput_warmup_steps=1)
  figures = throughput.worker_figures(settings, CONDITIONS, timing((0, 9), (1, 3, .25)))
  assert set(figures) == set(worker())
  assert (figures['steps_timed'], figures['examples']) == (1, 8)
  assert figures['wall_secs'] == pytest.approx(4)
  assert figures['input_wait_secs_p50'] == pytest.approx(.25)
  assert throughput.worker_figures(settings, CONDITIONS, Timing([], [], [], {}, 2, None)) == {}
  assert not list(tmp_path.iterdir())


def test_curve_and_histogram_of_the_steps(tmp_path):
  def written(global_step, secs):
    step_curve.write_step_curve(str(tmp_path), np.asarray(global_step), np.asarray(secs, float))
    found = json.loads((tmp_path / 'report' / 'steps.json').read_text())
    assert sum(found['histogram']['counts']) == len(secs)
    assert np.all(np.diff(found['histogram']['edges_secs']) > 0)
    return found

  kept = written([11, 12, 13], [3, 1, 2])
  assert kept['global_step'] == [11, 12, 13] and kept['mean_secs'] == kept['max_secs'] == [3, 1, 2]
  for secs in ([2], [2, 2, 2]):
    written(range(len(secs)), secs)
  secs = np.ones(10000)  # Many steps become points.
  secs[3333] = 5
  kept = written(np.arange(1, 10001), secs)
  assert len(kept['global_step']) == len(kept['mean_secs']) == 500
  assert kept['global_step'][0] == 20 and kept['global_step'][-1] == 10000
  slow = kept['max_secs'].index(5)
  assert kept['global_step'][slow] == 3340
  assert kept['mean_secs'][slow] == pytest.approx(24 / 20) and kept['mean_secs'][slow - 1] == 1
  # The slowest are in the last bar.
  secs = np.concatenate([np.linspace(1, 2, 995), [50, 60, 70, 80, 90]])
  histogram = written(np.arange(1000), secs)['histogram']
  assert len(histogram['counts']) + 1 == len(histogram['edges_secs']) == 61
  assert histogram['edges_secs'][0] == 1 and histogram['edges_secs'][-1] < 2
  assert histogram['counts'][-1] > 5


def test_last_lines_of_the_log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  best = {'global_step': 6, 'accuracy': 0.75, 'average_loss': 0.5}
  last = {'accuracy': 0.5, 'best': dict(best, global_step=9)}
  for result, metric, expected in (
      ({'accuracy': 0.5, 'best': best, 'examples_per_sec': 1234.5, 'verdict': 'input-bound'},
       'accuracy', ['  accuracy    0.5000', '  best        accuracy 0.7500 at step 6',
                    '  throughput  1,234 examples/sec; input-bound: steps wait for input']),
      (last, 'average_loss', ['  accuracy    0.5000', '  best        average loss 0.5000 at step 9'
                              ', the last step']),
      ({'loss': 0.5, 'best': {'global_step': 6, 'mae': None}}, 'mae',
       ['  loss        0.5000', '  best        mae not a number at step 6']),
      ({'examples_per_sec': 10., 'verdict': None}, None, ['  throughput  10 examples/sec'])):
    caplog.clear()
    summary.log_summary(dict(result, global_step=9), metric, {
        'report': None, 'model': 'runs/x/model.h5', 'checkpoint': 'runs/x/model.ckpt-9'})
    assert caplog.messages == ['finished at step 9', *expected, '  model       runs/x/model.h5',
                               '  checkpoint  runs/x/model.ckpt-9']
