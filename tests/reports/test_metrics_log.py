"""`metrics.jsonl` after full disks, kills and resumed runs, and the points of long curves."""

import json

from estimator_train.reports import learning_curves, metrics_log


def steps_of(folder):
  return [json.loads(line)['global_step']
          for line in (folder / 'metrics.jsonl').read_text().splitlines()]


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
  metrics_log.append(str(tmp_path), 'evaluation', 6, {})
  metrics_log.remove_steps_after(str(tmp_path), 6)
  assert steps_of(tmp_path) == [2, 4, 6, 6]
  metrics_log.remove_steps_after(str(tmp_path), 4)
  assert steps_of(tmp_path) == [2, 4]
  assert not caplog.records
  path.unlink()
  path.mkdir()
  metrics_log.append(str(tmp_path), 'train', 6, {})  # Training continues.
  assert 'a line of {} could not be written'.format(path) in caplog.text


def test_a_long_curve_has_means_over_equal_intervals():
  curve = learning_curves.LossCurve()
  for step in range(1, 2501):
    curve.add(step, step)
    if step == 7:
      curve.add(8, float('inf'))
  interval = curve.points[0][0]
  assert interval == 4 and len(curve.points) == 2500 // interval
  assert curve.points == [(step, step - 1.5) for step in range(4, 2501, 4)]


def test_points_of_repeated_steps_are_replaced():
  curve = learning_curves.LossCurve()
  for step, loss in ((1, 10), (2, 20), (3, 30), (2, 25), (3, 35)):
    curve.add(step, loss)
  assert curve.points == [(1, 10), (2, 25), (3, 35)]
