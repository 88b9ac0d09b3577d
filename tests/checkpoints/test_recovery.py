"""From which checkpoint a run resumes when some of its files are damaged or gone."""

import contextlib
import os
import shutil
import socket

import pytest
import tensorflow.compat.v1 as tf

from estimator_train.checkpoints import best_checkpoint, finding, repairing
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings
from estimator_train.system import temporary_files

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
  path, step = finding.find_intact_checkpoint(str(folder))
  repairing.repair_model_dir(str(folder), path)
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
  assert finding.find_intact_checkpoint(str(folder)) == (None, 0)
  assert caplog.text.count('skipping a checkpoint that cannot be loaded') == 1


def test_what_was_not_finished_is_cleared_away(folder):
  names = ['model.ckpt-30_temp_0b5f/part-00000-of-00001.data-00000-of-00001',
           'model.ckpt-30.meta.tmp' + 32 * 'a', 'checkpoint.tmp' + 32 * '0', *(
               temporary_files.temporary_name(name) for name in (
                   'flags.txt', 'model.h5', 'keras/a', 'best/best.json', 'decompressed/a-1'))]
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


def write_list(folder, prefix, *steps):
  """Lists checkpoints as TensorFlow does, the latest one first and last."""
  (folder / 'checkpoint').write_text(''.join(
      '{}: "{}model.ckpt-{}"\n'.format(name, prefix, step) for name, step in [
          ('model_checkpoint_path', steps[-1]),
          *(('all_model_checkpoint_paths', step) for step in steps)]))


@pytest.mark.parametrize('prefix', ['{}/', '/elsewhere/run/', '../original/', 'C:\\\\run\\\\',
                                    '/old run/\\"\\303\\251\\"/'])
@pytest.mark.parametrize('repair', [go_on, repairing.replace_paths_of_other_folders])
def test_a_list_with_paths_of_another_folder(folder, tmp_path_factory, repair, prefix):
  """TensorFlow would restore and delete the checkpoints of that folder."""
  copy = tmp_path_factory.mktemp('runs') / 'copy'
  shutil.copytree(str(folder), str(copy))
  shutil.copytree(str(folder), str(copy.parent / 'original'))
  write_list(copy, prefix.format(folder), 0, 5, 10, 20)
  assert finding.find_latest_checkpoint_and_step(str(copy)) == (str(copy / 'model.ckpt-20'), 24)
  assert RunDir(str(copy)).last_checkpoint() == str(copy / 'model.ckpt-20')
  repair(*[copy if repair is go_on else str(copy)])
  assert finding.find_latest_checkpoint_and_step(str(copy))[1] == 24
  state = tf.train.get_checkpoint_state(str(copy))
  assert {os.path.dirname(path) for path in state.all_model_checkpoint_paths} == {str(copy)}
  with tf.Graph().as_default(), tf.Session() as session:  # As MonitoredTrainingSession does.
    tf.train.create_global_step()
    saver = tf.train.Saver(max_to_keep=1)  # At each save, it deletes one of its own.
    saver.restore(session, state.model_checkpoint_path)
    saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
    for step in range(30, 34):
      saver.save(session, str(copy / 'model.ckpt'), step)
  assert {path.name for path in copy.glob('*.index')} == set(map(INDEX.format, (31, 32, 33)))
  for original in (folder, copy.parent / 'original'):
    assert len(list(original.glob('*.index'))) == 3


def test_a_list_of_which_no_checkpoint_is_in_the_folder(folder):
  write_list(folder, '/elsewhere/', 70)
  with pytest.raises(UserError, match="the latest checkpoint in TensorFlow's list is missing: "
                     + str(folder / 'model.ckpt-70')):
    repairing.replace_paths_of_other_folders(str(folder))
  assert go_on(folder) == 24  # The program takes the newest one that is there.
  for path in ('', '..'):
    (folder / 'checkpoint').write_text('model_checkpoint_path: "{}"\n'.format(path))
    with pytest.raises(UserError, match="the latest checkpoint in TensorFlow's list is missing"):
      repairing.replace_paths_of_other_folders(str(folder))


def test_a_container_without_a_folder_for_temporary_files(folder, monkeypatch):
  monkeypatch.setattr('tempfile.tempdir', str(folder / 'missing'))
  assert finding.find_intact_checkpoint(str(folder)) == (str(folder / 'model.ckpt-20'), 24)


def make_socket(path):
  server = socket.socket(socket.AF_UNIX)
  server.bind(os.path.relpath(path))  # A path of a socket is short.


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, make_socket])
@pytest.mark.parametrize('name, message', [
    ('checkpoint', "TensorFlow's list of checkpoints cannot be read: .*/checkpoint "),
    ('flags.txt', 'a file in --model_dir is damaged: .*flags.txt '),
    (INDEX.format(20), None), (DATA.format(20), None), ('batch_sizes.json', None),
    ('best/best.json', None)])
def test_what_is_not_a_regular_file_does_not_block(folder, caplog, monkeypatch, name, message,
                                                   make):
  monkeypatch.chdir(folder)
  with contextlib.suppress(FileNotFoundError):
    os.remove(name)
  os.makedirs('best')
  make(name)
  with pytest.raises(UserError, match=message) if message else contextlib.ExitStack():
    run_dir = RunDir(str(folder))
    run_dir.read_flags()
    run_dir.read_clock(1)
    best_checkpoint.read_best(str(folder))
    assert finding.find_intact_checkpoint(str(folder))[1] == (10 if 'ckpt-20' in name else 24)
  assert message or name in caplog.text or 'model.ckpt-20: ' in caplog.text
  if 'ckpt-20' in name:  # TensorFlow would open it when it saves this step again.
    with pytest.raises(UserError, match='a file of a checkpoint is not a regular file: .*' + name):
      go_on(folder)
  assert RunDir(str(folder)).last_checkpoint() == (
      None if name == 'checkpoint' else str(folder / 'model.ckpt-20'))


@pytest.mark.parametrize('checkpoint', ['latest', 'best', '{}/model.ckpt-20'])
def test_a_checkpoint_that_is_deleted_while_it_is_read(folder, monkeypatch, checkpoint):
  """By a training run in the same folder, which keeps one checkpoint."""
  run, given = str(folder), checkpoint.format(folder)
  pinned = best_checkpoint.pin_for_evaluation(run + '/model.ckpt-20', run)
  best_checkpoint.promote_if_better(pinned, 20, {'loss': 1.}, best_checkpoint.BestMetric(
      'loss', False), run)
  settings = Settings(mode='export', model_dir=run, export_dir='x', checkpoint=given)
  with finding.pin_requested_checkpoint(settings, RunDir(run)) as found:
    for path in [*folder.glob('model.ckpt-*'), *folder.glob('best/*/*')]:
      path.unlink()
    assert found.global_step == 24 and os.path.dirname(found.readable_path) != run
    assert tf.train.load_variable(found.readable_path, 'weights').shape == (100, 10)
  assert not os.path.exists(found.readable_path + '.index')
  with pytest.raises(UserError, match='there is no|no checkpoint'), \
      finding.pin_requested_checkpoint(settings, RunDir(run)):
    pass


def test_a_checkpoint_that_is_deleted_before_it_is_read(folder, monkeypatch, caplog):
  """The search continues with the next one, which is saved meanwhile."""
  pin, deleted = finding.pin_verified_checkpoint, []

  def pin_after_save(path, *given):
    if not deleted:
      deleted.append(path)
      for old in folder.glob('model.ckpt-*'):
        old.rename(str(old).replace('ckpt-', 'ckpt-1'))
      write_list(folder, '', 10, 110, 120)
    return pin(path, *given)

  monkeypatch.setattr(finding, 'pin_verified_checkpoint', pin_after_save)
  assert finding.find_intact_checkpoint(str(folder)) == (str(folder / 'model.ckpt-120'), 24)
  assert deleted == [str(folder / 'model.ckpt-20')] and not caplog.text


@pytest.mark.parametrize('path', ['/elsewhere/best/20/model.ckpt-20', '20/model.ckpt-20'])
def test_the_best_checkpoint_of_a_moved_run(folder, path):
  pinned = best_checkpoint.pin_for_evaluation(str(folder / 'model.ckpt-20'), str(folder))
  (folder / 'best' / 'best.json').write_text(
      '{"checkpoint": "%s", "global_step": 20, "last_evaluated": 20}' % path)
  assert best_checkpoint.read_best(str(folder)).path == pinned
  for outside in ('../model.ckpt-20', '/elsewhere/model.ckpt-20', '20/../../model.ckpt-20'):
    (folder / 'best' / 'best.json').write_text(
        '{"checkpoint": "%s", "global_step": 20, "last_evaluated": 20}' % outside)
    assert best_checkpoint.read_best(str(folder)) is None
