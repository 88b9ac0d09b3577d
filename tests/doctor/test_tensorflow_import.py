"""The import of TensorFlow in a child process; stand-ins for the package crash and hang."""

import pytest

from estimator_train.doctor import tensorflow_import
from estimator_train.doctor.commands import CommandResult

WORKS = CommandResult(0, '', '', 2.)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
  """Puts a package `tensorflow` of these contents before the real one, for child processes."""
  def write(init, compat='', v1=''):
    for folder, text in (('tensorflow', init), ('tensorflow/compat', compat),
                         ('tensorflow/compat/v1', v1)):
      (tmp_path / folder).mkdir()
      (tmp_path / folder / '__init__.py').write_text(text)
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))

  return write


def test_the_real_one():
  imported = tensorflow_import.import_in_child()
  assert imported.version.startswith('1.15') and imported.secs > 0 and imported.num_gpus == 0
  finding = tensorflow_import.check_import(imported)
  assert finding.level == 'ok' and 'TensorFlow 1.15' in finding.found


CRASH = 'import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n'
PROTOBUF = 'raise TypeError("Descriptors cannot be created directly.\\nMore information: there")'


@pytest.mark.parametrize('init, found, remedy', [
    pytest.param(CRASH, 'cannot be imported: ended by SIGILL', 'line `cpu`', id='no AVX'),
    pytest.param(PROTOBUF, 'TypeError: Descriptors cannot be created directly.', 'line `protobuf`',
                 id='protobuf 4'),
    pytest.param('import no_such_thing', "No module named 'no_such_thing'", 'run_train.sh',
                 id='incomplete'),
    pytest.param('raise ImportError("libx.so.1: cannot open")', 'ImportError: libx.so.1',
                 'import tensorflow', id='a library'),
])
def test_import_fails(stand_in, init, found, remedy):
  stand_in(init)
  finding = tensorflow_import.check_import(tensorflow_import.import_in_child())
  assert finding.level == 'error' and found in finding.found and remedy in finding.remedy


def test_import_hangs(stand_in):
  stand_in('import time\ntime.sleep(600)')
  finding = tensorflow_import.check_import(tensorflow_import.import_in_child(timeout_secs=1.))
  assert finding.level == 'error' and 'no answer within 1 s' in finding.found


def test_look_for_gpus_crashes(stand_in):
  stand_in('', '', '''
import os
import signal


class test:
  is_built_with_cuda = staticmethod(lambda: True)


class config:
  class experimental:
    list_physical_devices = staticmethod(lambda kind: os.kill(os.getpid(), signal.SIGSEGV))


__version__ = '1.15.9'
''')
  imported = tensorflow_import.import_in_child()
  assert imported[1:] == ('1.15.9', imported.secs, True, None)
  finding = tensorflow_import.check_import(imported)
  assert finding.level == 'error'
  assert 'fails to list GPUs: ended by SIGSEGV' in finding.found


@pytest.mark.parametrize('secs, level', [(2., 'ok'), (31., 'warning')])
def test_slow_import(secs, level):
  imported = tensorflow_import.ImportResult(WORKS, '1.15.0', secs, True, 0)
  assert tensorflow_import.check_import(imported).level == level
