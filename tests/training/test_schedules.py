"""The learning rate by hand: what each schedule gives, and what runs have used."""

import json
import logging

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import training_runs

from estimator_train.errors import UserError
from estimator_train.settings import Settings, learning_rate_scale
from estimator_train.settings.flag import all_flags
from estimator_train.training import schedules
from estimator_train.training.checkpoints import save_hook
from estimator_train.training.hooks.batch_metrics import BatchMetrics
from estimator_train.training.hooks.epochs import LogEpochs
from estimator_train.training.hooks.step_counter import StepCounter
from estimator_train.training.optimizers import make_optimizer

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

# Literal numbers, worked out by hand: (schedule, the rates of its first steps).
BY_HAND = {
    'constant': (schedules.Schedule(0.8), [0.8] * 5),
    'constant, warm-up of one step': (schedules.Schedule(0.8, 1), [0.8] * 5),
    'constant, warm-up of four': (schedules.Schedule(0.8, 4), [0.2, 0.4, 0.6, 0.8, 0.8]),
    'piecewise': (schedules.Piecewise([0.5, 0.05, 0.3], [2, 4]), [0.5, 0.5, 0.05, 0.05, 0.3, 0.3]),
    # The boundaries count from the first step, not from the end of the warm-up.
    'piecewise, warm-up': (schedules.Piecewise([0.5, 0.05], [4], 2), [.25, .5, .5, .5, .05, .05]),
    # A quarter of the way down from 1.6 to 0.1, a sixteenth: a half each step.
    'exponential': (schedules.Exponential(1.6, 0.1, 4), [1.6, 0.8, 0.4, 0.2, 0.1, 0.1]),
    'exponential, warm-up': (schedules.Exponential(1.6, 0.1, 6, 2),
                             [0.8, 1.6, 1.6, 0.8, 0.4, 0.2, 0.1, 0.1]),
    # cos 0, 60, 90, 120 and 180 degrees are 1, 1/2, 0, -1/2 and -1: of 0.4 there is left the
    # whole, 3/4, 1/2, 1/4 and nothing; cos 30 and 150 degrees are +-0.8660254, 0.9330127 of it.
    'cosine': (schedules.Cosine(0.4, 0., 6),
               [0.4, 0.37320508, 0.3, 0.2, 0.1, 0.02679492, 0., 0.]),
    'cosine to an end': (schedules.Cosine(0.5, 0.1, 3), [0.5, 0.4, 0.2, 0.1, 0.1]),
    'cosine, warm-up': (schedules.Cosine(0.4, 0., 5, 2), [0.2, 0.4, 0.4, 0.3, 0.1, 0., 0.]),
}


@pytest.mark.parametrize('name', BY_HAND)
def test_by_hand(name):
  schedule, expected = BY_HAND[name]
  assert [schedule.rate_at(step) for step in range(len(expected))] == pytest.approx(expected)
  with tf.Graph().as_default(), tf.Session() as session:
    # Keras gives the step as float32.
    for dtype in (tf.int64, tf.float32):
      rates = [schedule(tf.cast(step, dtype)) for step in range(len(expected))]
      assert {rate.dtype for rate in rates} == {tf.float32}
      assert session.run(rates) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize('name', BY_HAND)
def test_optimizer_is_made_again_from_its_configuration(name):
  schedule, expected = BY_HAND[name]
  config = json.loads(json.dumps(make_optimizer('adam', schedule).get_config()))
  again = tf.keras.optimizers.Adam.from_config(config).learning_rate
  assert type(again) is type(schedule)
  assert [again.rate_at(step) for step in range(len(expected))] == pytest.approx(expected)


@pytest.mark.parametrize('kind', [schedules.Exponential, schedules.Cosine])
def test_falls_all_the_way_without_a_jump(kind):
  schedule = kind(0.1, 0.001, 10000, 1000)
  rates = np.array([schedule.rate_at(step) for step in range(10001)])
  steps = np.diff(rates)
  assert (steps[:999] > 0).all() and steps[999] == 0 and (steps[1000:] < 0).all()
  assert rates.max() == 0.1 and rates[-1] == pytest.approx(0.001)
  assert abs(steps).max() <= 0.1 / 1000 * 1.001


def test_large_steps_are_told_apart():
  """float32 has no odd numbers there."""
  boundary = 2 ** 25 + 1
  schedule = schedules.Piecewise([1., 0.5], [boundary])
  with tf.Graph().as_default(), tf.Session() as session:
    assert session.run([schedule(tf.constant(step, tf.int64)) for step in (
        boundary - 1, boundary)]) == [1., 0.5]


@pytest.mark.parametrize('scaling, batch_size, growth', [
    ('none', 512, 1), ('linear', 512, 4), ('sqrt', 512, 2), ('linear', 64, 0.5)])
def test_learning_rate_scale(scaling, batch_size, growth):
  settings = Settings(model_dir='x', train_steps=1, batch_size=batch_size,
                      scale_learning_rate=scaling, base_batch_size=128)
  assert learning_rate_scale(settings) == pytest.approx(growth)


def make(num_examples=100, examples_per_step=10, stop_step=40, **values):
  settings = Settings(model_dir='x', train_steps=stop_step, batch_size=10, **values)
  return schedules.make_schedule(settings, num_examples, examples_per_step, stop_step).get_config()


@pytest.mark.parametrize('epochs, steps', [(0, 0), (1, 10), (0.25, 3), (0.3, 3)])
def test_warm_up_in_epochs(epochs, steps):
  assert make(lr_warmup_epochs=epochs) == {'learning_rate': 0.001, 'warmup_steps': steps}


def test_help_gives_the_first_rate_of_the_warm_up():
  assert 'linearly from 1/n of the full rate' in all_flags()['lr_warmup_epochs'].help
  assert schedules.Schedule(0.8, 4).rate_at(0) == pytest.approx(0.8 / 4)


def test_epochs_to_steps():
  piecewise = {'lr_schedule': 'piecewise', 'lr_boundaries_epochs': (1.5, 3), 'lr_values': (2, 1, 0)}
  assert make(**piecewise) == {'values': [2, 1, 0], 'boundaries': [15, 30], 'warmup_steps': 0}
  # A step takes a third of the batch, as one of three workers beside parameter servers.
  assert make(examples_per_step=3, **piecewise)['boundaries'] == [50, 100]
  # The rates are those of the batch size of 5, which 10 is twice.
  assert make(scale_learning_rate='linear', base_batch_size=5, **piecewise)['values'] == [4, 2, 0]
  falling = {'learning_rate': 0.1, 'lr_schedule': 'exponential', 'lr_values': (0.01,)}
  assert make(**falling)['end_step'] == 40
  assert make(lr_boundaries_epochs=(2,), lr_warmup_epochs=1, **falling) == {
      'learning_rate': 0.1, 'end_rate': 0.01, 'end_step': 20, 'warmup_steps': 10}
  assert make(lr_schedule='cosine')['end_rate'] == 0


@pytest.mark.parametrize('values, message', [
    ({'lr_warmup_epochs': 1}, 'infinite data set has no epochs: .* --lr_warmup_epochs=1: omit'),
    ({'lr_schedule': 'cosine', 'lr_boundaries_epochs': (2,)}, '--lr_boundaries_epochs=2: omit')])
def test_epochs_without_end(values, message):
  with pytest.raises(UserError, match=message):
    make(num_examples=None, dataset='synthetic', **values)


def test_warm_up_that_leaves_nothing():
  with pytest.raises(UserError,
                     match='must end before the decay .*: .*=4 is 40 steps, .* at step 40'):
    make(lr_schedule='cosine', lr_warmup_epochs=4)


# Of 18 examples in steps of 6, an epoch is three steps. (flags, the rates of the 8 steps)
RUNS = {
    'constant': ({'lr_warmup_epochs': 1.}, [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1]),
    'piecewise': ({'lr_schedule': 'piecewise', 'lr_boundaries_epochs': (1., 2.),
                   'lr_values': (1., 0.5, 0.25), 'lr_warmup_epochs': 0.5},
                  [0.5, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    'exponential': ({'lr_schedule': 'exponential', 'lr_values': (1 / 256,)},
                    [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128]),
    'cosine': ({'lr_schedule': 'cosine', 'lr_warmup_epochs': 0.5},  # Steps of 30 degrees.
               [0.5, 1, 1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873]),
}


@pytest.fixture
def train(image_folders, tmp_path):
  """Trains up to a step, and returns the rates that the updates used and that TensorBoard got."""
  folder = tmp_path / 'model'

  def run(stop_at=None, **values):
    settings = Settings(**dict(dict(  # noqa: C408
        mode='train', model='own_models:probe', model_dir=str(folder), dataset='image_folder',
        train_pattern=str(image_folders / 'train' / '**' / '*.jpeg'), image_size=(8, 8),
        batch_size=6, optimizer='sgd', learning_rate=1., train_steps=8, log_every_steps=1,
        save_checkpoints_steps=1, keep_checkpoint_max=20), **values))
    # Stopped by a signal, say: what the run was asked for is as it was.
    training_runs.train(settings, stop_step=stop_at)
    stored = [float(tf.train.load_variable('{}/model.ckpt-{}'.format(folder, step), 'probe/weight'))
              for step in range(save_hook.latest_checkpoint_and_step(str(folder))[1] + 1)]
    return -np.diff(stored), logged(folder)

  return run


def logged(folder):
  """Returns what TensorBoard got, once a step."""
  series = [(event.step, value.simple_value) for path in sorted(folder.glob('events*'))
            for event in tf.train.summary_iterator(str(path)) for value in event.summary.value
            if value.tag == 'learning_rate']
  assert [step for step, _ in series] == list(range(1, len(series) + 1))
  return [rate for _, rate in series]


@pytest.mark.parametrize('name', RUNS)
def test_what_updates_use_with_a_stop_in_the_middle(train, caplog, name):
  caplog.set_level(logging.INFO, 'estimator_train')
  values, expected = RUNS[name]
  used, told = train(stop_at=4, **values)
  assert used == pytest.approx(expected[:4], abs=1e-6) and len(told) == 4
  used, told = train(**values)
  assert used == pytest.approx(expected, abs=1e-6)
  assert told == pytest.approx(expected, abs=1e-6)
  lines = [record.getMessage() for record in caplog.records]
  rates = [expected[0]] + [expected[2], expected[5]]
  assert [line.partition(', learning rate ')[2] for line in lines if line.startswith('epoch')] == [
      '' if rate == before else '{:g}'.format(round(rate, 7))
      for before, rate in ((expected[0], rates[1]), (expected[4], rates[2]))]
  assert not any('learning rate differs' in line for line in lines)


@pytest.mark.parametrize('strategy, replicas', [
    ('off', 1), ('one_device', 1), ('mirrored', 2), ('central_storage', 2)])
def test_the_same_under_every_strategy(train, strategy, replicas):
  values, expected = RUNS['cosine']
  used, told = train(distribution_strategy=strategy, num_cpu_replicas=replicas, **values)
  assert used == pytest.approx(expected, abs=1e-6)
  assert told == pytest.approx(expected, abs=1e-6)


def test_a_longer_run_falls_otherwise_and_says_so(train, caplog):
  values = {'lr_schedule': 'exponential', 'lr_values': (1 / 256,)}
  train(train_steps=2, **values)
  used, _ = train(train_steps=4, **values)
  # A sixteenth a step up to 2, and a quarter a step up to 4.
  assert used == pytest.approx([1, 1 / 16, 1 / 16, 1 / 64], abs=1e-6)
  (warning,) = [record.getMessage() for record in caplog.records
                if record.levelno == logging.WARNING]
  assert warning == ('from step 2 on, the learning rate differs from that of the previous run: '
                     '--train_steps=2 before and --train_steps=4 now')
  caplog.clear()
  train(train_steps=6, lr_boundaries_epochs=(2,), **values)
  assert '--lr_boundaries_epochs=2 now' in caplog.text


@pytest.mark.parametrize('values', [
    {'lr_schedule': 'cosine'}, {'lr_warmup_epochs': 1.}, {'scale_learning_rate': 'linear'},
    {'dtype': 'mixed'}])
def test_a_compiled_model_has_its_own_rate(train, values):
  with pytest.raises(UserError, match='compiled model trains with .*compiled_with_sgd --' + (
      list(values)[0])):
    train(model='own_models:compiled_with_sgd', **values)


def test_a_compiled_model_says_what_has_no_effect(train, caplog):
  with pytest.raises(tf.errors.NotFoundError):  # It has no such weight.
    train(model='own_models:compiled_with_sgd', train_steps=1)
  assert 'its own optimizer: --optimizer=sgd --learning_rate=1.0 has no effect' in caplog.text


@pytest.mark.parametrize('first, taken, ended', [
    (0, [1, 2, 3, 4, 5], [(1, ''), (2, '0.5'), (3, '')]), (2, [3, 4, 5], [(2, ''), (3, '')]),
    (3, [5], [(3, '')]), (0, [5], [(3, '0.5')])])
def test_epochs_that_end_within_steps(caplog, first, taken, ended):
  """Of 9 examples in steps of 6, epochs end at 1.5, 3 and 4.5."""
  caplog.set_level(logging.INFO, 'estimator_train')
  counter = StepCounter()
  hook = LogEpochs(schedules.Piecewise([1., 0.5], [2]), 9, 6, 5, counter, BatchMetrics())
  with tf.Graph().as_default():
    step = tf.Variable(first, name='global_step', dtype=tf.int64, trainable=False,
                       collections=[tf.GraphKeys.GLOBAL_STEP, tf.GraphKeys.GLOBAL_VARIABLES])
    with tf.Session() as session:
      session.run(step.initializer)
      counter.after_create_session(session, None)
      hook.after_create_session(session, None)
  for counter.global_step in taken:
    hook.after_run(None, None)
  lines = [record.getMessage() for record in caplog.records]
  assert [(int(line[6]), line.partition(', learning rate ')[2]) for line in lines] == ended
