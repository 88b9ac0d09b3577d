"""Known times of steps give known figures, points of a curve, and lines of the log."""

import functools
import json
import logging
import sys

import numpy as np
import pytest

from estimator_train.reports import throughput
from estimator_train.reports.step_times import Pause, RunTimes
from estimator_train.settings import Settings
from estimator_train.system import machine

START_UP = {'import': 3., 'model': 1., 'first_step': 0.5}
CONDITIONS = {'global_batch_size': 8, 'examples_per_step': 8, 'num_replicas': 1,
              'examples_seen': 80, 'devices': ['/cpu:0']}


def timing(*spans, pauses=(), traced=(), discarded_steps=0):
  """Makes RunTimes of steps that are given as (seconds before, inside, of that waiting: or 0)."""
  edges = 100. + np.cumsum([span[:2] for span in spans])
  return RunTimes(edges[::2].tolist(), edges[1::2].tolist(), [sum(span[2:]) for span in spans],
                START_UP, 100 + len(spans), .25, pauses, frozenset(traced), discarded_steps)


def write(folder, timing, warmup_steps=10, workers=(), **conditions):
  """Returns the result and `throughput.json`."""
  settings = Settings(model_dir=str(folder), train_steps=2, throughput_warmup_steps=warmup_steps)
  result = throughput.write_throughput_report(
      settings, dict(CONDITIONS, **conditions), timing, dict(workers))
  return result, json.loads((folder / 'throughput.json').read_text())


SHORT, LONG = [(0, 3), (1, 1)], [(0, 5), (0, 3), (1, 1)]
SPREAD = [(0, 9)] + [(0, secs) for secs in (1., 1., 2., 2., 1.5, 1.5, 40., 3.)]
TRACED = [(0, 1), (0, 2), (0, 9, 9), (0, 9, 9), (0, 3)]
# A timing, the steps of its warm-up, the examples of a step, and figures.
FIGURES = [
    *[(timing(*spans, discarded_steps=discarded), warmup_steps, 8, {
        'steady_state': steady, 'warmup_steps': warmup_steps * steady, 'steps_timed': timed,
        'wall_secs': secs, 'examples_per_sec': 8 * timed / secs})
      for spans, warmup_steps, discarded, steady, timed, secs in (
          (SHORT, 0, 0, True, 2, 5), (SHORT, 1, 0, True, 1, 2), (SHORT, 2, 0, False, 2, 5),
          (LONG, 2, 0, True, 1, 2), (LONG, 2, 1, True, 2, 5), (LONG, 2, 2, True, 3, 10),
          (LONG, 2, 9, True, 3, 10))],
    (timing((0, 5), (0, 3), (1, 1), (1, 3), (0, 2)), 2, 8, {
        'wall_secs': 2 + 4 + 2, 'steps_timed': 3, 'examples_per_sec_per_replica': 1.5,
        'examples_per_sec': 3 * 8 / 8,  # It is no mean of rates.
        'step_secs': {'mean': 8 / 3, 'p50': 2, 'p90': 3.6, 'p99': 3.96, 'max': 4},
        'session_run_secs': {'mean': 2, 'p50': 2, 'p90': 2.8, 'p99': 2.98, 'max': 3}}),
    # Steps end at 101, 102, 107, 108 and 113; a pause is in the warm-up, and one after all.
    (timing((0, 1), (.5, .5), (4, 1), (0, 1), (4, 1), pauses=[
        Pause('checkpoint', 101.2, 0.1), Pause('checkpoint', 102.5, 1.5),
        Pause('evaluation', 104., 2.), Pause('checkpoint', 108.5, 3.),
        Pause('checkpoint', 113.5, 9.)]), 2, 6, {
            'pauses.checkpoint': {'count': 2, 'secs': 4.5}, 'examples_per_sec': 3 * 6 / 11,
            'pauses.evaluation': {'count': 1, 'secs': 2.}, 'steady_step_secs.max': 2,
            'steady_examples_per_sec': 3 * 6 / (11 - 6.5), 'step_secs.max': 5,
            'steady_steps_per_sec': 3 / (11 - 6.5), 'between_secs.mean': 8 / 3}),
    (timing((0, 1), (5, 1), pauses=[Pause('evaluation', 101.5, 5.)]), 1, 1, {
        'shares': {'input': 0, 'between': 0, 'compute': 1}}),
    (timing(*SPREAD), 1, 1, {'standard_error_secs': 13.55149 / 8 ** .5, 'drift': 43 / 2 - 1,
                             'outliers': [{'global_step': 108, 'secs': 40.}]}),
    (timing((0, 1)), 0, 1, {'standard_error_secs': None, 'drift': None, 'outliers': []}),
    # The slowest outliers, in the order of the steps.
    (timing(*[(0, 1)] * 200, *[(0, 50 + index) for index in range(30)]), 0, 1, {
        'outliers': [{'global_step': 311 + index, 'secs': 60. + index} for index in range(20)]}),
    (timing((0, 9), (0, 1), (0, 3)), 1, 1, {'standard_error_secs': 1}),
    (timing(*TRACED, traced=[103, 104]), 0, 5, {
        'traced_steps': 2, 'steps_timed': 5, 'examples_per_sec': 25 / 24, 'shares.input': 0,
        'steady_examples_per_sec': 15 / 6, 'steady_step_secs.max': 3, 'input_wait_secs.max': 9}),
    # With a parameter server, other workers take global steps, too.
    (timing(*TRACED, traced=[3, 4])._replace(local_step=5), 0, 5, {
        'traced_steps': 2, 'steady_step_secs.max': 3}),
    (timing(*TRACED, traced=range(101, 106)), 0, 5, {'steady_step_secs.max': 9}),
    (timing((0, 1, np.nan), (0, 1, np.nan)), 0, 1, {
        'shares.input': None, 'verdict': None, 'input_wait_secs': None}),
    *[(timing((0, 7, 7), *spans), 1, 1, {'verdict': verdict, 'shares': {
        'input': waiting, 'between': between, 'compute': 1 - waiting - between}})
      for spans, waiting, between, verdict in (
          ([(0, 1, 0)] * 4, 0, 0, 'compute-bound'), ([(0, 1, .09)] * 4, .09, 0, 'compute-bound'),
          ([(0, 1, .12), (1, 11, 1.44)], .12, 1 / 13, 'compute-bound'),
          ([(0, 1, .25), (0, 1, .25)], .25, 0, 'input-bound'),
          ([(1, 3, 2), (0, 4, 1)], 3 / 8, 1 / 8, 'input-bound'),
          ([(2, 2, .5), (2, 2, .5)], 1 / 8, 1 / 2, 'overhead-bound'),
          ([(1, 3, 0), (1, 3, .1)], .1 / 8, 1 / 4, 'compute-bound'),
          ([(1.2, 2.8, 1), (1.3, 2.7, 1)], 1 / 4, 2.5 / 8, 'compute-bound'),
          ([(0, 1, -5), (0, 1, 0)], 0, 0, 'compute-bound'),  # The system's clock was set.
          ([(0, 1, 0), (0, 1, 3600)], .5, 0, 'input-bound'))],
]


def test_figures(tmp_path):
  for of_run, warmup_steps, examples_per_step, expected in FIGURES:
    result, figures = write(tmp_path, of_run, warmup_steps, examples_per_step=examples_per_step,
                            num_replicas=2)
    assert result['steps_run'] == of_run.discarded_steps + len(of_run.end_times)
    for path, value in expected.items():
      found = functools.reduce(lambda part, key: part[key], path.split('.'), figures)
      assert found == (value if isinstance(value, list) else pytest.approx(value)), path


def test_files_and_results(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, throughput_warmup_steps=1)
  no_step = RunTimes([], [], [], {}, 2, None)
  assert throughput.write_throughput_report(settings, CONDITIONS, no_step)['steps_run'] == 0
  assert throughput.compute_worker_figures(settings, CONDITIONS, no_step) == {}
  assert not list(tmp_path.iterdir())
  result, written = write(tmp_path, timing((0, 1), (0, 1)))
  for name, value in (('train_loss', .25), ('time_to_first_step_secs', 4.5),
                      ('verdict', 'compute-bound'), ('examples_per_sec', pytest.approx(8)),
                      ('global_step', 102)):
    assert result[name] == value and written.get(name, value) == value
  assert written['devices'] == ['/cpu:0'] and written['first_step_parts_secs'] == START_UP
  assert json.loads((tmp_path / 'report' / 'steps.json').read_text())['global_step'] == [101, 102]
  # What a worker reports to the chief, and the chief writes.
  worker = throughput.compute_worker_figures(
      settings, CONDITIONS, timing((0, 9), (1, 3, .25)))
  assert worker == {
      'wall_secs': 4, 'steps_timed': 1, 'examples': 8, 'step_secs_p50': 4, 'between_secs_p50': 1,
      'session_run_secs_p50': 3, 'input_wait_secs_p50': .25, 'shares': worker['shares']}
  for strategy, of_other, slowest, examples in (
      ('multi_worker_mirrored', {'input_wait_secs_p50': .5, 'between_secs_p50': .5}, 'worker 1',
       16),  # Each has counted those of all.
      ('multi_worker_mirrored', {'input_wait_secs_p50': .5, 'between_secs_p50': 0.,
                                 'step_secs_p50': 9.}, 'chief', 16),
      ('parameter_server', {'examples': 80, 'step_secs_p50': .5}, 'chief', 16 + 80)):
    other = dict(worker, **of_other)
    _, figures = write(tmp_path, timing((0, 1, .25), (1, 3, .25)), 0, {'worker 1': other},
                       num_replicas=2, distribution_strategy=strategy)
    assert figures['slowest_worker'] == slowest and figures['workers']['worker 1'] == other
    assert figures['workers']['chief']['between_secs_p50'] == pytest.approx(.5)
    assert [figures['examples_per_sec'], figures['examples_per_sec_per_replica']] == pytest.approx(
        [examples / 5, examples / 5 / 2])


def test_curve_and_histogram_of_the_steps(tmp_path):
  def written(secs):
    throughput.write_step_curve(str(tmp_path), np.arange(1, len(secs) + 1), np.array(secs, float))
    found = json.loads((tmp_path / 'report' / 'steps.json').read_text())
    edges, counts = found['histogram']['edges_secs'], found['histogram']['counts']
    assert sum(counts) == len(secs) and len(counts) + 1 == len(edges)
    assert np.all(np.diff(edges) > 0) and edges[0] == min(secs)
    return found['global_step'], found['mean_secs'], found['max_secs'], edges, counts

  for secs in ([3, 1, 2], [2, 2]):
    assert written(secs)[:3] == (list(range(1, len(secs) + 1)), secs, secs)
  # Many steps become points.
  global_step, mean_secs, max_secs, *_ = written([1] * 3333 + [5] + [1] * 6666)
  assert len(global_step) == len(mean_secs) == 500 and global_step[::499] == [20, 10000]
  slow = max_secs.index(5)
  assert global_step[slow] == 3340 and mean_secs[slow - 1:slow + 1] == [1, 24 / 20]
  # The slowest are in the last bar.
  *_, edges, counts = written(np.concatenate([np.linspace(1, 2, 995), [50, 60, 70, 80, 90]]))
  assert len(counts) == 60 and edges[-1] < 2 and counts[-1] > 5


def test_last_lines_of_the_log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  for result, metric, command, expected in (
      ({'accuracy': 0.5, 'best': {'global_step': 9, 'average_loss': 0.5},
        'examples_per_sec': 1234.5, 'verdict': 'input-bound'}, 'average_loss', 'a command', [
            'finished at step 9', '  accuracy    0.500',
            '  best        average loss 0.500 at step 9, the last step',
            '  throughput  1,234 examples/sec; input-bound: steps wait for input',
            '  model       runs/x/model.h5', '  next        a command']),
      ({'loss': 0.5, 'best': {'global_step': 6, 'mae': None}}, 'mae', None, [
          'stopped at step 9', '  loss        0.500', '  best        mae not a number at step 6',
          '  model       runs/x/model.h5']),
      ({'examples_per_sec': .57, 'verdict': None}, None, None, [
          'stopped at step 9', '  throughput  0.570 examples/sec',
          '  model       runs/x/model.h5'])):
    caplog.clear()
    throughput.log_training_summary(dict(result, global_step=9), metric, {
        'report': None, 'model': 'runs/x/model.h5'}, command)
    assert caplog.messages == expected


@pytest.mark.parametrize('changes', [
    {'has_onednn': lambda: True}, {'cpu_property': lambda _: 'avx2'}, {'devices': ['/gpu:0']},
    {'verdict': 'input-bound'}, {'steady_state': False}, {'command': None}])
def test_the_hint_at_the_other_build_appears_once_and_where_it_applies(
    caplog, monkeypatch, tmp_path, changes):
  caplog.set_level(logging.INFO, 'estimator_train')
  result = {'steady_state': True, 'verdict': 'compute-bound'}
  monkeypatch.setattr(sys, 'prefix', str(tmp_path))
  monkeypatch.delenv('ESTIMATOR_TRAIN_TF', raising=False)

  def log_hint(model='fashion_cnn', devices=('/cpu:0',), command='./run_train.sh',
               has_onednn=lambda: False, cpu_property=lambda _: 'avx2 avx512f', **figures):
    with monkeypatch.context() as context:
      context.delenv('ESTIMATOR_TRAIN_COMMAND', raising=False)
      if command is not None:
        context.setenv('ESTIMATOR_TRAIN_COMMAND', command)
      context.setattr(machine, 'has_onednn', has_onednn)
      context.setattr(machine, 'cpu_property', cpu_property)
      throughput.log_onednn_hint(dict(result, **figures), model, devices)

  log_hint(**changes)
  assert caplog.messages == []
  log_hint()
  assert '2.49 times as fast with fashion_cnn.' in caplog.messages[0]
  assert caplog.messages[1:] == ['  ESTIMATOR_TRAIN_TF=onednn ./run_train.sh']
  log_hint()  # In the same environment.
  assert len(caplog.messages) == 2
  monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'missing'))
  log_hint()
  assert len(caplog.messages) == 2
  monkeypatch.setattr(sys, 'prefix', str(tmp_path / 'other'))
  (tmp_path / 'other').mkdir()
  log_hint(model='mine:model')
  assert '1.48 to 2.49 times as fast with other convolutional networks' in caplog.messages[2]


@pytest.mark.parametrize('rate, secs, expected', [
    (.5691, 225.9533, '0.569 examples/sec over 7 steps, median step 226 s; compute-bound ('),
    (3451.2, .0367, '3,451 examples/sec over 7 steps, median step 36.7 ms; compute-bound (')])
def test_the_line_about_the_throughput(rate, secs, expected):
  assert throughput._format_log_line({
      'examples_per_sec': rate, 'steps_timed': 7, 'step_secs': {'p50': secs},
      'shares': {'input': .0131, 'between': 0}, 'verdict': 'compute-bound', 'pauses': {},
      'steady_state': True}) == expected + '1.31 % of the time for input, 0 % between steps)'
