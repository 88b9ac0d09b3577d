"""One run, one model_dir: who is refused, and who takes over."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from unittest import mock

import pytest
from conftest import ROOT, wait_until

from estimator_train.errors import UserError
from estimator_train.run_dir import lock
from estimator_train.system import locks, machine

# Locks a folder until its input ends.
HOLDER = '''
import sys
from estimator_train.run_dir import lock
with lock.lock_folder(sys.argv[1]):
  print(flush=True)
  sys.stdin.readline()
'''


def lock_file(folder):
  return folder / lock.LOCK_FILE


def owner(folder):
  return json.loads(lock_file(folder).read_text())


def assert_refused(folder, text='locked by process', **options):
  with pytest.raises(UserError, match=text), lock.lock_folder(str(folder), **options):
    pytest.fail('two hold it')


def assert_taken(folder, **options):
  before = threading.active_count()
  with lock.lock_folder(str(folder), **options):
    assert owner(folder)['pid'] == os.getpid()
    assert_refused(folder)
  assert not lock_file(folder).exists()
  wait_until(lambda: threading.active_count() <= before)


def test_a_second_program_is_told_who_has_it_until_that_is_killed(run_program, tmp_path, capsys):
  with subprocess.Popen([sys.executable, '-c', HOLDER, str(tmp_path)], cwd=str(ROOT),
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
    assert holder.stdout.readline()
    for flags in ('--mode=train --train_steps=30', '--mode=evaluate', '--mode=scaling'):
      assert run_program('--model_dir', tmp_path, *flags.split()) == (
          2, '', 'error: another run is writing to this --model_dir: {} is locked by process {} on '
          '{} since {}: wait for that run or stop it, or give another --model_dir\n'.format(
              lock_file(tmp_path), holder.pid, socket.gethostname(), owner(tmp_path)['since']))
    assert os.listdir(str(tmp_path)) == ['run.lock']
    holder.kill()
  assert_taken(tmp_path)
  assert 'left by process {} on '.format(holder.pid) in capsys.readouterr().err


@pytest.mark.parametrize('has_locks', [True, False])
def test_a_lock_that_the_kernel_does_not_know_stands_while_it_is_touched(
    tmp_path, caplog, monkeypatch, has_locks):
  """That of another machine, and on a file system without locks."""
  caplog.set_level('INFO')
  left = {'host': 'elsewhere', 'pid': 7, 'since': '2018-12-09', 'boot': 'another'}
  if not has_locks:
    monkeypatch.setattr(fcntl, 'flock', mock.Mock(side_effect=OSError(errno.ENOLCK, 'No locks')))
    left['boot'] = machine.boot_id()
  lock_file(tmp_path).write_text(json.dumps(left))
  with monkeypatch.context() as patch:  # Its owner touches it meanwhile.
    patch.setattr(lock.time, 'sleep', lambda secs: os.utime(str(lock_file(tmp_path))))
    assert_refused(tmp_path, 'locked by process 7 on elsewhere')
  with lock.lock_folder(str(tmp_path), owner_timeout_secs=0.1, touch_interval_secs=0.01):
    assert owner(tmp_path)['pid'] == os.getpid()
    began = lock_file(tmp_path).stat().st_mtime_ns
    wait_until(lambda: lock_file(tmp_path).stat().st_mtime_ns > began)
    assert_refused(tmp_path)
  assert 'process 7 on elsewhere since 2018-12-09, which has ended' in caplog.text
  for content in (b'', b'[1]', b'\xff\xfe'):  # What cannot be read holds nobody off.
    lock_file(tmp_path).write_bytes(content)
    with lock.lock_folder(str(tmp_path)):
      assert owner(tmp_path)['pid'] == os.getpid()


def test_who_comes_as_the_lock_goes_gets_a_new_one(tmp_path, monkeypatch):
  """The file that was opened is removed, by whoever held it, before it is locked."""
  try_lock, attempts = locks.try_lock, []

  def removed_before_it_is_locked(descriptor):
    if not attempts:
      os.remove(str(lock_file(tmp_path)))
    attempts.append(descriptor)
    return try_lock(descriptor)

  monkeypatch.setattr(locks, 'try_lock', removed_before_it_is_locked)
  with lock.lock_folder(str(tmp_path)):
    assert len(attempts) == 2 and lock_file(tmp_path).exists()


def test_the_file_is_not_made_again_after_its_removal(tmp_path, monkeypatch):
  """The thread that touches the file may find it missing while the lock is released."""
  locks, threads, remove = [], [], os.remove

  def remove_and_touch(path):
    remove(path)
    threads.append(threading.Thread(target=lock._touch_until_released, args=(
        locks[0], 0, mock.Mock(wait=mock.Mock(side_effect=[False, True])))))
    threads[0].start()
    threads[0].join(.2)

  monkeypatch.setattr(lock, '_touch_until_released', mock.Mock(side_effect=lambda lock, *_: (
      locks.append(lock))), raising=True)
  with lock.lock_folder(str(tmp_path)):
    wait_until(lambda: locks)
    monkeypatch.undo()
    monkeypatch.setattr(os, 'remove', remove_and_touch)
  threads[0].join()
  assert not lock_file(tmp_path).exists()


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path, monkeypatch):
  folder = tmp_path / 'run'
  assert_taken(folder)
  assert not folder.exists()
  monkeypatch.setattr(lock, '_acquire_lock', mock.Mock(side_effect=OSError(28, 'No space left')))
  assert_refused(tmp_path, '--model_dir cannot be written to: .*No space left')
