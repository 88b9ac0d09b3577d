"""What a process says: its streams, log, progress bars and last words, and its age."""

import logging
import os
import sys
import time
import types
from unittest import mock

import psutil
import pytest
import terminal
from conftest import run_process

from estimator_train.system import logs, progress
from estimator_train.system.start_up import START_TIME_VARIABLE, process_age_secs, uptime_text

LOG = logging.getLogger('estimator_train')
FULL = 'error: cannot write to standard output: No space left on device: free some space, or '
CLOSED = 'error: standard output is closed, so that the result would be lost: '


def shell(command):
  """Runs a command of Bash in which $RUN is the program."""
  return run_process('bash', '-c', command, env={'RUN': sys.executable + ' -m estimator_train'})


@pytest.mark.parametrize('command, err', [
    ('$RUN --help >&-', CLOSED), ('$RUN.launcher.local_cluster >&-', CLOSED),
    ('$RUN --help >/dev/full', FULL), ('$RUN --no_such_flag >&- 2>&- <&-', ''),
    ('$RUN --help >/dev/full 2>/dev/full', '')])
def test_the_code_says_whether_the_result_is_lost(command, err):
  done = shell(command)
  assert done.returncode == 2 and done.stderr.startswith(err)
  assert len(done.stderr.splitlines()) == bool(err)


@pytest.mark.parametrize('streams', ['2>&-', '2>/dev/full'])
def test_messages_are_lost_and_results_are_not(streams):
  program = ('import os, sys, logging; from estimator_train.system import logs; '
             'logs.prepare_streams(); logs.set_up_logging(0); print(sys.stderr.isatty(), '
             'os.open(os.devnull, os.O_RDONLY) > 2, os.get_inheritable(2)); '
             'logging.getLogger("estimator_train").info("a message"); '
             'os.system("echo of a child >&2"); print("result", file=sys.stdout)')
  done = shell('{} -c \'{}\' <&- {}'.format(sys.executable, program, streams))
  assert (done.returncode, done.stdout) == (0, 'False True True\nresult\n')


def test_a_message_is_one_line_whatever_it_contains(capsys):
  logs.set_up_logging(1)
  for text, line in (
      ('a class\x1b[2J', r'a class\x1b[2J'), ('a\nerror: forged\r\n', r'a\nerror: forged\r\n'),
      ('\x9b0m\u202egpj\u2028', r'\x9b0m\u202egpj\u2028'), ('Katze, \u00e9, \u732b', None),
      ('\udcff.png', r'\udcff.png'), ('C:\\temp', None)):
    LOG.getChild('cluster').info('%s', text)
    assert capsys.readouterr().err == (line or text) + '\n'
  LOG.warning('%s', ', '.join(map(str, range(10000))))
  (line,) = capsys.readouterr().err.splitlines()
  assert len(line) < 1100 and line.startswith('warning: 0, 1, 2') and line.endswith('9998, 9999')
  LOG.debug('a\tb', exc_info=ValueError('odd'))
  assert capsys.readouterr().err == 'a\\tb\nValueError: odd\n'
  logs.set_up_logging(0)
  LOG.debug('hidden')
  assert capsys.readouterr().err == ''


def use_bar():
  """Uses a progress bar, and returns whether it is shown."""
  with progress.make_bar('filling', 4, 'images') as bar:
    bar.update(4)
    return bar.is_shown


def test_progress_bars(capsys, monkeypatch, jupyter_kernel):
  assert progress.shows_progress_bars() and use_bar()  # In a notebook.
  assert 'filling: 4/4 images, ' in capsys.readouterr().err.splitlines()[-1]
  widget = mock.MagicMock()
  monkeypatch.setitem(sys.modules, 'ipywidgets', types.ModuleType('ipywidgets'))
  monkeypatch.setitem(sys.modules, 'tqdm.notebook', types.SimpleNamespace(tqdm=widget))
  assert use_bar() and widget.call_args[1]['total'] == 4 and widget.call_args[1]['leave']
  del jupyter_kernel.kernel  # As IPython on a terminal.
  assert not use_bar() and not progress.shows_progress_bars()
  assert capsys.readouterr() == ('', '')
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
  assert progress.shows_progress_bars() and use_bar()
  assert terminal.show(capsys.readouterr().err, 80) == []


@pytest.mark.skipif(not os.path.exists('/proc/uptime'), reason='only Linux has /proc/uptime')
def test_the_age_of_the_process_leaves_out_the_set_up_before_it(monkeypatch):
  first = process_age_secs()
  assert first == pytest.approx(time.time() - psutil.Process().create_time(), abs=2)
  monkeypatch.setenv(START_TIME_VARIABLE, uptime_text())
  assert process_age_secs() < first
  monkeypatch.setenv(START_TIME_VARIABLE, '1')  # Of a process that was started before.
  assert first <= process_age_secs() < float(uptime_text())
