"""Checkpoints that cannot be saved for some time: what is tried, said, kept and cleared away."""

import errno
import os
import re
import shutil
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import checkpoint_management

from estimator_train.checkpoints import best_checkpoint, finding, saving
from estimator_train.errors import CheckpointNotSaved, RunLockLost, UserError
from estimator_train.reports import metrics_log
from estimator_train.run_dir import RunDir, lock
from estimator_train.system import storage

NO_ROOM = tf.errors.ResourceExhaustedError(
    None, None, 'x/model.ckpt-9_temp_1/part-0; No space left on device\n\t [[node save]]')


class Case:
  """A saver, whose `save` is a mock, under a clock that only sleeping advances."""

  def __init__(self, folder):
    self.folder, self.now, self.stops_at = folder, 100., 1e9
    self.saving = saving.RetryingSaver(RunDir(str(folder)), 300, lambda: self.now > self.stops_at,
                                       lambda: self.now, self.sleep)
    self.saver = tf.train.Saver(sharded=True, save_relative_paths=True, max_to_keep=2)
    self.saver.save = mock.Mock(wraps=self.saver.save)
    self.session = tf.Session()
    self.session.run(tf.global_variables_initializer())

  def sleep(self, secs):
    self.now += secs

  def save(self, step):
    return self.saving.save(self.saver, self.session, step)

  def saves(self, step):
    """Whether a checkpoint is saved, and loads as the latest one."""
    return self.save(step) and finding.find_intact_checkpoint(str(self.folder))[0] == str(
        self.folder / 'model.ckpt-{}'.format(step))

  def names(self):
    return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def case(tmp_path):
  with tf.Graph().as_default():
    tf.train.create_global_step()
    tf.get_variable('weights', [1000, 100])
    case = Case(tmp_path)
    with case.session:
      yield case


@pytest.mark.parametrize('fault, reason', [  # What TensorFlow or Python raises, and the log says.
    # 100,000 values and the step are needed; there is no checkpoint to go by.
    (NO_ROOM, 'No space left on device: 400 kB needed, '),
    (OSError(errno.EDQUOT, 'Disk quota exceeded'), 'Disk quota exceeded: 400 kB needed, '),
    (tf.errors.UnknownError(None, None, 'x; Input/output error'), 'Input/output error in ')])
def test_a_fault_is_reported_and_saving_retried(case, caplog, fault, reason):
  case.saver.save.side_effect = fault
  assert not case.save(0)
  assert reason in caplog.text and ('B free' in caplog.text) == ('needed' in reason)
  case.saver.save.side_effect = None
  assert case.save(10)
  case.saver.save.side_effect = fault
  assert not case.save(20) and case.saving.is_failing and not case.saving.is_due
  warning = caplog.records[-1]
  assert warning.levelname == 'WARNING'
  assert 'retrying in 1 s, for at most 300 s more (--save_retry_secs)' in warning.message
  assert warning.message.endswith('the last good checkpoint is {}/model.ckpt-10'.format(
      case.folder))
  case.now += 1
  assert case.saving.is_due
  case.saver.save.side_effect = None
  assert case.saves(23) and not case.saving.is_failing and case.saving.saved_step == 23
  assert caplog.records[-1].message == (
      'saved the checkpoint of step 23, 1 s after the first failed attempt')


@pytest.mark.parametrize('retry_secs, stops_at, pauses, message', [
    (300, 1e9, ['1', '2', '4', '8', '16', '30', '30'], r'of step 20 could not be saved for 300 s '
     r'\(--save_retry_secs=300\): No space left on device: 407 kB needed'),
    (300, 100.5, ['1'], 'a signal has requested the end of the run: No space'),
    (0, 1e9, [], r'for 0 s \(--save_retry_secs=0\)')])
def test_the_last_checkpoint_is_waited_for(case, caplog, retry_secs, stops_at, pauses, message):
  """Pauses grow and then it is over, after one more attempt, or if a signal ends the wait."""
  case.save(10)
  before, case.saving._retry_secs, case.stops_at = case.names(), retry_secs, stops_at
  case.saver.save.side_effect = NO_ROOM
  with pytest.raises(CheckpointNotSaved, match=message):
    case.saving.save_with_retries(case.saver, case.session, 20)
  found = re.findall(r'retrying in (\d+) s', caplog.text)
  assert found[:7] == pauses and case.saver.save.call_count == 1 + len(found) + 1
  assert case.now == pytest.approx(min(100 + retry_secs, stops_at), abs=1)
  assert case.names() == before


def test_errors_of_the_cluster_are_not_retried(case):
  case.saver.save.side_effect = tf.errors.AbortedError(None, None, 'a parameter server is gone')
  with pytest.raises(tf.errors.AbortedError):
    case.save(10)
  assert not case.saving.is_failing


def test_what_a_failed_attempt_leaves_is_removed(case, monkeypatch):
  def fail_and_leave_parts(*unused_args, **unused_kwargs):
    for name in ('model.ckpt-30_temp_0af/part-00000-of-00001.data-00000-of-00001',
                 'model.ckpt-30.meta.tmp' + 'a1' * 16, 'checkpoint.tmp' + 'a1' * 16):
      (case.folder / name).parent.mkdir(exist_ok=True)
      (case.folder / name).write_bytes(b'x' * 1000)
    raise NO_ROOM

  assert case.save(10) and case.save(20)
  before = case.names()
  with monkeypatch.context() as patch:  # The list of checkpoints is written last.
    patch.setattr(checkpoint_management, 'update_checkpoint_state_internal', fail_and_leave_parts)
    assert not case.save(30)
  assert case.names() == before
  assert case.saves(40)
  assert {name.split('.')[1] for name in case.names() if name.startswith('model.')} == {
      'ckpt-20', 'ckpt-40'}
  state = tf.train.get_checkpoint_state(str(case.folder))
  assert [path.rpartition('-')[2] for path in state.all_model_checkpoint_paths] == ['20', '40']


def test_a_checkpoint_is_whole_without_its_graph(case, monkeypatch, caplog):
  monkeypatch.setattr(case.saver, 'export_meta_graph', mock.Mock(side_effect=NO_ROOM))
  assert case.saves(10)
  assert 'model.ckpt-10.meta could not be written (No space left on device); ' in (
      caplog.records[-1].message)


@pytest.mark.parametrize('replace, reason', [
    (lambda folder: folder.mkdir(), 'another folder or file system is at this path in '),
    (lambda folder: shutil.copytree(str(folder) + '-moved', str(folder)), None),
    (lambda folder: None, 'No such file or directory in ')])
def test_another_folder_in_its_place_is_not_written_to(case, caplog, replace, reason):
  with lock.lock_folder(str(case.folder)):
    assert case.save(10) and case.save(20)
    moved = str(case.folder) + '-moved'
    os.rename(str(case.folder), moved)
    replace(case.folder)
    before = sorted(os.listdir(str(case.folder))) if case.folder.exists() else None
    assert case.save(30) == (reason is None)  # A copy of the folder has the lock of this run.
    if reason:
      assert reason in caplog.records[-1].message
      assert before == (sorted(os.listdir(str(case.folder))) if case.folder.exists() else None)
      case.folder.exists() and case.folder.rmdir()
      os.rename(moved, str(case.folder))
      assert case.saves(40)


def test_the_folder_of_another_run_is_not_written_to(case, caplog):
  with lock.lock_folder(str(case.folder)):
    assert case.save(10) and case.save(20)
    lock_file = case.folder / lock.LOCK_FILE
    lock_file.unlink()
    lock_file.write_text('{"pid": 7, "host": "a", "since": "2019"}')
    before = case.names()
    case.saver.set_last_checkpoints_with_time(  # One more than the saver keeps.
        [(str(case.folder / 'model.ckpt-{}'.format(step)), step) for step in (10, 20, 30)])
    assert not case.save(40) and case.names() == before
    assert 'another run has locked {}: process 7 on a since 2019'.format(lock_file) in caplog.text
    for write in (lambda: storage.write_text(str(case.folder / 'report' / 'a'), 'text'),
                  lambda: best_checkpoint.pin_for_evaluation(
                      str(case.folder / 'model.ckpt-10'), str(case.folder))):
      with pytest.raises(RunLockLost):
        write()
    metrics_log.append(str(case.folder), 'train', 40, {})
    assert case.names() == before
    lock_file.unlink()  # The other run has ended, but its files are there.
    assert not case.save(41) and not lock_file.exists()


def test_a_lock_file_that_was_removed_is_made_again(case, caplog):
  with lock.lock_folder(str(case.folder)):
    (case.folder / lock.LOCK_FILE).unlink()
    assert case.saves(10) and 'run.lock was removed during the run: it is made again' in caplog.text
    with pytest.raises(UserError, match='another run is writing'), \
        lock.lock_folder(str(case.folder)):
      pass
    assert case.saves(20)
  assert not (case.folder / lock.LOCK_FILE).exists()
