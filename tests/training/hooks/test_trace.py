"""`--trace_steps`, by the file that it leaves."""

import json

from estimator_train.training.hooks import trace


def test_the_steps_of_the_range_that_are_run_are_traced(run_program, tmp_path):
  def train(steps, traced):
    done = run_program('--mode=train', '--dataset=synthetic', '--image_size=8,8', '--batch_size=4',
                       '--model=own_models:two_layers', '--train_steps={}'.format(steps),
                       '--trace_steps=' + traced, '--throughput_warmup_steps=2',
                       '--num_cpu_replicas=2', '--model_dir={}'.format(tmp_path))
    assert done.code == 0, done.err
    events = json.loads((tmp_path / trace.TRACE_FILE).read_text())['traceEvents']
    spans = {event['args']['global_step']: (event['ts'], event['ts'] + event['dur'])
             for event in events if event['name'].startswith('step ')}
    return events, spans, done.err

  _, spans, _ = train(3, '2:900')
  assert sorted(spans) == [2, 3], 'the range outlasts the run'
  _, spans, log = train(5, '2:3')
  assert 'no step of --trace_steps=2:3 is traced: this run trains steps 4 to 5' in log
  assert sorted(spans) == [2, 3], 'the file of the run before'
  events, spans, _ = train(12, '4:9')
  assert sorted(spans) == [6, 7, 8, 9]
  figures = json.loads((tmp_path / 'throughput.json').read_text())
  # The first two steps of a run warm up.
  assert figures['traced_steps'] == 2 and figures['pauses']['trace']['count'] == 1
  operations = [event for event in events if event['ph'] == 'X' and 'MatMul' in event['name']]
  rows = {event['args']['name'] for event in events if event['name'] == 'process_name'}
  assert 'Steps' in rows and any('CPU:1' in row for row in rows)
  for began, ended in spans.values():  # Both clocks give microseconds since the epoch.
    assert any(began <= event['ts'] <= ended for event in operations)
  assert not [event for event in events if event['ph'] in 'st']  # Arrows.
  names = [event['args']['name'] for event in operations]
  assert max(map(names.count, names)) == 4  # Once a step.
