"""Curves from event files, over restarts and crashes."""

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.reports import learning_curves


@pytest.fixture
def write(tmp_path):
  """Writes an event file of (tag, step, value), in a folder, and returns its path."""
  def run(number, scalars, folder='.'):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / 'events.out.tfevents.{:010d}.host'.format(number)
    with tf.io.TFRecordWriter(str(path)) as file:
      for tag, step, value in scalars:
        event = tf.Event(step=step, summary=tf.Summary(
            value=[tf.Summary.Value(tag=tag, simple_value=value)]))
        file.write(event.SerializeToString())
    return path

  return run


def test_each_curve_has_its_place(write, tmp_path):
  write(1, [('loss', 1, 4.), ('accuracy', 1, .25), ('step_secs', 1, 9.),
            ('learning_rate', 1, .25), ('loss', 11, 2.)])
  write(1, [('accuracy', 10, .5), ('average_loss', 10, 3.), ('loss', 10, 9.)], folder='eval')
  assert learning_curves.read_learning_curves(str(tmp_path)) == {
      'train_loss': [(1, 4.), (11, 2.)], 'train_accuracy': [(1, .25)],
      'learning_rate': [(1, .25)], 'eval_loss': [(10, 3.)], 'eval_accuracy': [(10, .5)]}


def test_what_a_killed_run_did_beyond_its_checkpoint_is_left_out(write, tmp_path):
  write(1, [('loss', 1, 4.), ('loss', 11, 3.), ('loss', 21, 9.)])
  write(2, [('loss', 11, 2.5), ('loss', 16, 2.)])
  assert learning_curves.read_learning_curves(str(tmp_path))['train_loss'] == [
      (1, 4.), (11, 2.5), (16, 2.)]


def test_a_file_that_was_cut_off(write, tmp_path):
  path = write(1, [('loss', 1, 4.), ('loss', 11, 3.)])
  path.write_bytes(path.read_bytes()[:-3])
  write(2, [('loss', 12, 2.)])
  assert learning_curves.read_learning_curves(str(tmp_path))['train_loss'] == [(1, 4.), (12, 2.)]


def test_long_curves_are_thinned_but_keep_their_end(write, tmp_path):
  write(1, [('loss', step, float(step)) for step in range(1, 2502)])
  curve = learning_curves.read_learning_curves(str(tmp_path))['train_loss']
  assert curve[-1] == (2501, 2501.) and len(curve) == 834
  assert curve == sorted(curve)


def test_a_folder_with_odd_characters_and_no_events(tmp_path):
  folder = tmp_path / '[a]*'
  folder.mkdir()
  assert learning_curves.read_learning_curves(str(folder)) == {
      'train_loss': [], 'train_accuracy': [], 'learning_rate': [], 'eval_loss': [],
      'eval_accuracy': []}


def test_scalars_in_tensors_are_read(tmp_path):
  path = tmp_path / 'events.out.tfevents.1.host'
  content = tf.make_tensor_proto(1.)
  content.ClearField('float_val')
  content.tensor_content = b'\0\0\x20\x40'
  with tf.io.TFRecordWriter(str(path)) as file:
    for step, tensor in enumerate((
        tf.make_tensor_proto(1.5), tf.make_tensor_proto([1., 2.]), content)):
      file.write(tf.Event(step=step, summary=tf.Summary(
          value=[tf.Summary.Value(tag='loss', tensor=tensor)])).SerializeToString())
  assert learning_curves.read_learning_curves(str(tmp_path))['train_loss'] == [(0, 1.5), (2, 2.5)]


def test_the_last_evaluation_is_that_of_the_newest_step(write, tmp_path):
  write(1, [('accuracy', 10, .5), ('average_loss', 10, 3.)], folder='eval_a')
  write(1, [('accuracy', 10, .25), ('average_loss', 10, 2.), ('accuracy', 20, .75),
            ('average_loss', 20, float('nan'))], folder='eval_b')
  assert learning_curves.read_last_evaluation(str(tmp_path)) == {
      'global_step': 20, 'accuracy': .75}


def test_the_rate_of_a_run_that_resumed_from_an_earlier_step(tmp_path):
  path = tmp_path / 'events.out.tfevents.1.host'
  with tf.io.TFRecordWriter(str(path)) as file:
    for step, secs in ((1, 0.), (101, 1.), (51, 10.), (101, 15.)):
      file.write(tf.Event(step=step, wall_time=secs, summary=tf.Summary(
          value=[tf.Summary.Value(tag='loss_1', simple_value=1.)])).SerializeToString())
  assert learning_curves.read_steps_per_sec(str(tmp_path)) == 10.
