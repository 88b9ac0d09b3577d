"""What the benchmarks share: arguments, child processes with a deadline, medians, the printing.

It does not import TensorFlow, and neither should a benchmark that measures children: what a
process had in memory before it became another program counts into that program's peak.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

import pkg_resources

ROOT = Path(__file__).resolve().parents[2]
DATA_FILES = ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz',
              't10k-images-idx3-ubyte.gz', 't10k-labels-idx1-ubyte.gz')

# What article_fashion_mnist.py prints; here, so that knowing it does not take importing that.
ARTICLE_FIRST_STEP = 'first step done'
ARTICLE_LAST_STEP = 'last step done'

_TENSORFLOWS = ('tensorflow', 'tensorflow-gpu', 'intel-tensorflow', 'nvidia-tensorflow')
_LINES_OF_A_FAILURE = 15
NOTHING: Mapping[str, str] = {}

# What is measured is this checkout, and no copy that is installed.
sys.path.insert(0, str(ROOT))


class Parser(argparse.ArgumentParser):
  """An argument parser whose errors are one line on standard error; it then exits with code 2."""

  def __init__(self, description: Optional[str]) -> None:
    super().__init__(description=description, allow_abbrev=False,
                     formatter_class=argparse.RawDescriptionHelpFormatter)

  def error(self, message: str) -> Any:
    self.exit(2, 'error: {}\n'.format(' '.join(message.split())))

  def add_data_dir(self, required: bool = True) -> None:
    """Adds --data_dir, which must hold the four files of Fashion-MNIST."""
    self.add_argument('--data_dir', type=data_dir, required=required,
                      help='folder of the four gzipped idx files of Fashion-MNIST' + (
                          '' if required else ' (default: the sample that ships with the package)'))

  def add_count(self, name: str, default: int, text: str, minimum: int = 1) -> None:
    """Adds a flag that takes a whole number, at least `minimum`."""
    self.add_argument(name, type=_at_least(minimum), default=default,
                      help='{} (default: {})'.format(text, default))


class Child(NamedTuple):
  """What was seen from outside of a process that ended well.

  Attributes:
    lines: what it wrote on standard output and standard error, together.
    line_secs: when each line came, in seconds since just before the process was spawned.
    peak_bytes: the most resident memory that it had at a time.
  """
  lines: List[str]
  line_secs: List[float]
  peak_bytes: int

  def secs_until(self, start_of_line: str) -> float:
    """Returns when the first line that starts so came.

    Raises:
      ChildFailed: there is none.
    """
    for line, secs in zip(self.lines, self.line_secs):
      if line.startswith(start_of_line):
        return secs
    raise ChildFailed('a run printed no line that starts with {!r}'.format(start_of_line),
                      self.lines)


class ChildFailed(Exception):
  """A process ended badly or late; its text ends with the last lines that the process printed."""

  def __init__(self, text: str, lines: Sequence[str]) -> None:
    super().__init__('\n'.join([text] + ['  ' + line for line in lines[-_LINES_OF_A_FAILURE:]]))


def run_python(arguments: Sequence[str], deadline_secs: float, python: str = sys.executable,
               variables: Mapping[str, str] = NOTHING) -> Child:
  """Runs an interpreter with these arguments, in a session of its own, to its end.

  The process and those it started are killed at the deadline, and when this one is stopped.

  Args:
    arguments: without the interpreter.
    deadline_secs: after which it is killed.
    python: the interpreter; this one when left out.
    variables: of its environment, besides those of this process.

  Raises:
    ChildFailed: it did not end with code 0 before the deadline.
  """
  command = [python] + list(arguments)
  lines: List[str] = []
  line_secs: List[float] = []
  expired = threading.Event()
  began = time.perf_counter()
  process = subprocess.Popen(command, env=dict(_environment(), **variables),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, universal_newlines=True,
                             errors='replace', start_new_session=True)
  assert process.stdout is not None

  def expire() -> None:
    expired.set()
    _kill(process.pid)

  timer = threading.Timer(deadline_secs, expire)
  try:
    timer.start()
    for line in process.stdout:
      line_secs.append(time.perf_counter() - began)
      lines.append(line.rstrip('\n'))
    # Its number stays taken until it is reaped below, so that no kill can meet another process.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
  finally:
    timer.cancel()
    if timer.is_alive():
      timer.join()
    _kill(process.pid)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    process.stdout.close()
  if expired.is_set():
    raise ChildFailed('killed after {:g} seconds: {}'.format(deadline_secs, ' '.join(command)),
                      lines)
  if process.returncode:
    raise ChildFailed('ended with code {}: {}'.format(process.returncode, ' '.join(command)), lines)
  return Child(lines, line_secs, usage.ru_maxrss * 1024)  # Linux counts kilobytes.


class PackageRun(NamedTuple):
  """A run of `python -m estimator_train`.

  Attributes:
    child: what was seen of it from outside.
    throughput: its `throughput.json`.
  """
  child: Child
  throughput: Dict[str, Any]


def run_package(flags: Sequence[str], deadline_secs: float,
                module: str = 'estimator_train', python: str = sys.executable,
                variables: Mapping[str, str] = NOTHING) -> PackageRun:
  """Runs the program with these flags and a new --model_dir, which is removed afterwards.

  Args:
    flags: all but --model_dir.
    deadline_secs: after which it is killed.
    module: the program, or what starts several of it.
    python: the interpreter; this one when left out.
    variables: of its environment, besides those of this process.

  Raises:
    ChildFailed: it did not end with code 0 before the deadline.
  """
  with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
    child = run_python(['-m', module, '--model_dir=' + model_dir] + list(flags),
                       deadline_secs, python, variables)
    text = (Path(model_dir) / 'throughput.json').read_text(encoding='utf-8')
  return PackageRun(child, json.loads(text))


def warm_up(deadline_secs: float) -> None:
  """Imports once what the runs import, so that the first one finds the files in memory too."""
  run_python(['-c', 'import estimator_train.training.trainer'], deadline_secs)


def machine() -> Dict[str, Any]:
  """Returns what a figure depends on besides its command."""
  return {
      'cpu': _cpu(),
      'instructions': _instructions(),
      'cores': len(os.sched_getaffinity(0)),
      'load': round(os.getloadavg()[0], 2),
      'python': platform.python_version(),
      'tensorflow': _tensorflow(),
      'commit': _commit(),
  }


def machine_line(found: Dict[str, Any]) -> str:
  """Returns a machine in words; its load is that of the minute before the benchmark."""
  return ('{cpu}, {cores} core(s), load {load}; Python {python}, {tensorflow}; commit {commit}'
          .format(**found))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table, a column as wide as its widest cell."""
  cells = [list(header)] + [list(row) for row in rows]
  widths = [max(3, *(len(row[index]) for row in cells)) for index in range(len(header))]
  cells.insert(1, ['-' * width for width in widths])
  return '\n'.join(
      '| ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths)) + ' |'
      for row in cells)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Dict[str, float]:
  """Returns the ratio of the medians, and the least and the greatest ratio of a pair."""
  pairs = [numerator / denominator for numerator, denominator in zip(numerators, denominators)]
  return {'of_medians': statistics.median(numerators) / statistics.median(denominators),
          'min': min(pairs), 'max': max(pairs)}


def verdict(reached: bool) -> str:
  """Returns a word for whether a target was reached."""
  return 'PASS' if reached else 'short of it'


def log(text: str) -> None:
  """Prints progress, on standard error."""
  print(text, file=sys.stderr, flush=True)


def exit_with(main: Callable[[], None]) -> None:
  """Runs a benchmark and ends the process: 0 when it was measured, 1 when a run in it failed."""
  # Without a handler, the end by SIGTERM would leave children and temporary folders behind.
  signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
  try:
    main()
  except ChildFailed as error:
    log('error: {}'.format(error))
    sys.exit(1)
  except KeyboardInterrupt:
    sys.exit(128 + signal.SIGINT)


def _kill(group: int) -> None:
  try:
    os.killpg(group, signal.SIGKILL)
  except ProcessLookupError:
    pass


def _environment() -> Dict[str, str]:
  environment = dict(os.environ)
  environment.pop('TF_CONFIG', None)  # One of a cluster would make a run wait for its peers.
  paths = [str(ROOT)] + [path for path in (environment.get('PYTHONPATH'),) if path]
  environment['PYTHONPATH'] = os.pathsep.join(paths)
  return environment


def data_dir(value: str) -> str:
  for name in DATA_FILES:
    if not os.path.isfile(os.path.join(value, name)):
      raise argparse.ArgumentTypeError(
          'a data file is missing: {}: get it with python -m estimator_train --mode=download '
          '--dataset=fashion_mnist --data_dir={}'.format(os.path.join(value, name), value))
  return os.path.abspath(value)


def _at_least(minimum: int) -> Callable[[str], int]:
  def parse(value: str) -> int:
    if not value.isdigit() or int(value) < minimum:
      raise argparse.ArgumentTypeError(
          'out of range: {}: give a whole number, at least {}'.format(value, minimum))
    return int(value)

  return parse


def _cpu() -> str:
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      for line in file:
        if line.startswith('model name'):
          return line.partition(':')[2].strip()
  except OSError:
    pass
  return platform.processor() or platform.machine()


def _instructions() -> str:
  """Returns the widest vector instructions that TensorFlow uses on this processor."""
  try:
    with open('/proc/cpuinfo', encoding='utf-8') as file:
      flags = set(file.read().split())
  except OSError:
    return 'unknown'
  return 'AVX-512' if 'avx512f' in flags else 'AVX2' if 'avx2' in flags else 'no AVX2'


def _tensorflow() -> str:
  """Returns the installed TensorFlow without importing it: the builds differ in speed."""
  found = []
  for name in _TENSORFLOWS:
    try:
      found.append('{} {}'.format(name, pkg_resources.get_distribution(name).version))
    except pkg_resources.DistributionNotFound:
      continue
  return ', '.join(found) or 'TensorFlow unknown'


def _commit() -> str:
  try:
    output = subprocess.check_output(
        ['git', '-C', str(ROOT), 'describe', '--always', '--abbrev=12', '--dirty'],
        stderr=subprocess.DEVNULL, universal_newlines=True, timeout=60)
  except (OSError, subprocess.SubprocessError):
    return 'unknown'
  return output.strip()
