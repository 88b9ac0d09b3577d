"""Known times of steps give known figures."""

import json
import os

import pytest

from estimator_train.reports import throughput
from estimator_train.settings import Settings
from estimator_train.timing import Timing


def steps(*spans):
  """Returns (began, ended) of steps that are given as (seconds before, seconds inside)."""
  now, began, ended = 100., [], []
  for before, inside in spans:
    began.append(now + before)
    now = began[-1] + inside
    ended.append(now)
  return began, ended


def test_steady_run():
  began, ended = steps((0, 5), (0, 3), (1, 1), (1, 3), (0, 2))
  figures = throughput.summarize(began, ended, 2, global_batch_size=8, num_replicas=2)
  assert figures['wall_secs'] == pytest.approx(2 + 4 + 2)
  assert figures['steps_timed'] == 3 and figures['warmup_steps'] == 2 and figures['steady_state']
  assert figures['examples_per_sec'] == pytest.approx(3 * 8 / 8)
  assert figures['examples_per_sec_per_replica'] == pytest.approx(1.5)
  assert figures['step_secs'] == pytest.approx(
      {'mean': 8 / 3, 'p50': 2, 'p90': 3.6, 'p99': 3.96, 'max': 4})
  assert figures['session_run_secs'] == pytest.approx(
      {'mean': 2, 'p50': 2, 'p90': 2.8, 'p99': 2.98, 'max': 3})


def test_rate_is_not_a_mean_of_rates():
  began, ended = steps((0, 1), (0, 1), (0, 3))
  figures = throughput.summarize(began, ended, 1, global_batch_size=6, num_replicas=1)
  assert figures['examples_per_sec'] == pytest.approx(2 * 6 / 4)  # The mean of rates would be 4.


@pytest.mark.parametrize('warmup_steps, steady', [(0, True), (1, True), (2, False), (10, False)])
def test_runs_about_as_long_as_the_warmup(warmup_steps, steady):
  began, ended = steps((0, 3), (1, 1))
  figures = throughput.summarize(began, ended, warmup_steps, global_batch_size=10, num_replicas=1)
  assert figures['steady_state'] is steady
  timed = 1 if warmup_steps == 1 else 2
  assert figures['steps_timed'] == timed
  assert figures['wall_secs'] == pytest.approx({1: 2, 2: 5}[timed])
  assert figures['examples_per_sec'] == pytest.approx({1: 10 / 2, 2: 20 / 5}[timed])


CONDITIONS = {'global_batch_size': 8, 'num_replicas': 1, 'devices': ['/cpu:0']}


def test_file_and_result(tmp_path, caplog):
  settings = Settings(model_dir=str(tmp_path), train_steps=2, batch_size=8)
  result = throughput.write(settings, CONDITIONS, Timing(*steps((0, 1), (0, 1)), 4.5, 2, 0.25))
  assert result['steps_run'] == 2 and result['train_loss'] == 0.25
  assert result['time_to_first_step_secs'] == 4.5 and not result['steady_state']
  written = json.loads((tmp_path / 'throughput.json').read_text())
  assert written['devices'] == ['/cpu:0'] and written['global_step'] == 2
  assert written['examples_per_sec'] == result['examples_per_sec'] == pytest.approx(8)


def test_no_step_writes_no_file(tmp_path):
  settings = Settings(model_dir=str(tmp_path), train_steps=2)
  result = throughput.write(settings, CONDITIONS, Timing([], [], None, 2, None))
  assert result['steps_run'] == 0 and os.listdir(str(tmp_path)) == []
