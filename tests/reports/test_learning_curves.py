"""Curves from event files, over restarts and crashes."""

import tensorflow.compat.v1 as tf

from estimator_train.reports import learning_curves


def write(folder, number, *scalars):
  """Writes an event file of (tag, step, value or tensor[, time]); returns its path."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / 'events.out.tfevents.{:010d}.host'.format(number)
  with tf.io.TFRecordWriter(str(path)) as file:
    for tag, step, value, *secs in scalars:
      kind = 'simple_value' if isinstance(value, float) else 'tensor'
      file.write(tf.Event(step=step, wall_time=(secs or [0.])[0], summary=tf.Summary(
          value=[tf.Summary.Value(tag=tag, **{kind: value})])).SerializeToString())
  return path


def test_each_curve_has_its_place(tmp_path):
  folder = tmp_path / '[a]*'
  assert not any(learning_curves.read_learning_curves(str(folder)).values())
  write(folder, 1, ('loss', 1, 4.), ('accuracy', 1, .25), ('step_secs', 1, 9.),
        ('learning_rate', 1, .25), ('loss', 11, 2.))
  write(folder / 'eval', 1, ('accuracy', 10, .5), ('average_loss', 10, 3.), ('loss', 10, 9.))
  assert learning_curves.read_learning_curves(str(folder)) == {
      'train_loss': [(1, 4.), (11, 2.)], 'train_accuracy': [(1, .25)],
      'learning_rate': [(1, .25)], 'eval_loss': [(10, 3.)], 'eval_accuracy': [(10, .5)]}


def test_the_loss_over_restarts_and_crashes(tmp_path):
  content = tf.make_tensor_proto(1.)
  content.ClearField('float_val')
  content.tensor_content = b'\0\0\x20\x40'
  for name, cut, files, expected in (
      ('killed beyond its checkpoint', None,
       [[('loss', 1, 4.), ('loss', 11, 3.), ('loss', 21, 9.)], [('loss', 11, 2.5)]],
       [(1, 4.), (11, 2.5)]),
      ('cut off', -3, [[('loss', 1, 4.), ('loss', 11, 3.)], [('loss', 12, 2.), ('loss', 13, 1.)]],
       [(1, 4.), (12, 2.)]),
      ('tensors', None, [[('loss', 0, tf.make_tensor_proto(1.5)),
                          ('loss', 1, tf.make_tensor_proto([1., 2.])), ('loss_1', 2, content)]],
       [(0, 1.5), (2, 2.5)]),
      ('long', None, [[('loss', step, float(step)) for step in range(1, 2502)]],
       [(step, float(step)) for step in range(2501, 0, -3)][::-1])):
    for number, scalars in enumerate(files):
      path = write(tmp_path / name, number, *scalars)
      path.write_bytes(path.read_bytes()[:cut])
    assert learning_curves.read_learning_curves(str(tmp_path / name))['train_loss'] == expected


def test_runs_are_ordered_by_their_steps_where_the_clock_is_wrong(tmp_path):
  for name, files, expected in (
      ('set back', [range(6, 11), range(1, 6)], range(1, 11)),
      ('set back, killed', [range(6, 11), range(1, 9)], range(1, 11)),
      ('set back twice', [range(11, 16), range(1, 6), range(6, 11)], range(1, 16)),
      ('every tenth step', [range(61, 99, 10), range(1, 60, 10)], range(1, 99, 10)),
      ('an older checkpoint', [range(1, 6), range(6, 11), range(3, 5)], range(1, 5))):
    for number, steps in enumerate(files):
      write(tmp_path / name, number, *[('loss', step, float(number), 1000. * number + step)
                                       for step in steps])
    found = learning_curves.read_learning_curves(str(tmp_path / name))['train_loss']
    assert [step for step, _ in found] == list(expected), name


def test_ordering_many_event_files_reads_each_of_them_a_few_times(tmp_path, monkeypatch):
  class CountedPoints(list):
    num_iterations = 0

    def __iter__(self):
      CountedPoints.num_iterations += 1
      return super().__iter__()

  for number in range(200):
    write(tmp_path, number, *[('loss', 3 * number + step, 1.) for step in range(1, 4)])
  read_points = learning_curves._read_points
  monkeypatch.setattr(learning_curves, '_read_points',
                      lambda file: CountedPoints(read_points(file)))
  assert len(learning_curves.read_learning_curves(str(tmp_path))['train_loss']) == 600
  assert CountedPoints.num_iterations <= 5 * 200


def test_each_flipped_bit_of_an_event_file_is_reported(tmp_path, caplog):
  path = write(tmp_path, 1, *[('loss', step, 1. / step) for step in range(1, 5)])
  good, curves = path.read_bytes(), learning_curves.read_learning_curves(str(tmp_path))
  for bit in range(8 * len(good)):
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bad)
    caplog.clear()
    found = learning_curves.read_learning_curves(str(tmp_path))['train_loss']
    assert found == curves['train_loss'][:len(found)] and len(found) < 4, bit
    assert '{} is damaged from its record '.format(path) in caplog.text, bit


def test_the_last_evaluation_and_the_rate(tmp_path):
  write(tmp_path / 'eval_a', 1, ('accuracy', 10, .5), ('average_loss', 10, 3.), ('loss', 10, 9.))
  assert learning_curves.read_last_evaluation(str(tmp_path)) == {
      'global_step': 10, 'accuracy': .5, 'average_loss': 3.}
  write(tmp_path / 'eval_b', 1, ('accuracy', 10, .25), ('average_loss', 10, 2.),
        ('accuracy', 20, .75), ('average_loss', 20, float('nan')))
  write(tmp_path / 'eval_c', 1, ('accuracy', 20, .9))
  assert learning_curves.read_last_evaluation(str(tmp_path)) == {
      'global_step': 20, 'accuracy': .75}
  # The run resumed from an earlier step.
  write(tmp_path, 1, *[('loss', step, 1., secs) for step, secs in (
      (1, 0.), (101, 1.), (51, 10.), (51, 11.), (101, 21.))])
  assert learning_curves.read_steps_per_sec(str(tmp_path)) == 5.
