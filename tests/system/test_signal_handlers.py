"""Stop signals: none is lost, each is answered once, and one that is ignored stays ignored."""

import io
import os
import signal
import sys
import textwrap
import time

import pytest
from conftest import run_process

from estimator_train.errors import StoppedBySignal
from estimator_train.system import logs, signals

# Runs the program with another `modes.run`.
PROGRAM = '''
import os, runpy, signal, threading, time
from estimator_train import modes
from estimator_train.system import signals
signals._STOP_TIMEOUT_SECS = {timeout}
class Finalized:
  def __del__(self):
    stop()
def stop():
  os.kill(os.getpid(), signal.{name})
  time.sleep(.01)
def run(settings):
{body}
  return {{}}
modes.run = run
runpy.run_module('estimator_train', run_name='__main__')
'''
BODIES = {
    'in a finalizer': 'Finalized()',
    'in a constructor of an object with a finalizer':
        'class Incomplete(str):\n  def __new__(cls, *given):\n    stop()\n'
        '    return str.__new__(cls)\n  def __init__(self, text):\n    stop()\n'
        '    self.text = text\n'
        '  def __del__(self):\n    print(self.text[:0], end="")\nIncomplete("a")',
    'in a callback of importlib':
        'import importlib._bootstrap as bootstrap, types\nreal = bootstrap._imp\n'
        'lock = bootstrap._get_module_lock("a")\n'
        'def acquire():\n  bootstrap._imp = real\n  real.acquire_lock()\n  stop()\n'
        'bootstrap._imp = types.SimpleNamespace(acquire_lock=acquire)\ndel lock',
    'in the import of a C++ module':
        'import importlib.machinery\n'
        'class Loader(importlib.machinery.ExtensionFileLoader):\n  def create_module(self, spec):\n'
        '    try: stop()\n    except BaseException: os._exit(9)\nLoader("a", "a").create_module(0)',
    'discarded': 'try: stop()\nexcept BaseException: pass\ntime.sleep(60)',
    'replaced': 'try: stop()\nexcept BaseException as error:\n'
                '  raise SystemError("returned a result with an error set") from error',
    # Not as fast as it can, which would fill the pipe in which Python notes signals.
    'hanging': 'while True:\n  try:\n    stop()\n    time.sleep(60)\n'
               '  except BaseException: time.sleep(.01)'}


@pytest.mark.parametrize('name, how', [
    *(('SIGTERM', how) for how in BODIES), ('SIGINT', 'replaced'), ('SIGHUP', 'hanging')])
def test_no_signal_is_lost(name, how):
  code = PROGRAM.format(name=name, body=textwrap.indent(BODIES[how], '  '),
                        timeout=.5 if how == 'hanging' else 60)
  done = run_process(sys.executable, '-c', code, '--mode=doctor', timeout=50)
  assert done.returncode == 128 + signal.Signals[name], done.stderr
  # A process that ends by itself at the deadline may print the last line twice.
  assert set(done.stderr.splitlines()) == {name + ': stopping', 'stopped by ' + name}
  assert done.stdout == ''


def test_signals_during_training(caplog):
  """One that is ignored stays ignored, as nohup wants it."""
  caplog.set_level('INFO')
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  signals.install_raising_handlers()
  with signals.SignalState() as state:
    state.start_recording()
    os.kill(os.getpid(), signal.SIGHUP)
    assert state.stop_signum is None and not caplog.messages
    os.kill(os.getpid(), signal.SIGTERM)
    assert state.stop_signum == signal.SIGTERM
    wait_for(lambda: caplog.messages)
    assert caplog.messages == [
        'SIGTERM: finishing the step, then saving a checkpoint and writing the reports']
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
    assert len(caplog.messages) == 1


class InterruptedFile(io.RawIOBase):
  """A file whose first write is interrupted by signals."""

  def __init__(self):
    self.written = b''

  def writable(self):
    return True

  def write(self, data):
    is_first = not self.written
    self.written += bytes(data)
    if is_first:
      os.kill(os.getpid(), signal.SIGUSR1)
      os.kill(os.getpid(), signal.SIGINT)
    return len(data)


@pytest.mark.parametrize('is_training', [True, False])
def test_signals_that_interrupt_a_write_to_standard_error(monkeypatch, is_training):
  """Such a write cannot be interrupted by another one, so the handlers must not log."""
  file = InterruptedFile()
  monkeypatch.setattr(sys, 'stderr', io.TextIOWrapper(io.BufferedWriter(file), write_through=True))
  logs.set_up_logging(verbosity=0)
  signals.install_raising_handlers()
  with signals.SignalState() as state:
    if is_training:
      state.start_recording()
      print('a line', file=sys.stderr, flush=True)
      assert state.stop_signum == signal.SIGINT and state.save_requested
    else:
      with pytest.raises(StoppedBySignal):
        print('a line', file=sys.stderr, flush=True)
  for text in ('SIGINT: finishing' if is_training else 'SIGINT: stopping', 'SIGUSR1: nothing'):
    wait_for(lambda text=text: text in file.written.decode())
  assert 'Error' not in file.written.decode()


def wait_for(is_true):
  deadline = time.monotonic() + 30
  while not is_true():
    assert time.monotonic() < deadline
    time.sleep(.01)
