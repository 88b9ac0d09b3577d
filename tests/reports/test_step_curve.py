"""The points and bars that are kept of many steps."""

import json

import numpy as np
import pytest

from estimator_train.reports import step_curve


def written(tmp_path, global_step, secs):
  step_curve.write_step_curve(str(tmp_path), np.asarray(global_step), np.asarray(secs, float))
  return json.loads((tmp_path / 'report' / 'steps.json').read_text())


def test_few_steps_are_kept_as_they_are(tmp_path):
  kept = written(tmp_path, [11, 12, 13], [3, 1, 2])
  assert kept['global_step'] == [11, 12, 13]
  assert kept['mean_secs'] == kept['max_secs'] == [3, 1, 2]
  assert sum(kept['histogram']['counts']) == 3


def test_many_steps_become_points(tmp_path):
  secs = np.ones(10000)
  secs[3333] = 5
  kept = written(tmp_path, np.arange(1, 10001), secs)
  assert len(kept['global_step']) == len(kept['mean_secs']) == 500
  assert kept['global_step'][0] == 20 and kept['global_step'][-1] == 10000
  slow = kept['max_secs'].index(5)
  assert kept['global_step'][slow] == 3340
  assert kept['mean_secs'][slow] == pytest.approx(24 / 20) and kept['mean_secs'][slow - 1] == 1


def test_the_slowest_are_in_the_last_bar(tmp_path):
  secs = np.concatenate([np.linspace(1, 2, 995), [50, 60, 70, 80, 90]])
  histogram = written(tmp_path, np.arange(1000), secs)['histogram']
  assert len(histogram['counts']) + 1 == len(histogram['edges_secs']) == 61
  assert histogram['edges_secs'][0] == 1 and histogram['edges_secs'][-1] < 2
  assert sum(histogram['counts']) == 1000 and histogram['counts'][-1] > 5


@pytest.mark.parametrize('secs', [[2], [2, 2, 2]])
def test_equal_steps(tmp_path, secs):
  kept = written(tmp_path, range(len(secs)), secs)
  assert sum(kept['histogram']['counts']) == len(secs)
  assert np.all(np.diff(kept['histogram']['edges_secs']) > 0)
