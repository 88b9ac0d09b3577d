"""Known times of steps give known figures."""

import json
import os

import pytest

from estimator_train.reports import step_statistics, throughput
from estimator_train.reports.step_times import Pause, Timing
from estimator_train.settings import Settings

START_UP = {'import': 3., 'model': 1., 'first_step': 0.5}


def timing(*spans, pauses=(), traced=()):
  """Makes a Timing of steps that are given as (seconds before, inside, of that waiting: or 0)."""
  now, began, ended, waited = 100., [], [], []
  for before, inside, *wait in spans:
    began.append(now + before)
    now = began[-1] + inside
    ended.append(now)
    waited.append(wait[0] if wait else 0.)
  return Timing(began, ended, waited, START_UP, global_step=100 + len(spans), loss=0.25,
                pauses=pauses, traced_steps=frozenset(traced))


def summarize(timing, warmup_steps, global_batch_size=1, num_replicas=1):
  return step_statistics.summarize(step_statistics.select_timed_steps(timing, warmup_steps),
                              global_batch_size, num_replicas)


def test_steady_run():
  figures = summarize(timing((0, 5), (0, 3), (1, 1), (1, 3), (0, 2)), 2,
                                 global_batch_size=8, num_replicas=2)
  assert figures['wall_secs'] == pytest.approx(2 + 4 + 2)
  assert figures['steps_timed'] == 3
  assert figures['examples_per_sec'] == pytest.approx(3 * 8 / 8)
  assert figures['examples_per_sec_per_replica'] == pytest.approx(1.5)
  assert figures['step_secs'] == pytest.approx(
      {'mean': 8 / 3, 'p50': 2, 'p90': 3.6, 'p99': 3.96, 'max': 4})
  assert figures['session_run_secs'] == pytest.approx(
      {'mean': 2, 'p50': 2, 'p90': 2.8, 'p99': 2.98, 'max': 3})


@pytest.mark.parametrize('discarded, timed', [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_a_long_run_whose_first_steps_are_discarded(discarded, timed, tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=9, throughput_warmup_steps=2)
  of_last = timing((0, 5), (0, 3), (1, 1))._replace(discarded_steps=discarded)
  result = throughput.write_throughput_report(settings, CONDITIONS, of_last)
  figures = json.loads((tmp_path / 'throughput.json').read_text())
  assert result['steps_run'] == discarded + 3
  assert figures['steps_timed'] == timed and figures['warmup_steps'] == 2
  assert figures['wall_secs'] == pytest.approx({1: 2, 2: 5, 3: 10}[timed])
  assert figures['steady_state']


def test_rate_is_not_a_mean_of_rates():
  figures = summarize(timing((0, 1), (0, 1), (0, 3)), 1, global_batch_size=6,
                                 num_replicas=1)
  assert figures['examples_per_sec'] == pytest.approx(2 * 6 / 4)  # The mean of rates would be 4.


@pytest.mark.parametrize('warmup_steps, steady', [(0, True), (1, True), (2, False), (10, False)])
def test_runs_about_as_long_as_the_warmup(warmup_steps, steady, tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, batch_size=10,
                      throughput_warmup_steps=warmup_steps)
  throughput.write_throughput_report(
      settings, {'num_replicas': 1, 'examples_per_step': 10}, timing((0, 3), (1, 1)))
  figures = json.loads((tmp_path / 'throughput.json').read_text())
  assert figures['steady_state'] is steady
  timed = 1 if warmup_steps == 1 else 2
  assert figures['steps_timed'] == timed and figures['warmup_steps'] == 2 - timed
  assert figures['wall_secs'] == pytest.approx({1: 2, 2: 5}[timed])
  assert figures['examples_per_sec'] == pytest.approx({1: 10 / 2, 2: 20 / 5}[timed])


def test_pauses_are_reported_and_taken_out():
  # Steps end at 101, 102, 107, 108 and 113; the first pause is in the warm-up, the last after all.
  pauses = [Pause('checkpoint', 101.2, 0.1), Pause('checkpoint', 102.5, 1.5),
            Pause('evaluation', 104., 2.), Pause('checkpoint', 108.5, 3.),
            Pause('checkpoint', 113.5, 9.)]
  figures = summarize(
      timing((0, 1), (.5, .5), (4, 1), (0, 1), (4, 1), pauses=pauses), 2, 6, num_replicas=1)
  assert figures['pauses'] == {'checkpoint': {'count': 2, 'secs': 4.5},
                               'evaluation': {'count': 1, 'secs': 2.}}
  assert figures['examples_per_sec'] == pytest.approx(3 * 6 / 11)
  assert figures['steady_examples_per_sec'] == pytest.approx(3 * 6 / (11 - 6.5))
  assert figures['steady_step_secs']['max'] == 2 and figures['step_secs']['max'] == 5
  assert figures['between_secs']['mean'] == pytest.approx(8 / 3)


def test_spread_drift_and_outliers():
  secs = [1., 1., 2., 2., 1.5, 1.5, 40., 3.]
  figures = summarize(timing((0, 9), *[(0, value) for value in secs]), 1, 1, 1)
  assert figures['standard_error_secs'] == pytest.approx(13.55149 / 8 ** .5)
  assert figures['drift'] == pytest.approx((40 + 3) / (1 + 1) - 1)
  assert figures['outliers'] == [{'global_step': 108, 'secs': pytest.approx(40)}]


def test_one_step_tells_no_spread():
  figures = summarize(timing((0, 1)), 0, 1, 1)
  assert figures['standard_error_secs'] is figures['drift'] is None and not figures['outliers']


def test_no_more_than_the_slowest_outliers():
  spans = [(0, 1)] * 200 + [(0, 50 + index) for index in range(30)]
  figures = summarize(timing(*spans), 0, 1, 1)
  assert [found['secs'] for found in figures['outliers']] == pytest.approx(range(60, 80))


@pytest.mark.parametrize('spans, input_share, between, verdict', [
    ([(0, 1, 0)] * 4, 0, 0, 'compute-bound'),
    ([(0, 1, .09)] * 4, .09, 0, 'compute-bound'),
    ([(0, 1, .12), (1, 11, 1.44)], .12, 1 / 13, 'compute-bound'),
    ([(0, 1, .25), (0, 1, .27)], .26, 0, 'input-bound'),
    ([(1, 3, 2), (0, 4, 1)], 3 / 8, 1 / 8, 'input-bound'),
    ([(2, 2, .5), (2, 2, .5)], 1 / 8, 1 / 2, 'overhead-bound'),
    ([(0, 1, -5), (0, 1, 0)], 0, 0, 'compute-bound'),  # The system's clock was set.
    ([(0, 1, 0), (0, 1, 3600)], .5, 0, 'input-bound'),
])
def test_shares_of_the_time(spans, input_share, between, verdict):
  figures = summarize(timing((0, 7, 7), *spans), 1)
  assert figures['shares'] == pytest.approx(
      {'input': input_share, 'between': between, 'compute': 1 - input_share - between})
  assert figures['verdict'] == verdict


def test_pauses_are_no_share_of_the_time():
  figures = summarize(timing((0, 1), (5, 1), pauses=[Pause('evaluation', 101.5, 5.)]), 1)
  assert figures['shares'] == pytest.approx({'input': 0, 'between': 0, 'compute': 1})


def test_traced_steps_are_reported_and_taken_out():
  spans = [(0, 1), (0, 2), (0, 9, 9), (0, 9, 9), (0, 3)]
  figures = summarize(timing(*spans, traced=[103, 104]), 0, global_batch_size=5)
  assert figures['traced_steps'] == 2 and figures['steps_timed'] == 5
  assert figures['examples_per_sec'] == pytest.approx(25 / 24)
  assert figures['steady_examples_per_sec'] == pytest.approx(15 / 6)
  assert figures['steady_step_secs']['max'] == 3 and figures['shares']['input'] == 0
  assert figures['input_wait_secs']['max'] == 9
  assert summarize(timing(*spans, traced=range(101, 106)), 0)['steady_step_secs']['max'] == 9


CONDITIONS = {'global_batch_size': 8, 'examples_per_step': 8, 'num_replicas': 1,
              'devices': ['/cpu:0']}


def test_files_and_result(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, batch_size=8)
  result = throughput.write_throughput_report(settings, CONDITIONS, timing((0, 1), (0, 1)))
  assert result['steps_run'] == 2 and result['train_loss'] == 0.25
  assert result['time_to_first_step_secs'] == 4.5 and not result['steady_state']
  assert result['verdict'] == 'compute-bound'
  written = json.loads((tmp_path / 'throughput.json').read_text())
  assert written['devices'] == ['/cpu:0'] and written['global_step'] == 102
  assert written['first_step_parts_secs'] == START_UP
  assert written['examples_per_sec'] == result['examples_per_sec'] == pytest.approx(8)
  assert json.loads((tmp_path / 'report' / 'steps.json').read_text())['global_step'] == [101, 102]


def write_of_two(tmp_path, strategy, other):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, distribution_strategy=strategy,
                      throughput_warmup_steps=0)
  throughput.write_throughput_report(settings, dict(
      CONDITIONS, num_replicas=2, distribution_strategy=strategy),
                                     timing((0, 1, .25), (1, 3, .25)), {'worker 1': other})
  return json.loads((tmp_path / 'throughput.json').read_text())


def worker(**given):
  return dict({'steps_timed': 2, 'wall_secs': 5., 'examples': 16, 'step_secs_p50': 1.,
               'session_run_secs_p50': 1., 'input_wait_secs_p50': 0., 'between_secs_p50': 0.,
               'shares': {}}, **given)


@pytest.mark.parametrize('of_other, slowest', [
    ({'input_wait_secs_p50': .5, 'between_secs_p50': .5}, 'worker 1'),
    ({'input_wait_secs_p50': .5, 'step_secs_p50': 9.}, 'chief'),
])
def test_workers_in_step(tmp_path, of_other, slowest):
  figures = write_of_two(tmp_path, 'multi_worker_mirrored', worker(**of_other))
  assert figures['slowest_worker'] == slowest
  assert figures['examples_per_sec'] == pytest.approx(16 / 5)  # Each has counted those of all.
  assert figures['workers']['chief']['between_secs_p50'] == pytest.approx(.5)
  assert figures['workers']['worker 1'] == worker(**of_other)


def test_workers_that_do_not_wait_for_each_other(tmp_path):
  figures = write_of_two(tmp_path, 'parameter_server', worker(examples=80, step_secs_p50=.5))
  assert figures['examples_per_sec'] == pytest.approx((16 + 80) / 5)
  assert figures['examples_per_sec_per_replica'] == pytest.approx((16 + 80) / 5 / 2)
  assert figures['slowest_worker'] == 'chief'


def test_what_a_worker_reports_to_the_chief(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, throughput_warmup_steps=1)
  figures = throughput.worker_figures(settings, CONDITIONS, timing((0, 9), (1, 3, .25)))
  assert set(figures) == set(worker())
  assert (figures['steps_timed'], figures['examples']) == (1, 8)
  assert figures['wall_secs'] == pytest.approx(4)
  assert figures['input_wait_secs_p50'] == pytest.approx(.25)
  assert throughput.worker_figures(settings, CONDITIONS, Timing([], [], [], {}, 2, None)) == {}
  assert not list(tmp_path.iterdir())


def test_no_step_writes_no_file(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2)
  result = throughput.write_throughput_report(settings, CONDITIONS, Timing([], [], [], {}, 2, None))
  assert result['steps_run'] == 0 and os.listdir(str(tmp_path)) == []
