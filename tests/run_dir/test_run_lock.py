"""One run, one model_dir: who is refused, and who takes over."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from conftest import ROOT, wait_until

from estimator_train.errors import UserError
from estimator_train.run_dir import run_lock

HOLDER = '''
import sys
from estimator_train.run_dir import run_lock
with run_lock.locked(sys.argv[1]):
  print('locked', flush=True)
  sys.stdin.readline()
'''


@pytest.fixture
def start():
  """Starts processes that hold the lock of a folder until they are told to end."""
  processes = []

  def begin(folder):
    process = subprocess.Popen(
        [sys.executable, '-c', HOLDER, str(folder)], cwd=str(ROOT), universal_newlines=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    processes.append(process)
    assert process.stdout.readline() == 'locked\n', process.stderr.read()
    return process

  yield begin
  for process in processes:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
      pipe.close()


def lock_file(folder):
  return folder / run_lock.LOCK_FILE


def leave(folder, **holder):
  """Leaves a lock as a process does that was killed."""
  lock_file(folder).write_text(json.dumps(dict(
      {'host': 'elsewhere', 'pid': 7, 'since': '2018-12-09', 'boot': 'another', 'started': '1'},
      **holder)))


def test_a_second_process_is_told_who_has_it(start, tmp_path):
  holder = start(tmp_path)
  since = json.loads(lock_file(tmp_path).read_text())['since']
  with pytest.raises(UserError) as refused, run_lock.locked(str(tmp_path)):
    pytest.fail('two hold it')
  assert '{} is locked by process {} on {} since {}'.format(
      lock_file(tmp_path), holder.pid, socket.gethostname(), since) in str(refused.value)
  assert lock_file(tmp_path).exists()
  holder.stdin.close()
  assert holder.wait(60) == 0
  assert not lock_file(tmp_path).exists()
  with run_lock.locked(str(tmp_path)):
    assert json.loads(lock_file(tmp_path).read_text())['pid'] == os.getpid()


def test_that_of_a_killed_process_is_taken_over(start, tmp_path, caplog):
  caplog.set_level('INFO')
  holder = start(tmp_path)
  holder.send_signal(signal.SIGKILL)
  holder.wait(60)
  with run_lock.locked(str(tmp_path)):
    assert json.loads(lock_file(tmp_path).read_text())['pid'] == os.getpid()
  assert 'left by process {} on {}'.format(holder.pid, socket.gethostname()) in caplog.text
  assert 'taking over the lock' in caplog.text


def test_that_of_another_machine_is_taken_over_when_nobody_touches_it(tmp_path, caplog):
  caplog.set_level('INFO')
  leave(tmp_path)
  with run_lock.locked(str(tmp_path), owner_timeout_secs=0.1):
    assert 'process 7 on elsewhere since 2018-12-09, which has ended' in caplog.text


def test_that_of_another_machine_stands_while_it_is_touched(tmp_path):
  leave(tmp_path)
  is_over = threading.Event()
  with open(str(lock_file(tmp_path)), 'rb+', buffering=0) as file:
    toucher = threading.Thread(target=run_lock._keep_touching, args=(file, 0.01, is_over))
    toucher.start()
    try:
      with pytest.raises(UserError, match='locked by process 7 on elsewhere'), \
          run_lock.locked(str(tmp_path), owner_timeout_secs=60):
        pytest.fail('two hold it')
    finally:
      is_over.set()
      toucher.join()


def test_the_holder_touches_it(tmp_path):
  with run_lock.locked(str(tmp_path), touch_interval_secs=0.01):
    began = lock_file(tmp_path).stat().st_mtime_ns
    wait_until(lambda: lock_file(tmp_path).stat().st_mtime_ns > began)


@pytest.fixture
def no_locks(monkeypatch):
  """A mount that knows no locks."""
  def flock(fd, operation):
    raise OSError(errno.ENOLCK, 'No locks available')

  monkeypatch.setattr(fcntl, 'flock', flock)


@pytest.mark.parametrize('is_alive', [True, False])
def test_without_locks_the_process_itself_is_looked_for(no_locks, tmp_path, is_alive):
  this = run_lock._this_process()
  leave(tmp_path, **(this if is_alive else dict(this, started='1')))
  if is_alive:
    with pytest.raises(UserError, match='locked by process {} '.format(os.getpid())), \
        run_lock.locked(str(tmp_path)):
      pytest.fail('two hold it')
  else:
    with run_lock.locked(str(tmp_path)):
      assert json.loads(lock_file(tmp_path).read_text()) == dict(this, since=json.loads(
          lock_file(tmp_path).read_text())['since'])


@pytest.mark.parametrize('content', [b'', b'{"host": ', b'[1]', b'\xff\xfe'])
def test_what_cannot_be_read_holds_nobody_off(tmp_path, content):
  lock_file(tmp_path).write_bytes(content)
  with run_lock.locked(str(tmp_path)):
    assert json.loads(lock_file(tmp_path).read_text())['pid'] == os.getpid()


def test_who_comes_as_the_lock_goes_gets_a_new_one(start, tmp_path, monkeypatch):
  """The file that was opened is removed, by whoever held it, before it is locked."""
  lock, attempts = run_lock._lock, []

  def removed_before_it_is_locked(file, path):
    if not attempts:
      os.remove(path)
    attempts.append(path)
    return lock(file, path)

  monkeypatch.setattr(run_lock, '_lock', removed_before_it_is_locked)
  with run_lock.locked(str(tmp_path)):
    assert len(attempts) == 2 and lock_file(tmp_path).exists()


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path):
  folder = tmp_path / 'run'
  with run_lock.locked(str(folder)):
    assert lock_file(folder).exists()
  assert not folder.exists()
  with run_lock.locked(str(folder)):
    (folder / 'something').touch()
  assert [path.name for path in folder.iterdir()] == ['something']


def test_no_room(tmp_path, monkeypatch):
  def full(model_dir, owner_timeout_secs):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(run_lock, '_acquire', full)
  with pytest.raises(UserError, match='--model_dir cannot be written to: .*No space left'), \
      run_lock.locked(str(tmp_path)):
    pytest.fail('it is full')


def test_only_one_of_two_programs_writes(run_program, start, tmp_path):
  holder = start(tmp_path)
  for arguments in (['--mode=train', '--train_steps=1'], ['--mode=evaluate'],
                    ['--mode=scaling', '--train_steps=30']):
    done = run_program('--model_dir={}'.format(tmp_path), *arguments)
    assert done.code == 2 and not done.out
    assert done.err == (
        'error: another run is writing to this --model_dir: {} is locked by process {} on {} since '
        '{}: wait for that run or stop it, or give another --model_dir\n'.format(
            lock_file(tmp_path), holder.pid, socket.gethostname(),
            json.loads(lock_file(tmp_path).read_text())['since']))
  assert [path.name for path in tmp_path.iterdir()] == ['run.lock']
