"""The program: parses the flags, runs the mode they name, and maps errors to exit codes."""

import errno
import json
import os
import signal
import sys
from typing import Optional, Sequence

from estimator_train import flags, modes
from estimator_train.errors import (
  PeerLost,
  StoppedBySignal,
  TrainingFailed,
  UserError,
  one_line,
)
from estimator_train.process import cpu_tuning, logs, signals

_USER_ERROR, _TRAINING_FAILED, _SIGNAL = 2, 3, 128


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the program.

  Args:
    argv: the arguments, without the program's name; those of the process when left out.

  Returns:
    The exit code.
  """
  try:
    return _run(sys.argv[1:] if argv is None else argv)
  except BrokenPipeError:  # The reader of standard output closed it, like `head`.
    # Otherwise Python logs an error when it closes standard output.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _SIGNAL + signal.SIGPIPE
  except OSError as error:
    if error.errno != errno.ENOSPC or error.filename is not None:
      raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _fail('standard output cannot be written to: ' + error.strerror, _USER_ERROR)


def _run(argv: Sequence[str]) -> int:
  if flags.wants_help(argv):
    print(flags.help_text())
    return 0
  signals.install_handlers()
  try:
    settings = flags.parse(argv)
    logs.set_up(settings.verbosity)
    cpu_tuning.tune_cpu()
    result = modes.run(settings)
    print(json.dumps(result), flush=True)
    return 0
  except UserError as error:
    if error.result is not None:
      print(json.dumps(error.result), flush=True)
    return _fail(str(error), _USER_ERROR)
  except TrainingFailed as error:
    return _fail(str(error), _TRAINING_FAILED)
  except PeerLost as lost:
    return _fail(str(lost), lost.exit_code, prefix='')
  except StoppedBySignal as stopped:
    return _fail(str(stopped), _SIGNAL + stopped.signum, prefix='')
  except KeyboardInterrupt:
    return _fail('stopped by SIGINT', _SIGNAL + signal.SIGINT, prefix='')


def _fail(text: str, code: int, prefix: str = 'error: ') -> int:
  print(prefix + one_line(text), file=sys.stderr, flush=True)
  return code


if __name__ == '__main__':
  code = main()
  signals.restore_default_handlers()
  sys.exit(code)
