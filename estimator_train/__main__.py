"""Runs the program: parses the flags, runs the mode of `--mode`, and returns the exit code."""

import json
import shutil
import signal
import sys
from typing import Any, Dict, Optional, Sequence

from estimator_train import modes
from estimator_train.errors import (
  SIGNAL_CODE_BASE,
  PeerLost,
  StoppedBySignal,
  TrainingFailed,
  UserError,
  one_line,
)
from estimator_train.settings import Settings, command_line, rules
from estimator_train.system import logs, machine, signals
from estimator_train.version import __version__


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the program, and returns its exit code.

  Args:
    argv: the arguments, without the program's name; None for the arguments of this process.
  """
  try:
    logs.prepare_streams()
    return _run(sys.argv[1:] if argv is None else argv)
  except StoppedBySignal as stopped:
    signals.wait_until_stop_logged(stopped)
    return _print_error(str(stopped), SIGNAL_CODE_BASE + stopped.signum, prefix='')
  except KeyboardInterrupt:
    return _print_error('stopped by SIGINT', SIGNAL_CODE_BASE + signal.SIGINT, prefix='')
  except UserError as error:  # Standard output is closed, or cannot be written.
    return _print_error(str(error), error.exit_code)
  except BrokenPipeError:  # The process that reads standard output, such as `head`, has ended.
    return SIGNAL_CODE_BASE + signal.SIGPIPE


def _run(argv: Sequence[str]) -> int:
  """Runs the mode, prints its result or error, and returns the exit code."""
  text = _usage_version_or_help(argv)
  if text is not None:
    print(text, flush=True)
    return 0
  signals.install_raising_handlers()
  try:
    settings = command_line.parse(argv)
    logs.set_up_logging(settings.run.verbosity)
    rules.warn_of_flags_without_effect(settings.run.mode, settings.given.names)
    machine.tune_for_cpu_training()
    with signals.reraise_caught_stop():
      result = modes.run(settings)
    _print_result(result, settings)
    return 0
  except UserError as error:
    if error.result is not None:  # For example, --mode=doctor has a result with the failed checks.
      _print_result(error.result, settings)
    return _print_error(str(error), error.exit_code)
  except TrainingFailed as error:
    return _print_error(str(error), error.exit_code)
  except PeerLost as lost:
    return _print_error(str(lost), lost.exit_code, prefix='')


def _usage_version_or_help(argv: Sequence[str]) -> Optional[str]:
  """Returns the usage, the version or the help; None if the arguments run a mode."""
  if not argv:
    return command_line.USAGE
  if '--version' in argv:
    return __version__
  if not command_line.wants_help(argv):
    return None
  width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
  return command_line.help_text(argv, width)


def _print_result(result: Dict[str, Any], settings: Settings) -> None:
  """Prints the result of a mode as JSON. On a terminal, this requires --json."""
  if settings.reporting.json or not sys.stdout.isatty():
    print(json.dumps(result), flush=True)


def _print_error(text: str, exit_code: int, prefix: str = 'error: ') -> int:
  """Prints an error to standard error, and returns `exit_code`."""
  print(prefix + one_line(text), file=sys.stderr, flush=True)
  return exit_code


def run_and_exit() -> None:
  """Runs the program as a process of its own, and ends the process."""
  signals.start_signal_thread()
  sys.path.insert(0, '')  # As with `python -m`, functions of the user are found in this folder.
  exit_code = main()
  signals.install_silent_exit_handlers()
  sys.exit(exit_code)


if __name__ == '__main__':
  run_and_exit()
