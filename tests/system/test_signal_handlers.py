"""Stop signals: none is lost, each is answered once, and one that is ignored stays ignored."""

import os
import signal
import sys
import textwrap

import pytest
from conftest import run_process

from estimator_train.system import signals

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
    assert state.stop_signum == signal.SIGTERM and caplog.messages == [
        'SIGTERM: finishing the step, then saving a checkpoint and writing the reports']
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
    assert len(caplog.messages) == 1
