"""Compares the outputs of all exported formats with those of the checkpoint, in several clients.

  python -m estimator_train.exporting.parity --flagfile=MODEL_DIR/flags.txt \
    [--clients=PYTHON[,PYTHON...]] [--examples=N] [FLAG...]

The checkpoint is exported to a temporary folder, once in each format. The libraries of this Python,
and of those that --clients names, load the exports and compute the outputs for the same random
examples. Standard output gets a table, and a JSON object as its last line.
"""

import argparse
import importlib
import json
import math
import sys
import tempfile
from typing import Any, Dict, List, NoReturn, Optional, Sequence

from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.process import cpu_tuning, logs, signals
from estimator_train.settings import Settings, command_line

_USAGE = """\
python -m estimator_train.exporting.parity --flagfile=MODEL_DIR/flags.txt [--FLAG=VALUE...]

Exports a checkpoint in every format to a temporary folder, and compares the outputs of the exports
with those of the checkpoint, for the same random examples. The exit code is 0 if all verdicts are
ok, 1 if one is not, and 2 if a flag is wrong. The last line of standard output is the result as a
JSON object.

  --clients: comma-separated paths of Pythons whose libraries load the exports, too: TensorFlow,
    tf_keras, Keras, ONNX Runtime and LiteRT
  --examples: number of examples (default: {})

All flags of the program are allowed, such as --checkpoint. Those that describe the model must be
those of the training run."""
_NOT_OK_CODE, _USER_ERROR_CODE, _SIGNAL_CODE_BASE = 1, 2, 128
_DEFAULT_EXAMPLES, _MAX_EXAMPLES = 8, 10000
_COLUMNS = ('format', 'client', 'version', 'examples', 'largest difference', 'verdict')


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the check, prints its table and its result, and returns the exit code."""
  arguments = sys.argv[1:] if argv is None else list(argv)
  if command_line.wants_help(arguments):
    print(_USAGE.format(_DEFAULT_EXAMPLES))
    return 0
  signals.install_handlers()
  try:
    own, program_arguments = _parse_arguments(arguments)
    with tempfile.TemporaryDirectory(prefix='estimator_train-') as folder:
      settings = command_line.parse(program_arguments + ['--mode=export', '--export_dir=' + folder])
      logs.set_up(settings.verbosity)
      cpu_tuning.tune_cpu()
      result = _check(settings, own.clients, own.examples, folder)
  except UserError as error:
    return _print_error('error: {}'.format(error), _USER_ERROR_CODE)
  except StoppedBySignal as stopped:
    return _print_error(str(stopped), _SIGNAL_CODE_BASE + stopped.signum)
  print('{}\n{}'.format(make_table(result['rows']), json.dumps(result)), flush=True)
  return 0 if result['ok'] else _NOT_OK_CODE


def _print_error(text: str, exit_code: int) -> int:
  """Prints an error to standard error, and returns `exit_code`."""
  print(text, file=sys.stderr, flush=True)
  return exit_code


def _check(settings: Settings, client_paths: Sequence[str], num_examples: int,
           folder: str) -> Dict[str, Any]:
  """Exports the checkpoint, runs all clients, and returns the result."""
  # These modules import TensorFlow, which takes seconds.
  jobs_module, clients_module, trained_model = (
      importlib.import_module('estimator_train.exporting.' + name)
      for name in ('parity_jobs', 'parity_clients', 'trained_model'))
  clients = clients_module.find_clients(client_paths)
  trained = trained_model.find_checkpoint(settings)
  jobs, failures = jobs_module.make_jobs(settings, trained, folder, num_examples)
  rows = clients_module.run_clients(clients, jobs, folder)
  rows += [clients_module.Row(name, None, None, 0, None, 'not exported', reason)
           for name, reason in failures.items()]
  return {'model_dir': settings.model_dir, 'checkpoint': trained.checkpoint,
          'global_step': trained.global_step, 'tolerance': clients_module.TOLERANCE,
          'ok': all(row.verdict == clients_module.OK for row in rows),
          'rows': [_to_json(row) for row in rows]}


def _to_json(row: Any) -> Dict[str, Any]:
  """Returns a row as a JSON object, in which an infinite difference is null."""
  fields = dict(row._asdict())
  if fields['difference'] is not None and not math.isfinite(fields['difference']):
    fields['difference'] = None
  return fields


def make_table(rows: Sequence[Dict[str, Any]]) -> str:
  """Returns the rows of the result as a Markdown table."""
  lines: List[Sequence[str]] = [_COLUMNS, ['---'] * len(_COLUMNS)]
  for row in rows:
    difference = '' if row['difference'] is None else '{:.1e}'.format(row['difference'])
    verdict = row['verdict'] + (': {}'.format(row['reason']) if row['reason'] else '')
    lines.append([row['format'], row['client'] or '', row['version'] or '',
                  str(row['examples'] or ''), difference, verdict.replace('|', '/')])
  widths = [max(len(line[index]) for line in lines) for index in range(len(_COLUMNS) - 1)]
  return '\n'.join('| {} |'.format(' | '.join(
      [cell.ljust(width) for cell, width in zip(line, widths)] + [line[-1]])) for line in lines)


class _Parser(argparse.ArgumentParser):
  """Raises a UserError where ArgumentParser would end the process."""

  def error(self, message: str) -> NoReturn:
    raise UserError('the flags cannot be read', message, 'see --help')


def _parse_arguments(argv: Sequence[str]) -> Any:
  """Returns the values of this module's flags, and the flags of the program."""
  parser = _Parser(add_help=False, allow_abbrev=False)
  parser.add_argument('--clients', default='')
  parser.add_argument('--examples', default=str(_DEFAULT_EXAMPLES))
  own, program_arguments = parser.parse_known_args(list(argv))
  if not own.examples.isdigit() or not 1 <= int(own.examples) <= _MAX_EXAMPLES:
    raise UserError('--examples is not a valid number', '--examples=' + own.examples,
                    'give a whole number from 1 to {}'.format(_MAX_EXAMPLES))
  own.examples = int(own.examples)
  own.clients = [path for path in own.clients.split(',') if path]
  return own, program_arguments


if __name__ == '__main__':
  sys.exit(main())
