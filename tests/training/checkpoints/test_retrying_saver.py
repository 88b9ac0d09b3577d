"""Checkpoints that cannot be saved for some time: what is tried, said, kept and cleared away."""

import contextlib
import errno
import logging
import os
import subprocess

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.training import checkpoint_management

from estimator_train.errors import CheckpointNotSaved
from estimator_train.run_dir.run_files import RunDir
from estimator_train.training.checkpoints import recovery, retrying_saver

NO_ROOM = tf.errors.ResourceExhaustedError(
    None, None, 'x/model.ckpt-9_temp_1/part-0; No space left on device\n\t [[node save]]')
FAULTS = {
    'full': NO_ROOM,
    'read-only': tf.errors.PermissionDeniedError(None, None, 'x; Read-only file system'),
    'too many open files': tf.errors.ResourceExhaustedError(None, None, 'x; Too many open files'),
    'over the quota': OSError(errno.EDQUOT, 'Disk quota exceeded'),
    'broken': tf.errors.UnknownError(None, None, 'x; Input/output error'),
}


class Time:
  """A clock that goes on only when somebody sleeps."""

  def __init__(self):
    self.now = 100.
    self.when_slept = lambda: None

  def __call__(self):
    return self.now

  def sleep(self, secs):
    self.now += secs
    self.when_slept()


def latest(folder):
  """Returns the number in the name of the latest checkpoint that loads."""
  return int(recovery.find_checkpoint(str(folder)).path.rpartition('-')[2])


class Case:
  """A session, a folder, and a saver that fails when a fault is injected."""

  def __init__(self, folder, retry_secs=300):
    self.folder, self.time, self.fault, self.is_stopping = folder, Time(), None, False
    self.attempts = []
    self.saving = retrying_saver.RetryingSaver(
        RunDir(str(folder)), retry_secs, lambda: self.is_stopping, self.time, self.time.sleep)
    self.saver = tf.train.Saver(sharded=True, save_relative_paths=True, max_to_keep=2)
    self._really_save, self.saver.save = self.saver.save, self._save
    self.session = tf.Session()
    self.session.run(tf.global_variables_initializer())

  def _save(self, *args, **kwargs):
    self.attempts.append(self.time.now)
    if self.fault is not None:
      raise self.fault
    return self._really_save(*args, **kwargs)

  def save(self, step):
    return self.saving.save(self.saver, self.session, step)

  def save_final(self, step):
    self.saving.save_final(self.saver, self.session, step)

  def names(self):
    return sorted(path.name for path in self.folder.iterdir())


@contextlib.contextmanager
def case_in(folder):
  with tf.Graph().as_default():
    tf.train.create_global_step()
    tf.get_variable('weights', [1000, 100])
    case = Case(folder)
    with case.session:
      yield case


@pytest.fixture
def case(tmp_path):
  with case_in(tmp_path) as case:
    yield case


@pytest.mark.parametrize('name', sorted(FAULTS))
def test_a_fault_is_told_and_borne_until_it_is_over(case, caplog, name):
  assert case.save(10)
  case.fault = FAULTS[name]
  assert not case.save(20) and case.saving.is_failing and not case.saving.is_due
  warning = caplog.records[-1]
  assert warning.levelno == logging.WARNING
  assert warning.message.startswith('the checkpoint of step 20 could not be saved: ')
  assert 'retrying in 1 s, for at most 300 s more (--save_retry_secs)' in warning.message
  assert warning.message.endswith('the last good checkpoint is {}/model.ckpt-10'.format(
      case.folder))
  case.time.now += 1
  assert case.saving.is_due
  case.fault = None
  assert case.save(23) and not case.saving.is_failing and case.saving.saved_step == 23
  assert caplog.records[-1].message == (
      'saved the checkpoint of step 23, 1 s after the first failed attempt')
  assert latest(case.folder) == 23


def test_what_is_needed_and_free_is_told(case, caplog):
  case.fault = NO_ROOM
  case.save(0)
  # 100,000 values and the step; there is no checkpoint to go by.
  assert 'No space left on device: 400 kB needed, ' in caplog.records[-1].message
  assert 'B free' in caplog.records[-1].message
  case.fault = FAULTS['too many open files']
  case.save(0)
  assert 'Too many open files, ulimit -n is ' in caplog.records[-1].message


def test_pauses_grow_and_then_it_is_over(case):
  case.save(10)
  before = case.names()
  case.fault = NO_ROOM
  with pytest.raises(CheckpointNotSaved,
                     match=r'of step 20 could not be saved for 300 s \(--save_retry_secs'
                                     r'=300\): No space left on device: 407 kB needed'):
    case.save_final(20)
  began = case.attempts[1]
  pauses = [round(later - earlier) for earlier, later in zip(case.attempts[1:], case.attempts[2:])]
  assert pauses[:7] == [1, 2, 4, 8, 16, 30, 30] and pytest.approx(case.attempts[-1], abs=1) == (
      began + 300)
  assert case.names() == before and latest(case.folder) == 10


def test_no_retries_are_waited_for_when_none_are_asked_for(case):
  case.saving._retry_secs = 0
  case.fault = NO_ROOM
  with pytest.raises(CheckpointNotSaved, match='for 0 s'):
    case.save(10)


def test_a_signal_ends_the_wait_after_one_more_attempt(case):
  case.fault = NO_ROOM

  def stop_after_a_while():
    case.is_stopping = case.time.now > 100.5

  case.time.when_slept = stop_after_a_while
  with pytest.raises(CheckpointNotSaved,
                     match='a signal has requested the end of the run: No space'):
    case.save_final(10)
  assert len(case.attempts) == 2 and case.time.now < 101


def test_other_errors_are_not_borne(case):
  case.fault = tf.errors.AbortedError(None, None, 'a parameter server is gone')
  with pytest.raises(tf.errors.AbortedError):
    case.save(10)
  assert not case.saving.is_failing


def leave_parts(folder, step):
  """Leaves what a saver does that is interrupted at the worst moments."""
  aside = folder / 'model.ckpt-{}_temp_0af'.format(step)
  aside.mkdir()
  (aside / 'part-00000-of-00001.data-00000-of-00001').write_bytes(b'x' * 1000)
  (folder / 'model.ckpt-{}.index'.format(step)).write_bytes(b'x')
  (folder / 'model.ckpt-{}.data-00000-of-00001'.format(step)).write_bytes(b'x')
  (folder / 'model.ckpt-{}.meta.tmp{}'.format(step, 'a1' * 16)).write_bytes(b'x')
  (folder / ('checkpoint.tmp' + 'a1' * 16)).write_bytes(b'x')


def test_what_a_failed_attempt_leaves_is_removed(case):
  for step in (10, 20):
    assert case.save(step)
  before = case.names()

  def fail_and_leave_parts(*unused_args, **unused_kwargs):
    leave_parts(case.folder, 30)
    raise NO_ROOM

  case.saver.save = fail_and_leave_parts
  assert not case.save(30)
  assert case.names() == before
  case.saver.save = case._save
  assert case.save(30)
  assert latest(case.folder) == 30
  assert not (case.folder / 'model.ckpt-10.index').exists()
  assert (case.folder / 'model.ckpt-20.index').exists()


def test_the_note_of_the_last_checkpoint_is_written_last(case, monkeypatch):
  for step in (10, 20):
    assert case.save(step)
  before = case.names()
  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_management, 'update_checkpoint_state_internal', fail)
    assert not case.save(30)
  assert case.names() == before and latest(case.folder) == 20
  for step in (31, 40):
    assert case.save(step)
  state = tf.train.get_checkpoint_state(str(case.folder))
  assert [path.rpartition('-')[2] for path in state.all_model_checkpoint_paths] == ['31', '40']
  assert {name.split('.')[1] for name in case.names() if name.startswith('model.')} == {
      'ckpt-31', 'ckpt-40'}


def test_a_checkpoint_is_whole_without_its_graph(case, monkeypatch, caplog):
  monkeypatch.setattr(case.saver, 'export_meta_graph', fail)
  assert case.save(10) and latest(case.folder) == 10
  assert 'model.ckpt-10.meta could not be written (No space left on device); ' in (
      caplog.records[-1].message)


def fail(*unused_args, **unused_kwargs):
  raise NO_ROOM


def test_a_folder_that_is_gone_is_not_made_again(case, tmp_path, caplog):
  assert case.save(10)
  away = tmp_path.parent / (tmp_path.name + '-away')
  case.folder.rename(away)
  try:
    assert not case.save(20) and not case.folder.exists()
    assert 'No such file or directory in ' in caplog.records[-1].message
  finally:
    away.rename(case.folder)
  assert case.save(20) and latest(case.folder) == 20


def test_a_folder_that_was_emptied_is_used(case):
  assert case.save(10)
  for path in case.folder.iterdir():
    path.unlink()
  case.folder.rmdir()
  assert not case.save(20)
  os.mkdir(str(case.folder))
  assert case.save(20) and latest(case.folder) == 20


def test_another_disk_in_its_place_is_not_written_to(case, caplog):
  case.saving._device_number += 1
  assert not case.save(20)
  assert ('another file system, without the checkpoints, is mounted in '
          in caplog.records[-1].message)
  assert case.names() == []


def test_a_real_disk_without_inodes(mounted, caplog):
  disk = mounted('size=8m,nr_inodes=30')
  with case_in(disk) as case:
    assert case.save(10)
    before = case.names()
    with contextlib.suppress(OSError):
      for number in range(30):
        (disk / 'other{}'.format(number)).touch()
    assert not case.save(20)
    assert ' free and no inodes in ' in caplog.records[-1].message
    for path in disk.glob('other*'):
      path.unlink()
    assert case.names() == before and latest(disk) == 10
    assert case.save(21) and latest(disk) == 21


def test_a_real_disk_that_is_read_only_for_a_while(mounted, caplog):
  disk = mounted('size=8m')
  with case_in(disk) as case:
    assert case.save(10)
    subprocess.check_call(['mount', '--bind', str(disk), str(disk)])
    subprocess.check_call(['mount', '-o', 'remount,bind,ro', str(disk)])
    assert not case.save(20)
    assert 'could not be saved: Read-only file system in ' in caplog.records[-1].message
    subprocess.check_call(['umount', str(disk)])
    assert case.save(21) and latest(disk) == 21


def test_what_is_below_a_disk_that_is_unmounted_is_not_written_to(mounted, caplog):
  disk = mounted('size=8m')
  with case_in(disk) as case:
    assert case.save(10)
    subprocess.check_call(['umount', str(disk)])
    assert not case.save(20) and case.names() == []
    assert ('another file system, without the checkpoints, is mounted in '
            in caplog.records[-1].message)
