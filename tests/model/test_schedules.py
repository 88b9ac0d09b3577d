"""The learning rate by hand: what each schedule gives, and what runs have used."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.errors import UserError
from estimator_train.model import optimizers, schedules
from estimator_train.run_dir.step_clock import StepClock
from estimator_train.settings import Settings

# Literal numbers, worked out by hand: a schedule, and the rates of its first steps.
BY_HAND = [
    (schedules.Schedule(0.8, 4), [0.2, 0.4, 0.6, 0.8, 0.8]),
    # The boundaries count from the first step, not from the end of the warm-up.
    (schedules.Schedule(0.5, 0, [2, 4], [0.05, 0.3]), [0.5, 0.5, 0.05, 0.05, 0.3, 0.3]),
    (schedules.Schedule(0.5, 2, [4], [0.05]), [.25, .5, .5, .5, .05, .05]),
    # A quarter of the way down from 1.6 to 0.1, a sixteenth: a half each step.
    (schedules.Exponential(1.6, 0.1, 6, 2), [0.8, 1.6, 1.6, 0.8, 0.4, 0.2, 0.1, 0.1]),
    # cos 0, 60, 90, 120 and 180 degrees are 1, 1/2, 0, -1/2 and -1: of 0.4 there is left the
    # whole, 3/4, 1/2, 1/4 and nothing; cos 30 and 150 degrees are +-0.8660254, 0.9330127 of it.
    (schedules.Cosine(0.4, 0., 6), [0.4, 0.37320508, 0.3, 0.2, 0.1, 0.02679492, 0., 0.]),
    (schedules.Cosine(0.4, 0., 5, 2), [0.2, 0.4, 0.4, 0.3, 0.1, 0., 0.]),
    # The third step has as many examples as four of the steps before, and the decay takes eight.
    (schedules.Schedule(0.8, 3, batch_sizes=[(0, 1), (2, 2)]), [.2, .4, .8, .8]),
    (schedules.Exponential(1.6, 0.1, 4, batch_sizes=[(0, 2), (2, 1), (3, 3)]),
     [1.6, 0.8, 0.4, 0.2828427, 0.1])]


@pytest.mark.parametrize('schedule, expected', BY_HAND)
def test_by_hand(schedule, expected):
  config = json.loads(json.dumps(optimizers.make_optimizer('adam', schedule).get_config()))
  again = tf.keras.optimizers.Adam.from_config(config).learning_rate
  assert type(again) is type(schedule)
  for made in (schedule, again):
    assert [made.rate_at(step) for step in range(len(expected))] == pytest.approx(expected)
  with tf.Graph().as_default(), tf.Session() as session:
    # Keras gives the step as float32.
    for dtype in (tf.int64, tf.float32):
      rates = [schedule(tf.cast(step, dtype)) for step in range(len(expected))]
      assert {rate.dtype for rate in rates} == {tf.float32}
      assert session.run(rates) == pytest.approx(expected, abs=1e-7)


def make(num_examples=100, examples_per_step=10, last_step=40, **values):
  settings = Settings(model_dir='x', train_steps=last_step, batch_size=10, **values)
  clock = StepClock(((0, examples_per_step),), num_examples)
  return schedules.make_schedule(settings, clock, last_step).get_config()


PIECEWISE = {'lr_schedule': 'piecewise', 'lr_boundaries_epochs': (1.5, 3), 'lr_values': (2, 1, 0)}


@pytest.mark.parametrize('values, expected', [
    ({'lr_warmup_epochs': 0}, {'warmup_steps': 0}), ({'lr_warmup_epochs': 1}, {'warmup_steps': 10}),
    ({'lr_warmup_epochs': 0.25}, {'warmup_steps': 3, 'learning_rate': 0.001}),
    # A step takes a third of the batch, as one of three workers beside parameter servers.
    (dict(PIECEWISE, examples_per_step=3), {'boundaries': [50, 100]}),
    # The rates are those of the base batch size.
    (dict(PIECEWISE, scale_learning_rate='linear', base_batch_size=20),
     {'learning_rate': 1, 'values': [.5, 0]}),
    ({'learning_rate': 1, 'scale_learning_rate': 'sqrt', 'base_batch_size': 40},
     {'learning_rate': .5}),
    ({'learning_rate': 0.1, 'lr_schedule': 'exponential', 'lr_values': (0.01,),
      'lr_boundaries_epochs': (2,), 'lr_warmup_epochs': 1},
     {'learning_rate': 0.1, 'end_rate': 0.01, 'end_step': 20, 'warmup_steps': 10})])
def test_flags_to_schedules(values, expected):
  config = make(**values)
  assert {name: config[name] for name in expected} == expected


@pytest.mark.parametrize('values, message', [
    ({'num_examples': None, 'dataset': 'synthetic', 'lr_warmup_epochs': 1},
     'infinite data set has no epochs: .* --lr_warmup_epochs=1: omit'),
    ({'num_examples': None, 'dataset': 'synthetic', 'lr_schedule': 'cosine',
      'lr_boundaries_epochs': (2,)}, '--lr_boundaries_epochs=2: omit'),
    ({'lr_schedule': 'cosine', 'lr_warmup_epochs': 4},
     'must end before the decay .*: .*=4 is 40 steps, .* at step 40')])
def test_flags_without_a_schedule(values, message):
  with pytest.raises(UserError, match=message):
    make(**values)


@pytest.fixture
def train(image_folders, tmp_path):
  """Trains up to a step, and returns the rates that the updates used and that TensorBoard got."""
  folder = tmp_path / 'model'

  def run(**values):
    training_runs.train(folder, **{
        'model': 'own_models:probe', 'dataset': 'image_folder',
        'train_pattern': str(image_folders / 'train/**/*.jpeg'), 'image_size': (8, 8),
        'batch_size': 6, 'optimizer': 'sgd', 'learning_rate': 1., 'train_steps': 8,
        'save_checkpoints_steps': 1, 'keep_checkpoint_max': 20, **values})
    stored = [found['probe/weight'] for found in training_runs.variables_by_step(folder)]
    logged = training_runs.scalars(folder, 'learning_rate')
    assert sorted(logged) == list(range(1, len(logged) + 1))
    return -np.diff(stored), [rate for _, rate in sorted(logged.items())]

  return run


def test_what_updates_use_with_a_stop_in_the_middle(train, caplog):
  """Of 18 examples in steps of 6, an epoch is three steps."""
  caplog.set_level('INFO', 'estimator_train')
  values = {'lr_schedule': 'cosine', 'lr_warmup_epochs': 0.5,
            'distribution_strategy': 'central_storage', 'num_cpu_replicas': 2}
  expected = [0.5, 1, 1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873]  # Steps of 30 degrees.
  used, logged_rates = train(end_step=4, **values)
  assert used == pytest.approx(expected[:4], abs=1e-6) and len(logged_rates) == 4
  used, logged_rates = train(**values)
  assert used == pytest.approx(expected, abs=1e-6)
  assert logged_rates == pytest.approx(expected, abs=1e-6)
  assert sum(message.startswith('epoch ') for message in caplog.messages) == 2


CHANGES = [  # Of 18 examples; flags, and steps with batches of 6, 18 or 9 and their rates by hand.
    ({'lr_schedule': 'piecewise', 'lr_boundaries_epochs': (2,), 'lr_values': (1., .5)},
     [(3, 6), (5, 9), (6, 18)], [1, 1, 1, 1, 1, .5]),
    ({'lr_schedule': 'piecewise', 'lr_boundaries_epochs': (2,), 'lr_values': (1., .5)},
     [(2, 18), (4, 6)], [1, 1, .5, .5]),
    ({'lr_warmup_epochs': 2.}, [(3, 6), (5, 9), (6, 18)], [1 / 6, 1 / 3, 1 / 2, 3 / 4, 1, 1]),
    ({'lr_warmup_epochs': 1.}, [(2, 18), (4, 6)], [1, 1, 1, 1]),
    ({'lr_schedule': 'exponential', 'lr_values': (1 / 16,), 'lr_boundaries_epochs': (4,)},
     [(3, 6), (4, 18)], [1, 1 / 16 ** (1 / 12), 1 / 16 ** (1 / 6), 1 / 2])]


@pytest.mark.parametrize('values, runs, expected', CHANGES)
def test_epochs_are_passes_over_the_data_after_a_change_of_the_batch_size(
    train, caplog, tmp_path, values, runs, expected):
  caplog.set_level('INFO', 'estimator_train')
  for steps, batch_size in runs:
    used, logged_rates = train(train_steps=steps, batch_size=batch_size, **values)
  assert used == pytest.approx(expected, abs=1e-6)
  assert logged_rates == pytest.approx(expected, abs=1e-6)
  seen, step, ends = 0, 0, {}
  for steps, batch_size in runs:
    while step < steps:
      seen, step = seen + batch_size, step + 1
      if seen % 18 == 0:
        ends[seen // 18] = step
  records = [json.loads(line) for line in (tmp_path / 'model/metrics.jsonl').read_text().split('\n')
             if '"epoch"' in line]
  assert {record['epoch']: record['global_step'] for record in records} == ends


def test_a_run_that_resumes_names_the_changed_flags(train, caplog):
  caplog.set_level('INFO', 'estimator_train')
  values = {'lr_schedule': 'exponential', 'lr_values': (1 / 256,)}
  train(train_steps=2, **values)
  used, _ = train(train_steps=4, **values)
  # A sixteenth a step up to 2, and a quarter a step up to 4.
  assert used == pytest.approx([1, 1 / 16, 1 / 16, 1 / 64], abs=1e-6)
  line, = [message for message in caplog.messages if message.startswith('resuming with')]
  assert line == ('resuming with the weights of step 2 and other flags: --train_steps=2 before '
                  'and --train_steps=4 now')
  caplog.clear()
  train(train_steps=6, lr_boundaries_epochs=(2,), **values)
  assert '--lr_boundaries_epochs=2 now' in caplog.text


def test_a_compiled_model_has_its_own_rate(train, caplog):
  for name, value in (('lr_schedule', 'cosine'), ('lr_warmup_epochs', 1.),
                      ('scale_learning_rate', 'linear'), ('gradient_clip_norm', 1.),
                      ('gradient_accumulation_steps', 2), ('dtype', 'mixed')):
    with pytest.raises(UserError, match='compiled model trains with .*compiled_with_sgd --' + name):
      train(model='own_models:compiled_with_sgd', **{name: value})
  with pytest.raises(KeyError):  # It has no such weight.
    train(model='own_models:compiled_with_sgd', train_steps=1)
  assert 'its own optimizer: --optimizer=sgd --learning_rate=1.0 has no effect' in caplog.text
