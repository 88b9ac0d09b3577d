"""From which checkpoint a run resumes when some of its files are damaged or gone."""

import os

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.training.checkpoints import restoring

INDEX, DATA = 'model.ckpt-{}.index', 'model.ckpt-{}.data-00000-of-00001'


@pytest.fixture
def folder(tmp_path):
  """Checkpoints as a run saves them; with parameter servers others go on meanwhile: to step 24."""
  with tf.Graph().as_default(), tf.Session() as session:
    step = tf.train.get_or_create_global_step()
    tf.get_variable('weights', initializer=tf.random.uniform([100, 10]))
    session.run(tf.global_variables_initializer())
    saver = tf.train.Saver(sharded=True, save_relative_paths=True)
    for number, saved in ((0, 0), (10, 10), (20, 24)):
      session.run(step.assign(saved))
      saver.save(session, str(tmp_path / 'model.ckpt'), global_step=number)
  return tmp_path


def go_on(folder):
  """Returns the step from which a run resumes, by this package and by TensorFlow."""
  path, step = restoring.find_intact_checkpoint(str(folder))
  restoring.repair_model_dir(str(folder), path)
  assert path == tf.train.latest_checkpoint(str(folder))
  if path is not None:
    assert tf.train.load_variable(path, 'global_step') == step
  return step


DAMAGE = {
    'truncated': lambda content: content[:-1],
    'empty': lambda content: b'',
    'damaged': lambda content: content[:10] + bytes([content[10] ^ 1]) + content[11:],
    'missing': lambda content: None,
}
# A file, what becomes of its content, the step from which a run resumes, the checkpoint it skips.
FAULTS = [
    *((name.format(20), DAMAGE[damage], 10, 20) for name in (INDEX, DATA) for damage in DAMAGE),
    ('checkpoint', lambda content: content, 24, None),
    ('checkpoint', DAMAGE['missing'], 24, None),
    ('checkpoint', DAMAGE['empty'], 24, None),
    ('checkpoint', lambda content: b'model_checkpoint_path: "mo', 24, None),
    ('checkpoint', lambda content: b'\x00\xff', 24, None),
    ('checkpoint', lambda content: content.replace(b'ckpt-20', b'ckpt-30'), 24, 30),
    # This file is written last: what it does not name yet may be half of a checkpoint.
    ('checkpoint', lambda content: content.replace(b'"model.ckpt-20"', b'"model.ckpt-10"'), 10,
     None),
]


@pytest.mark.parametrize('name, change, step, skipped', FAULTS)
def test_the_latest_that_loads(folder, caplog, name, change, step, skipped):
  content = (folder / name).read_bytes()
  changed = change(content)
  (folder / name).unlink() if changed is None else (folder / name).write_bytes(changed)
  before = {path: path.read_bytes() for path in folder.iterdir()}
  assert go_on(folder) == step
  assert ('skipping a checkpoint that cannot be loaded: {}/model.ckpt-{}: '.format(
      folder, skipped) in caplog.text) == (skipped is not None)
  after = {path: path.read_bytes() for path in folder.iterdir()}
  if changed != content:  # What TensorFlow reads is written anew.
    before.pop(folder / 'checkpoint', None)
    after.pop(folder / 'checkpoint')
  assert before == after, 'nothing is deleted'
  caplog.clear()
  assert go_on(folder) == step and not caplog.text


@pytest.mark.parametrize('name', [INDEX, DATA])
def test_killed_while_it_saved_its_first(folder, caplog, name):
  """TensorFlow writes the data, then the index, then the state file."""
  for path in folder.iterdir():
    if path.name != name.format(0):
      path.unlink()
  os.truncate(str(folder / name.format(0)), 3)
  assert restoring.find_intact_checkpoint(str(folder)) == (None, 0)
  assert caplog.text.count('skipping a checkpoint that cannot be loaded') == 1


def test_what_was_not_finished_is_cleared_away(folder):
  names = ['model.ckpt-30_temp_0b5f/part-00000-of-00001.data-00000-of-00001',
           'model.ckpt-30.meta.tmp' + 32 * 'a', 'checkpoint.tmp' + 32 * '0', 'flags.txt.123.part',
           'model.h5.part', 'keras/a.1.part', 'best/best.json.9.part', 'report/curves.json.77.part']
  for name in names + ['own.part']:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('half')
  assert go_on(folder) == 24
  assert not any((folder / name).exists() for name in names) and (folder / 'own.part').exists()
  assert not (folder / names[0]).parent.exists() and (folder / INDEX.format(20)).exists()


def test_what_was_to_be_deleted_will_be(folder):
  """TensorFlow takes it out of the state file first, and deletes the data last."""
  (folder / 'checkpoint').write_text('model_checkpoint_path: "model.ckpt-20"\n'
                                     'all_model_checkpoint_paths: "model.ckpt-20"\n')
  (folder / INDEX.format(10)).unlink()
  assert go_on(folder) == 24
  state = tf.train.get_checkpoint_state(str(folder))
  assert list(state.all_model_checkpoint_paths) == [
      str(folder / 'model.ckpt-{}'.format(step)) for step in (0, 20)]
  assert not list(folder.glob('model.ckpt-10.*'))
