"""Curves from event files, over restarts and crashes."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.reports import learning_curves

EMPTY = {'train_loss': [], 'train_accuracy': [], 'learning_rate': [], 'eval_loss': [],
         'eval_accuracy': []}


@pytest.fixture
def write(tmp_path):
  """Writes an event file of (tag, step, value or tensor[, time]); returns its path."""
  def run(number, *scalars, folder='.'):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / 'events.out.tfevents.{:010d}.host'.format(number)
    with tf.io.TFRecordWriter(str(path)) as file:
      for tag, step, value, *secs in scalars:
        kind = 'simple_value' if isinstance(value, float) else 'tensor'
        file.write(tf.Event(step=step, wall_time=(secs or [0.])[0], summary=tf.Summary(
            value=[tf.Summary.Value(tag=tag, **{kind: value})])).SerializeToString())
    return path

  return run


@pytest.fixture
def read(tmp_path):
  return lambda: learning_curves.read_learning_curves(str(tmp_path))


def test_each_curve_has_its_place(write, read):
  write(1, ('loss', 1, 4.), ('accuracy', 1, .25), ('step_secs', 1, 9.), ('learning_rate', 1, .25),
        ('loss', 11, 2.))
  write(1, ('accuracy', 10, .5), ('average_loss', 10, 3.), ('loss', 10, 9.), folder='eval')
  assert read() == {
      'train_loss': [(1, 4.), (11, 2.)], 'train_accuracy': [(1, .25)],
      'learning_rate': [(1, .25)], 'eval_loss': [(10, 3.)], 'eval_accuracy': [(10, .5)]}


def test_what_a_killed_run_did_beyond_its_checkpoint_is_left_out(write, read):
  write(1, ('loss', 1, 4.), ('loss', 11, 3.), ('loss', 21, 9.))
  write(2, ('loss', 11, 2.5), ('loss', 16, 2.))
  assert read()['train_loss'] == [(1, 4.), (11, 2.5), (16, 2.)]


def test_a_file_that_was_cut_off(write, read):
  path = write(1, ('loss', 1, 4.), ('loss', 11, 3.))
  path.write_bytes(path.read_bytes()[:-3])
  write(2, ('loss', 12, 2.))
  assert read()['train_loss'] == [(1, 4.), (12, 2.)]


def test_long_curves_are_thinned_but_keep_their_end(write, read):
  write(1, *[('loss', step, float(step)) for step in range(1, 2502)])
  curve = read()['train_loss']
  assert curve[-1] == (2501, 2501.) and len(curve) == 834 and curve == sorted(curve)


def test_a_folder_with_odd_characters_and_no_events(tmp_path):
  (tmp_path / '[a]*').mkdir()
  assert learning_curves.read_learning_curves(str(tmp_path / '[a]*')) == EMPTY


def test_scalars_in_tensors_are_read(write, read):
  content = tf.make_tensor_proto(1.)
  content.ClearField('float_val')
  content.tensor_content = b'\0\0\x20\x40'
  write(1, ('loss', 0, tf.make_tensor_proto(1.5)), ('loss', 1, tf.make_tensor_proto([1., 2.])),
        ('loss', 2, content))
  assert read()['train_loss'] == [(0, 1.5), (2, 2.5)]


def test_the_last_evaluation_is_that_of_the_newest_step(write, tmp_path):
  write(1, ('accuracy', 10, .5), ('average_loss', 10, 3.), folder='eval_a')
  write(1, ('accuracy', 10, .25), ('average_loss', 10, 2.), ('accuracy', 20, .75),
        ('average_loss', 20, float('nan')), folder='eval_b')
  assert learning_curves.read_last_evaluation(str(tmp_path)) == {
      'global_step': 20, 'accuracy': .75}


def test_the_rate_of_a_run_that_resumed_from_an_earlier_step(write, tmp_path):
  write(1, *[('loss_1', step, 1., secs) for step, secs in (
      (1, 0.), (101, 1.), (51, 10.), (51, 11.), (101, 21.))])
  assert learning_curves.read_steps_per_sec(str(tmp_path)) == 5.
