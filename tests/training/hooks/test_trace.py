"""`--trace_steps`, by the file that it leaves."""

import json

import pytest

from estimator_train.training.hooks import trace


@pytest.fixture
def train(run_program, tmp_path):
  def run(steps, traced):
    done = run_program('--mode=train', '--dataset=synthetic', '--image_size=8,8', '--batch_size=4',
                       '--model=own_models:two_layers', '--train_steps={}'.format(steps),
                       '--trace_steps=' + traced, '--throughput_warmup_steps=2',
                       '--num_cpu_replicas=2', '--model_dir={}'.format(tmp_path))
    assert done.code == 0, done.err
    return done, json.loads((tmp_path / 'throughput.json').read_text())

  return run


def events(tmp_path):
  return json.loads((tmp_path / trace.TRACE_FILE).read_text())['traceEvents']


def spans_of_steps(tmp_path):
  return {event['args']['global_step']: (event['ts'], event['ts'] + event['dur'])
          for event in events(tmp_path) if event['name'].startswith('step ')}


def test_operations_of_the_steps(train, tmp_path):
  _, figures = train(8, '4:6')
  spans = spans_of_steps(tmp_path)
  assert sorted(spans) == [4, 5, 6] and figures['traced_steps'] == 3
  assert figures['pauses']['trace']['count'] == 1
  operations = [event for event in events(tmp_path)
                if event['ph'] == 'X' and 'MatMul' in event['name']]
  rows = {event['args']['name'] for event in events(tmp_path) if event['name'] == 'process_name'}
  assert 'Steps' in rows and any('CPU:1' in row for row in rows)
  for began, ended in spans.values():  # Both clocks tell microseconds since the epoch.
    assert any(began <= event['ts'] <= ended for event in operations)
  assert not [event for event in events(tmp_path) if event['ph'] in 'st']  # Arrows.
  names = [event['args']['name'] for event in operations]
  assert max(map(names.count, names)) == 3  # Once a step.


def test_a_range_that_outlasts_the_run(train, tmp_path):
  train(5, '4:900')
  assert sorted(spans_of_steps(tmp_path)) == [4, 5]


def test_only_steps_that_are_run_are_traced(train, tmp_path):
  train(3, '2:2')
  assert sorted(spans_of_steps(tmp_path)) == [2]
  done, _ = train(5, '2:3')
  assert 'no step of --trace_steps=2:3 is traced: this run trains steps 4 to 5' in done.err
  assert sorted(spans_of_steps(tmp_path)) == [2]
  train(8, '2:7')
  assert sorted(spans_of_steps(tmp_path)) == [6, 7]
