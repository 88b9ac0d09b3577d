"""What is measured of the steps, under a clock that is given to it, and which steps are logged."""

import json
from types import SimpleNamespace

import numpy as np
import tensorflow.compat.v1 as tf
from hook_runs import readings
from mode_runs import QUICK

from estimator_train.reports.step_times import Pause
from estimator_train.system.start_up import StartUpTimer
from estimator_train.tf_patches import graphs
from estimator_train.training import steps, timing


def test_times_of_the_last_steps_and_of_the_way_to_the_first(monkeypatch):
  """Before the first of them, a run of the session fails."""
  monkeypatch.setattr(timing, '_MIN_STORED_STEPS', 3)
  start_up = StartUpTimer(clock=readings(10., 12., 14., 15., 21., 99.), process_age=lambda: 1.)
  times = timing.StepTimes(start_up, clock=readings(*range(99)))
  hook = timing.StepTimer(times)
  with tf.Graph().as_default():
    hook.begin()
  hook.before_run(None)
  for _ in range(13):
    hook.before_run(None)
    hook.after_run(None, SimpleNamespace(results=None))
  assert start_up.secs_by_phase == {'import': 1., 'graph': 2., 'session': 3., 'first_step': 6.}
  assert times.num_steps == 13 and times.to_run_times(13).discarded_steps == 9
  assert list(times.start_times) == [19, 21, 23, 25] and list(times.end_times) == [20, 22, 24, 26]
  np.testing.assert_array_equal(times.input_wait_secs, [np.nan] * 4,
                                'there is no input to wait for')
  with times.record_pause('evaluation'):
    times.clock()
  assert times.pauses == [Pause('evaluation', 27, 2)]


def test_the_wait_is_for_the_batch_and_not_for_the_model(monkeypatch):
  passed = [0.]

  def take(secs, value):
    return tf.reshape(tf.numpy_function(
        lambda value: passed.append(secs) or value, [value], tf.int64), [])

  monkeypatch.setattr(tf, 'timestamp', lambda: tf.reshape(
      tf.numpy_function(lambda: sum(passed), [], tf.float64), []))
  with tf.Graph().as_default() as graph, tf.Session() as session:
    batch = tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(10).map(lambda number: take(.25, number))).get_next()
    model = take(4., batch)
    wait, = timing.add_wait_measurements(graph).values()
    for _ in range(3):
      assert session.run([wait, model])[0] == .25
    # With a single thread the clock could otherwise be read after the model has run.
    clock, = batch.consumers()[0].control_inputs
    assert graphs.find_ancestors([clock]) >= {batch.op}


def test_the_steps_of_the_range_that_are_run_are_traced(run_well, tmp_path):
  def train(num_steps, traced):
    done = run_well(*QUICK, '--mode=train', '--train_steps={}'.format(num_steps),
                    '--trace_steps=' + traced, '--throughput_warmup_steps=2',
                    '--num_cpu_replicas=2', '--model_dir', tmp_path)
    events = json.loads((tmp_path / timing.TRACE_FILE).read_text())['traceEvents']
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


def test_each_of_the_first_ten_thousand_is_logged_then_every_second_fourth_and_so_on():
  for every in (1, 7):
    for first, last, apart in ((1, 10000, 1), (10000, 20000, 2), (20000, 40000, 4),
                               (40000, 80000, 8), (640000, 640128, 128)):
      logged = [step for step in range(first * every, last * every)
                if steps.is_logged(step, every)]
      assert logged == list(range(first * every, last * every, apart * every))
