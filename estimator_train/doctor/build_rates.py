"""Measures how fast the installed builds of TensorFlow train on the CPU, and recommends one.

The stock build and the build with oneDNN differ by a factor that depends on the processor. Each
build trains a small network for a few seconds, in a child process.
"""

import json
import os
import statistics
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from estimator_train.distribution import threads
from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, ok, warning
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.files import paths
from estimator_train.process import cpu_tuning
from estimator_train.settings import groups

TIMEOUT_SECS = 90.
_STOCK, _ONEDNN = 'stock', 'oneDNN'
# run_train.sh creates these environments, each with one build, next to the package.
_ENVIRONMENTS = {_STOCK: '.venv', _ONEDNN: '.venv-onednn'}
_COMMANDS = {_STOCK: './run_train.sh', _ONEDNN: 'ESTIMATOR_TRAIN_TF=onednn ./run_train.sh'}
_MODEL, _IMAGE_SHAPE, _NUM_CLASSES, _BATCH_SIZE = 'fashion_cnn', (28, 28, 1), 10, 128
_WARMUP_STEPS, _MIN_STEPS, _TIMED_SECS = 5, 5, 2.
# On a shared machine, two measurements of the same build differ by up to this factor.
_MIN_RATIO = 1.15

_CHILD_CODE = 'from estimator_train.doctor import build_rates; build_rates.print_rate()'
_INSTALL_HINT = ('`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh --mode=doctor` installs the build with '
                 'oneDNN, which is faster on most CPUs, and compares both; in your own '
                 'environment, `pip uninstall {}` and then `pip install intel-tensorflow==1.15.2`')
_INSTALL_STOCK_HINT = '`./run_train.sh --mode=doctor` installs the stock build and compares both'
_IMAGE_HINT = ('`docker build --build-arg BASE_IMAGE=python:3.7-slim --build-arg '
               'TENSORFLOW=onednn` uses the build with oneDNN, which is faster on most CPUs: '
               'compare with --mode=doctor in that image')


class BuildRate(NamedTuple):
  """The training rate of one build.

  Attributes:
    build: `stock` or `oneDNN`.
    examples_per_sec: the rate; None if the build could not be measured.
    failure: why it could not be measured, or ''.
  """
  build: str
  examples_per_sec: Optional[float]
  failure: str = ''


def measure_builds(build: TensorFlowBuild, timeout_secs: float = TIMEOUT_SECS) -> List[BuildRate]:
  """Measures the build of this interpreter, then the other one if run_train.sh has installed it.

  Args:
    build: the build of this interpreter.
    timeout_secs: seconds after which a child process is killed.
  """
  name, other = (_ONEDNN, _STOCK) if build.is_intel_build else (_STOCK, _ONEDNN)
  pythons = {name: sys.executable}
  other_python = os.path.join(paths.PACKAGE_PARENT_DIR, _ENVIRONMENTS[other], 'bin', 'python')
  if os.access(other_python, os.X_OK):
    pythons[other] = other_python
  return [_measure_in_child(name, python, timeout_secs) for name, python in pythons.items()]


def _measure_in_child(build: str, python: str, timeout_secs: float) -> BuildRate:
  folders = [paths.PACKAGE_PARENT_DIR] + [
      folder for folder in (os.environ.get('PYTHONPATH'),) if folder]
  try:
    result = commands.run_command([python, '-W', 'ignore', '-c', _CHILD_CODE], timeout_secs, {
        'PYTHONPATH': os.pathsep.join(folders), 'CUDA_VISIBLE_DEVICES': '',
        'TF_CPP_MIN_LOG_LEVEL': '3'})
  except OSError as error:
    return BuildRate(build, None, str(error))
  lines = [line for line in result.stdout.splitlines() if line.startswith('{')]
  if result.exit_code != 0:
    return BuildRate(build, None, result.failure_reason())
  if not lines:
    return BuildRate(build, None, 'no result')
  return BuildRate(build, json.loads(lines[-1])['examples_per_sec'])


def print_rate() -> None:
  """Trains in this process, and prints the training rate as JSON; the child process runs this."""
  cpu_tuning.tune_cpu()
  print(json.dumps({'examples_per_sec': _BATCH_SIZE / statistics.median(_time_steps())}))


def _time_steps() -> List[float]:
  """Trains on one synthetic batch, and returns the durations of the steps in seconds."""
  import tensorflow.compat.v1 as tf

  from estimator_train.models import networks

  config = tf.ConfigProto()
  threads.set_thread_counts(config, groups.Devices())
  with tf.Session(config=config) as session:
    tf.keras.backend.set_session(session)
    images = tf.Variable(
        tf.random.uniform((_BATCH_SIZE,) + _IMAGE_SHAPE, seed=1), trainable=False)
    classes = tf.Variable(
        tf.random.uniform((_BATCH_SIZE,), 0, _NUM_CLASSES, tf.int32, seed=1), trainable=False)
    probabilities = networks.fashion_cnn(_IMAGE_SHAPE, _NUM_CLASSES)(images)
    loss = tf.keras.losses.sparse_categorical_crossentropy(classes, probabilities)
    step = tf.train.AdamOptimizer().minimize(tf.reduce_mean(loss))
    session.run(tf.global_variables_initializer())
    train = session.make_callable(step)
    for _ in range(_WARMUP_STEPS):
      train()
    edges = [time.perf_counter()]
    while len(edges) <= _MIN_STEPS or edges[-1] - edges[0] < _TIMED_SECS:
      train()
      edges.append(time.perf_counter())
  return [end - start for start, end in zip(edges, edges[1:])]


def check_build_rates(rates: Sequence[BuildRate], build: TensorFlowBuild,
                      in_image: bool = False) -> CheckResult:
  """Compares the measured training rates, and recommends the faster build.

  Args:
    rates: what `measure_builds` returned: the build of this interpreter comes first.
    build: the build of this interpreter.
    in_image: whether the program runs in the Docker image, where users do not install packages.
  """
  found = '{} trains {}'.format(_MODEL, ', '.join(map(_describe, rates)))
  own = rates[0]
  measured: Dict[str, Any] = {
      rate.build: rate.examples_per_sec for rate in rates if rate.examples_per_sec}
  if not own.examples_per_sec:
    return warning('builds', found, 'run `{} -c "{}"` to see the full error'.format(
        sys.executable, _CHILD_CODE.replace('"', '\\"')))
  if len(rates) == 1:
    return ok('builds', found, _hint_to_install(own.build, build, in_image))
  if len(measured) == 1:
    return ok('builds', found)
  fastest = max(measured, key=measured.__getitem__)
  ratio = measured[fastest] / min(measured.values())
  if ratio < _MIN_RATIO:
    return ok('builds', found + ': a difference below {:.0%} can be chance'.format(_MIN_RATIO - 1))
  return ok('builds', '{}: the {} build is {:.1f} times as fast'.format(found, fastest, ratio),
            '' if fastest == own.build else
            '`{}` uses it; compare on your own model'.format(_COMMANDS[fastest]))


def _describe(rate: BuildRate) -> str:
  if not rate.examples_per_sec:
    return 'not with the {} build ({})'.format(rate.build, rate.failure)
  return '{:,.0f} examples/sec with the {} build'.format(rate.examples_per_sec, rate.build)


def _hint_to_install(name: str, build: TensorFlowBuild, in_image: bool) -> str:
  if in_image:
    return '' if name == _ONEDNN else _IMAGE_HINT
  return _INSTALL_STOCK_HINT if name == _ONEDNN else _INSTALL_HINT.format(build.name)
