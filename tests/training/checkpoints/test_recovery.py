"""Which checkpoint a run goes on from when some of its files are damaged or gone."""

import os

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.errors import UserError
from estimator_train.training.checkpoints import recovery


@pytest.fixture
def folder(tmp_path):
  """Checkpoints of the steps 0, 10 and 20, as a run saves them."""
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.get_or_create_global_step()
    tf.get_variable('weights', initializer=tf.random.uniform([100, 10]))
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver(sharded=True, save_relative_paths=True)
    for number in (0, 10, 20):
      session.run(step.assign(number))
      saver.save(session, str(tmp_path / 'model.ckpt'), global_step=number)
  return tmp_path


def path_of(folder, step, part='index'):
  suffix = {'index': 'index', 'data': 'data-00000-of-00001'}[part]
  return folder / 'model.ckpt-{}.{}'.format(step, suffix)


def truncate(path, size):
  os.truncate(str(path), size if size >= 0 else path.stat().st_size + size)


def flip(path, at):
  content = bytearray(path.read_bytes())
  content[at] ^= 1
  path.write_bytes(bytes(content))


FAULTS = {
    'data truncated': lambda folder: truncate(path_of(folder, 20, 'data'), -1),
    'data empty': lambda folder: truncate(path_of(folder, 20, 'data'), 0),
    'data missing': lambda folder: path_of(folder, 20, 'data').unlink(),
    'data damaged': lambda folder: flip(path_of(folder, 20, 'data'), 1000),
    'index truncated': lambda folder: truncate(path_of(folder, 20), -1),
    'index empty': lambda folder: truncate(path_of(folder, 20), 0),
    'index missing': lambda folder: path_of(folder, 20).unlink(),
    'index damaged': lambda folder: flip(path_of(folder, 20), 10),
}


def go_on(folder):
  """Returns the step that a run goes on from, by this package's word and then TensorFlow's."""
  found = recovery.find_checkpoint(str(folder))
  recovery.repair_model_dir(str(folder), found)
  assert found.path == tf.train.latest_checkpoint(str(folder))
  if found.path is not None:
    assert tf.train.load_variable(found.path, 'global_step') == found.step
  return found.step


def test_the_latest(folder, caplog):
  before = (folder / 'checkpoint').read_bytes()
  assert go_on(folder) == 20
  assert not caplog.text and (folder / 'checkpoint').read_bytes() == before


@pytest.mark.parametrize('fault', sorted(FAULTS))
def test_one_before_a_damaged_one(folder, fault, caplog):
  FAULTS[fault](folder)
  files = sorted(path.name for path in folder.iterdir())
  assert go_on(folder) == 10
  assert 'skipping a checkpoint that cannot be loaded: {}/model.ckpt-20: '.format(
      folder) in caplog.text
  assert sorted(path.name for path in folder.iterdir()) == files
  caplog.clear()
  assert go_on(folder) == 10 and not caplog.text


@pytest.mark.parametrize('content', [b'', b'model_checkpoint_path: "mo', b'\x00\xff'])
def test_no_state_file_that_can_be_read(folder, content):
  (folder / 'checkpoint').write_bytes(content)
  assert go_on(folder) == 20


def test_no_state_file(folder):
  (folder / 'checkpoint').unlink()
  assert go_on(folder) == 20


def test_a_state_file_that_points_nowhere(folder, caplog):
  text = (folder / 'checkpoint').read_text()
  (folder / 'checkpoint').write_text(text.replace('model.ckpt-20', 'model.ckpt-30'))
  assert go_on(folder) == 20
  assert 'model.ckpt-30: ' in caplog.text


def test_what_was_not_finished_is_not_gone_on_from(folder):
  """The state file is written last: what it does not name yet may be half of a checkpoint."""
  text = (folder / 'checkpoint').read_text()
  (folder / 'checkpoint').write_text(text.replace('"model.ckpt-20"', '"model.ckpt-10"'))
  assert go_on(folder) == 10


def test_the_step_is_what_was_saved_and_not_the_name(folder):
  """With parameter servers the others go on while a checkpoint is saved."""
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.get_or_create_global_step()
    session.run(step.assign(24))
    saver = tf.train.Saver(sharded=True, save_relative_paths=True)
    saver.set_last_checkpoints([str(folder / 'model.ckpt-10')])
    saver.save(session, str(folder / 'model.ckpt'), global_step=20)
  assert go_on(folder) == 24
  assert tf.train.latest_checkpoint(str(folder)) == str(folder / 'model.ckpt-20')


def test_none_loads(folder):
  for step in (0, 10, 20):
    truncate(path_of(folder, step), 3)
  files = {path: path.read_bytes() for path in folder.iterdir()}
  with pytest.raises(UserError) as refused:
    recovery.find_checkpoint(str(folder))
  for step in (0, 10, 20):
    assert '{}/model.ckpt-{}: file is too short'.format(folder, step) in str(refused.value)
  assert 'nothing was deleted' in str(refused.value)
  assert {path: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize('part', ['index', 'data'])
def test_killed_while_it_saved_its_first(folder, part):
  """TensorFlow writes the data, then the index, then the state file."""
  for path in folder.iterdir():
    if path != path_of(folder, 0, part):
      path.unlink()
  truncate(path_of(folder, 0, part), -1)
  found = recovery.find_checkpoint(str(folder))
  assert found[:2] == (None, 0) and len(found.skip_reasons) == 1


def test_what_was_written_aside_is_cleared_away(folder):
  aside = folder / 'model.ckpt-30_temp_0b5f'
  aside.mkdir()
  (aside / 'part-00000-of-00001.data-00000-of-00001').write_bytes(b'half')
  assert go_on(folder) == 20
  assert not aside.exists() and path_of(folder, 20).exists()


@pytest.mark.parametrize('name', [
    'model.ckpt-30.meta.tmp' + 32 * 'a', 'checkpoint.tmp' + 32 * '0', 'flags.txt.123.part',
    'model.h5.part', 'best/best.json.9.part', 'report/curves.json.77.part'])
def test_halves_of_files_are_cleared_away(folder, name):
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_text('half')
  (folder / 'own.part').write_text('not ours')
  assert go_on(folder) == 20
  assert not (folder / name).exists() and (folder / 'own.part').exists()


def keep_one(folder, name):
  """Has the state file name one checkpoint alone, as when it keeps no more."""
  (folder / 'checkpoint').write_text(
      'model_checkpoint_path: "{0}"\nall_model_checkpoint_paths: "{0}"\n'.format(name))


def test_what_was_being_deleted_is_gone(folder):
  """TensorFlow takes it out of the state file first, and deletes the data last."""
  keep_one(folder, 'model.ckpt-20')
  path_of(folder, 10).unlink()
  assert go_on(folder) == 20
  assert not list(folder.glob('model.ckpt-10.*')) and path_of(folder, 0).exists()


def test_what_was_to_be_deleted_will_be(folder):
  keep_one(folder, 'model.ckpt-20')
  assert go_on(folder) == 20
  state = tf.train.get_checkpoint_state(str(folder))
  assert list(state.all_model_checkpoint_paths) == [
      str(folder / 'model.ckpt-{}'.format(step)) for step in (0, 10, 20)]


@pytest.mark.parametrize('name', ['new', ''])
def test_nothing_there(tmp_path, name):
  assert go_on(tmp_path / name) == 0
