"""How often to save checkpoints."""

import json

import pytest

from estimator_train.doctor import checkpoint_interval
from estimator_train.doctor.checkpoint_interval import check_checkpoint_interval


def test_the_formulas():
  assert checkpoint_interval.young_interval(5., 1000.) == 100.
  # sqrt(5 / 2000) = 0.05.
  assert checkpoint_interval.daly_interval(5., 1000.) == pytest.approx(
      100 * (1 + .05 / 3 + .0025 / 9) - 5)
  assert checkpoint_interval.daly_interval(3000., 1000.) == 1000.  # Saves never succeed.


def wasted(interval_secs, save_secs, failure_secs):
  """Returns the wasted fraction, to the first order: saves, and half an interval per failure."""
  return save_secs / interval_secs + interval_secs / 2 / failure_secs


@pytest.mark.parametrize('save_secs, failure_secs', [(.1, 1e6), (5., 1e5), (60., 1e6)])
def test_no_other_interval_wastes_less(save_secs, failure_secs):
  best = checkpoint_interval.daly_interval(save_secs, failure_secs)
  for factor in (.5, .8, 1.25, 2.):
    assert wasted(best, save_secs, failure_secs) < wasted(best * factor, save_secs, failure_secs)


@pytest.mark.parametrize('num_tasks, interval_secs, level', [
    (1, 600, 'ok'), (256, 600, 'ok'), (256, None, 'ok'), (1024, 600, 'warning'), (1024, 60, 'ok'),
    (1, 2 ** 20, 'warning')])
def test_check(num_tasks, interval_secs, level):
  result = check_checkpoint_interval(4., num_tasks, interval_secs)
  best = checkpoint_interval.daly_interval(4., 30 * 86400 / num_tasks)
  assert result.level == level
  assert 'a checkpoint takes 4 s; if each of {} task(s) is lost once in 30 days, saving every ' \
      '{:.0f} s wastes the least time'.format(num_tasks, best) in result.found
  if level == 'warning':
    assert result.remedy == 'set --save_checkpoints_secs={:.0f}'.format(best)
    assert result.found.endswith(', not every {} s'.format(interval_secs))


@pytest.mark.parametrize('content, secs', [
    ('{"pauses": {"checkpoint": {"count": 4, "secs": 2.0}}}', .5),
    ('{"pauses": {}}', None), ('{"pauses": {"checkpoint": {"count": 0, "secs": 0}}}', None),
    ('[]', None), ('{', None)])
def test_the_time_of_a_save_is_that_of_the_last_run(tmp_path, content, secs):
  assert checkpoint_interval.read_save_secs(str(tmp_path)) is None
  (tmp_path / 'throughput.json').write_text(content)
  assert checkpoint_interval.read_save_secs(str(tmp_path)) == secs


def test_the_doctor_uses_the_flags_and_the_cluster(run_program, tmp_path, monkeypatch):
  (tmp_path / 'throughput.json').write_text(json.dumps(
      {'pauses': {'checkpoint': {'count': 2, 'secs': 8.}}}))
  monkeypatch.setenv('TF_CONFIG', json.dumps({
      'cluster': {'worker': ['host:{}'.format(port) for port in range(1, 1025)]},
      'task': {'type': 'worker', 'index': 0}}))

  def found(*arguments):
    done = run_program('--mode=doctor', '--model_dir', tmp_path, *arguments)
    return next(check for check in done.result['checks'] if check['name'] == 'checkpoint interval')

  assert found()['found'].endswith(', not every 600 s')
  assert found('--save_checkpoints_secs=100')['level'] == 'ok'
  assert found('--save_checkpoints_steps=100000')['level'] == 'ok'
