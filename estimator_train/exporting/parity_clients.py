"""Runs parity_client.py in several Pythons, and compares the outputs with the checkpoint's."""

import json
import logging
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from estimator_train.errors import UserError, one_line
from estimator_train.exporting import parity_client
from estimator_train.exporting.comparison import TOLERANCE, largest_difference
from estimator_train.exporting.parity_jobs import Job, encode_strings

OK, FAILED = 'ok', 'failed'
_LOG = logging.getLogger('estimator_train')
_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'parity_client.py')
_TIMEOUT_SECS = 900
# The names of libraries in the table, by the module; h5 files are loaded by a part of TensorFlow.
_NAMES = {'tensorflow': 'TensorFlow', 'tf_keras': 'tf_keras', 'keras': 'Keras',
          'onnxruntime': 'ONNX Runtime', 'ai_edge_litert': 'LiteRT'}


class Client(NamedTuple):
  """A Python with libraries that load exported models.

  Attributes:
    command: how to start it.
    version: the version of Python.
    libraries: the modules of the libraries.
  """
  command: Sequence[str]
  version: str
  libraries: Sequence[str]


class Row(NamedTuple):
  """A line of the table.

  Attributes:
    format: the format, with the signature of a SavedModel.
    client: the library and the version of Python.
    version: the version of the library.
    examples: the number of compared examples.
    difference: the largest difference, see largest_difference; None: there are no outputs.
    verdict: OK or FAILED.
    reason: why the verdict is FAILED.
  """
  format: str
  client: Optional[str]
  version: Optional[str]
  examples: int
  difference: Optional[float]
  verdict: str
  reason: Optional[str] = None


def find_clients(paths: Sequence[str]) -> List[Client]:
  """Returns this Python, and the Pythons at these paths.

  Raises:
    UserError: a path is not that of a Python with NumPy and a library that loads exported models.
  """
  # With -I, the other Pythons ignore the variables and folders of this one.
  commands = [[sys.executable]] + [[_find_python(path), '-I'] for path in paths]
  return [_probe(command) for command in commands]


def _find_python(path: str) -> str:
  found = shutil.which(path)
  if found is None:
    raise UserError('--clients must name Pythons', '--clients={} is not an executable'.format(path),
                    'give the paths of Pythons, such as --clients=FOLDER/bin/python')
  return found


def _probe(command: Sequence[str]) -> Client:
  """Asks a Python for its libraries."""
  try:
    done = subprocess.run([*command, _SCRIPT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True, timeout=_TIMEOUT_SECS)
    found = json.loads(done.stdout)
  except (OSError, ValueError) as error:
    reason = error if isinstance(error, OSError) else done.stderr.strip().rpartition('\n')[2]
    raise UserError('--clients must name Pythons with NumPy',
                    '--clients={} ({})'.format(command[0], reason),
                    'install NumPy and a library there, or give another Python') from error
  if not found['libraries']:
    raise UserError('a Python of --clients must have a library that loads exported models',
                    '--clients={} has none'.format(command[0]),
                    'install one of ' + ', '.join(_NAMES.values()))
  return Client(command, found['python'], found['libraries'])


def run_clients(clients: Sequence[Client], jobs: Sequence[Job], folder: str) -> List[Row]:
  """Computes the outputs of all exported models with all libraries, and compares them.

  Args:
    clients: the Pythons.
    jobs: the exported models.
    folder: a folder for temporary files.

  Returns:
    The rows, in the order of the jobs.
  """
  encoded = [_write_inputs(job, os.path.join(folder, 'inputs-{}.npz'.format(index)))
             for index, job in enumerate(jobs)]
  rows: Dict[str, List[Row]] = {job.name: [] for job in jobs}
  for client in clients:
    for library in client.libraries:
      formats = parity_client.LIBRARIES[library]
      chosen = [index for index, job in enumerate(jobs) if job.format in formats]
      if chosen:
        _LOG.info('running %s of %s', _NAMES[library], client.command[0])
        for row in _run_library(client, library, [jobs[index] for index in chosen],
                                [encoded[index] for index in chosen], folder):
          rows[row.format].append(row)
  return [row for of_job in rows.values() for row in of_job]


def _write_inputs(job: Job, path: str) -> Dict[str, Any]:
  """Writes the inputs of a job, and returns the job as parity_client.py expects it."""
  strings = {name: encode_strings(array) for name, array in job.inputs.items()
             if array.dtype.kind == 'O'}
  np.savez(path, **{name: array for name, array in job.inputs.items() if name not in strings})
  return {'name': job.name, 'format': job.format, 'path': job.path, 'signature': job.signature,
          'names': list(job.inputs), 'inputs': path, 'strings': strings}


def _run_library(client: Client, library: str, jobs: Sequence[Job],
                 encoded: Sequence[Dict[str, Any]], folder: str) -> List[Row]:
  """Computes the outputs of these jobs in one process, and compares them."""
  jobs_path, results_path = (os.path.join(folder, name) for name in ('jobs.json', 'results.json'))
  outputs = [os.path.join(folder, 'outputs-{}.npz'.format(index)) for index in range(len(jobs))]
  with open(jobs_path, 'w', encoding='utf-8') as file:
    json.dump([dict(job, outputs=path) for job, path in zip(encoded, outputs)], file)
  failure = _run_script([*client.command, _SCRIPT, library, jobs_path, results_path])
  results: Dict[str, Any] = {'version': None, 'errors': {}}
  if os.path.exists(results_path):
    with open(results_path, encoding='utf-8') as file:
      results = json.load(file)
    os.remove(results_path)
  rows = []
  for job, path in zip(jobs, outputs):
    error = results['errors'].get(job.name, failure)
    if error == parity_client.NOT_FOR_THIS_VERSION:
      continue
    name = 'tf.keras' if (library, job.format) == ('tensorflow', 'h5') else _NAMES[library]
    client_name = '{}, Python {}'.format(name, client.version)
    rows.append(_compare(job, path, client_name, results['version'], error))
  return rows


def _run_script(command: Sequence[str]) -> str:
  """Runs parity_client.py; returns the reason for results that are missing afterwards."""
  try:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, universal_newlines=True, errors='replace',
                          timeout=_TIMEOUT_SECS)
  except subprocess.TimeoutExpired:
    return 'the client did not end within {} seconds'.format(_TIMEOUT_SECS)
  return 'the client ended with exit code {}: {}'.format(
      done.returncode, one_line(done.stdout.strip().rpartition('\n')[2]))


def _compare(job: Job, path: str, client: str, version: Optional[str],
             error: Optional[str]) -> Row:
  """Returns the row of a job that a client has done, or has failed to do."""
  count = len(next(iter(job.inputs.values())))
  if error is not None:
    return Row(job.name, client, version, count, None, FAILED, error)
  with np.load(path, allow_pickle=False) as stored:
    difference = largest_difference(job.expected, {name: stored[name] for name in stored.files})
  os.remove(path)
  if difference <= TOLERANCE:
    return Row(job.name, client, version, count, difference, OK)
  reason = 'the difference is greater than {}'.format(TOLERANCE)
  if difference == float('inf'):
    reason = 'the outputs have other names or shapes, or are not numbers'
  return Row(job.name, client, version, count, difference, FAILED, reason)
