"""`metrics.jsonl` after full disks, kills and resumed runs, and the points of long curves."""

import json

from estimator_train.reports import learning_curves, metrics_log


def test_lines_of_repeated_steps_and_incomplete_lines_are_removed(tmp_path, caplog):
  metrics_log.remove_steps_after(str(tmp_path), 0)  # There is no file yet.
  for step in (2, 4, 6):
    metrics_log.append(str(tmp_path), 'train', step, {
        'loss': .5, 'accuracy': float('nan'), 'learning_rate': None, 'epoch': 1})
  path = tmp_path / 'metrics.jsonl'
  first = json.loads(path.read_text().splitlines()[0])
  assert first.pop('time') > 1.7e9
  assert first == {'kind': 'train', 'global_step': 2, 'loss': .5, 'epoch': 1}
  with path.open('a') as file:
    file.write('{"kind": "train", "glob')
  for accuracy in (.5, .25):  # The second one takes the place of the first one.
    metrics_log.append(str(tmp_path), 'evaluation', 6, {'accuracy': accuracy})
  assert path.read_text().count('"accuracy"') == 1 and '0.25' in path.read_text()
  for last_step, steps in ((6, [2, 4, 6, 6]), (4, [2, 4])):
    metrics_log.remove_steps_after(str(tmp_path), last_step)
    assert [json.loads(line)['global_step'] for line in path.read_text().splitlines()] == steps
  assert not caplog.records
  path.unlink()
  path.mkdir()
  metrics_log.append(str(tmp_path), 'train', 6, {})  # Training continues.
  assert 'a line of {} could not be written'.format(path) in caplog.text


def test_the_lines_of_many_evaluations_are_not_read_again(tmp_path, monkeypatch):
  for step in range(1, 1001):
    metrics_log.append(str(tmp_path), 'train', step, {'loss': .5})
    if step == 500:  # The evaluation is behind the training by more lines than are read at first.
      metrics_log.append(str(tmp_path), 'evaluation', 500, {'accuracy': .1})
  path = tmp_path / 'metrics.jsonl'
  metrics_log.append(str(tmp_path), 'evaluation', 500, {'accuracy': .2})
  assert path.read_text().count('"accuracy"') == 1 and '0.2' in path.read_text().splitlines()[-1]
  monkeypatch.delattr(metrics_log, '_read_complete_lines')
  for step in range(1000, 1003):
    metrics_log.append(str(tmp_path), 'evaluation', step, {'accuracy': .3})
  assert len(path.read_text().splitlines()) == 1004


def test_a_long_curve_has_means_over_equal_intervals():
  curve = learning_curves.LossCurve()
  for step, loss in [(1, 10), (2, 20), (1, 1), (2, float('inf'))]:
    curve.add(step, loss)
  assert curve.points == [(1, 1)]  # Repeated steps take the place of those before.
  for step in range(2, 2501):
    curve.add(step, step)
  assert curve.points == [(step, step - 1.5) for step in range(4, 2501, 4)]
