"""Commands that end, crash, hang, or are not there."""

import os
import select
import signal
import sys

import pytest

from estimator_train.doctor import commands


def python(code):
  return [sys.executable, '-c', code]


def test_output_and_environment():
  code = 'import os, sys; print(os.environ["X_Y"]); sys.stderr.write("e")'
  done = commands.run_command(python(code), 60, {'X_Y': 'given'})
  assert done[:3] == (0, 'given\n', 'e') and done.secs > 0


@pytest.mark.parametrize('code, reason', [
    ('import os, signal; os.kill(os.getpid(), signal.SIGILL)', 'ended by SIGILL'),
    ('import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 1)', 'ended by signal {}'.format(
        signal.SIGRTMIN + 1)),
    ('import sys; print("out"); sys.exit("at last")', 'exit code 1: at last'),
    ('print("only this"); raise SystemExit(9)', 'exit code 9: only this'),
    ('raise SystemExit(3)', 'exit code 3'),
])
def test_reasons(code, reason):
  assert commands.run_command(python(code), 60).failure_reason() == reason


def test_hanging_command_and_its_child_are_killed(tmp_path):
  os.mkfifo(str(tmp_path / 'held'))
  held = os.open(str(tmp_path / 'held'), os.O_RDONLY | os.O_NONBLOCK)
  try:
    for secs in (0.5, 5., 50.):  # A busy machine may take a while to begin.
      done = commands.run_command(
          ['sh', '-c', 'exec 3>"$0"; echo begun; sleep 3600 & sleep 3600', str(tmp_path / 'held')],
          secs)
      if done.stdout:
        break
    assert done.exit_code is None and done.stdout == 'begun\n'
    assert done.failure_reason().startswith('no answer within ')
    # The end is there to read when nobody has it open any more.
    assert select.select([held], [], [], 300)[0] and os.read(held, 1) == b''
  finally:
    os.close(held)


def test_no_such_command():
  with pytest.raises(OSError):
    commands.run_command(['/no/such/command'], 1)
