"""Standard streams that are closed, full or broken."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

FULL = 'error: cannot write to standard output: No space left on device: free some space, or '
CLOSED = 'error: standard output is closed, so that the result would be lost: '


def shell(command):
  """Runs a command of Bash in which $RUN is the program."""
  return subprocess.run(
      ['bash', '-c', command], cwd=str(ROOT), timeout=120, stdout=subprocess.PIPE,
      stderr=subprocess.PIPE, universal_newlines=True,
      env=dict(os.environ, RUN=sys.executable + ' -m estimator_train'))


@pytest.mark.parametrize('command, code, err', [
    ('$RUN --help >&-', 2, CLOSED), ('$RUN.launcher.local_cluster >&-', 2, CLOSED),
    ('$RUN.launcher.with_tensorboard >&-', 2, CLOSED),
    ('$RUN --help 1</dev/null', 2, 'error: cannot write to standard output: Bad file descriptor'),
    ('$RUN --mode=doctor --num_gpus=x >/dev/full', 2, 'error: --num_gpus must be'),
    ('$RUN --no_such_flag 2>/dev/full', 2, ''), ('$RUN --no_such_flag 2>&-', 2, ''),
    ('$RUN --no_such_flag >&- 2>&- <&-', 2, ''), ('$RUN --help >/dev/full 2>/dev/full', 2, ''),
    ('$RUN --no_such_flag 2> >(:)', 2, ''), ('$RUN --help > >(:); wait $!', 0, None)])
def test_the_code_says_whether_the_result_is_lost(command, code, err):
  done = shell(command)
  if err is None:
    assert done.returncode in (0, 141) and 'Error' not in done.stderr
  else:
    assert done.returncode == code and done.stderr.startswith(err)
    assert len(done.stderr.splitlines()) == bool(err)


@pytest.mark.parametrize('streams', ['2>&-', '2>/dev/full'])
def test_messages_are_lost_and_results_are_not(streams):
  program = ('import os, sys, logging; from estimator_train.process import logs; '
             'logs.prepare_streams(); logs.set_up(0); print(sys.stderr.isatty(), '
             'os.open(os.devnull, os.O_RDONLY) > 2, os.get_inheritable(2)); '
             'logging.getLogger("estimator_train").info("a message"); '
             'os.system("echo of a child >&2"); print("result", file=sys.stdout)')
  done = shell('{} -c \'{}\' <&- {}'.format(sys.executable, program, streams))
  assert (done.returncode, done.stdout) == (0, 'False True True\nresult\n')
