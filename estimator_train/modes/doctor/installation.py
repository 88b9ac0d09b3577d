"""Checks Python, the packages that TensorFlow 1.15 needs, and TensorFlow itself.

Packages are not imported in this process. Their versions come from pkg_resources, because
importlib.metadata is not available before Python 3.8.
"""

import importlib.util
import os
import platform
import struct
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import pkg_resources

from estimator_train import system
from estimator_train.modes.doctor.results import CheckResult, error, ok, warning
from estimator_train.system.child_process import child_environment, run_python
from estimator_train.system.formatting import format_quantity, format_secs
from estimator_train.system.tensorflow_probe import ImportResult

# TensorFlow fails if one of these packages is too new. If NumPy is only slightly too new,
# TensorFlow works, but prints warnings.
_PINNED_PACKAGES = ('protobuf', 'h5py', 'numpy')
_TENSORFLOW_DISTRIBUTIONS = ('tensorflow', 'tensorflow-gpu', 'tensorflow-cpu', 'intel-tensorflow',
                             'intel-tensorflow-avx512', 'nvidia-tensorflow')
_INSTALL_REMEDY = ('./run_train.sh creates an environment; `pip install .` installs into your own '
                   'environment')

_SLOW_IMPORT_SECS = 30.
# (environment that run_train.sh creates next to the package, command that uses it) of each build.
# Which build is faster depends on the processor.
_BUILDS = {'stock': ('.venv', './run_train.sh'),
           'oneDNN': ('.venv-onednn', 'ESTIMATOR_TRAIN_TF=onednn ./run_train.sh')}
_RATE_TIMEOUT_SECS = 90.
_RATE_ARGUMENTS = ('-W', 'ignore', '-m', 'estimator_train', '--mode=train', '--model=fashion_cnn',
                   '--dataset=synthetic', '--image_size=28,28', '--batch_size=128',
                   '--train_steps=30', '--distribution_strategy=off', '--noreport_page')
# On a shared machine, two measurements of the same build differ by up to this factor.
_MIN_RECOMMENDED_SPEED_UP = 1.15


class Interpreter(NamedTuple):
  """A Python interpreter, its operating system and its machine; by default, this process."""
  implementation: str = platform.python_implementation()
  version: Tuple[int, ...] = sys.version_info[:3]
  bits: int = 8 * struct.calcsize('P')
  system: str = os.uname().sysname
  machine: str = os.uname().machine


class TensorFlowBuild(NamedTuple):
  """An installed build of TensorFlow."""
  name: str
  version: str

  @property
  def is_nvidia_build(self) -> bool:
    """Whether this is NVIDIA's build, which supports GPUs that CUDA 10.0 does not."""
    return self.name == 'nvidia-tensorflow' or '+nv' in self.version

  @property
  def is_intel_build(self) -> bool:
    """Whether this is Intel's build, with oneDNN."""
    return self.name.startswith('intel')


class BuildRate(NamedTuple):
  """The training rate of one build, `stock` or `oneDNN`.

  Attributes:
    examples_per_sec: None if the build could not be measured.
    failure: the reason why the build could not be measured, or ''.
  """
  build: str
  examples_per_sec: Optional[float]
  failure: str = ''

  def format(self) -> str:
    if not self.examples_per_sec:
      return 'not with the {} build ({})'.format(self.build, self.failure)
    return '{} with the {} build'.format(
        format_quantity(self.examples_per_sec, 'examples/sec'), self.build)


def check_python(python: Interpreter) -> CheckResult:
  found = '{} {}, {} bit, {} {}'.format(
      python.implementation, '.'.join(map(str, python.version)), python.bits, python.system,
      python.machine)
  if python.implementation != 'CPython' or not (3, 6) <= python.version[:2] <= (3, 8):
    return error('python', found, 'use CPython 3.7 or 3.6 (3.8 in NVIDIA\'s container); '
                 './run_train.sh searches for one')
  if python.bits != 64 or (python.system, python.machine) != ('Linux', 'x86_64'):
    return error('python', found, 'TensorFlow 1.15 has builds for 64-bit x86 Linux only: use '
                 'such a machine')
  return ok('python', found)


def find_installed_versions() -> Dict[str, str]:
  """Returns the versions of the installed packages, by their names in lower case."""
  # pkg_resources.working_set lists what was installed when pkg_resources was imported. A new
  # WorkingSet lists what is installed now.
  return {distribution.key: distribution.version for distribution in pkg_resources.WorkingSet()}


def find_installed_builds(installed: Dict[str, str]) -> List[TensorFlowBuild]:
  builds = [TensorFlowBuild(name, installed[name])
            for name in _TENSORFLOW_DISTRIBUTIONS if name in installed]
  # NVIDIA's build may be installed under two names for the same files. It counts as one build.
  if len({build.version for build in builds}) == 1 and builds[0].is_nvidia_build:
    return builds[-1:]
  return builds


def check_tensorflow(builds: Sequence[TensorFlowBuild]) -> CheckResult:
  """Checks that exactly one build of TensorFlow 1.15 is installed."""
  found = ' and '.join('{} {}'.format(*build) for build in builds)
  if not builds:
    return error('tensorflow', 'not installed', _INSTALL_REMEDY)
  if len(builds) > 1:
    return error('tensorflow', found + ' are installed together, and overwrite each other\'s files',
                 '`pip uninstall {}`, then install the one that you want'.format(
                     ' '.join(build.name for build in builds)))
  (build,) = builds
  if not build.version.startswith('1.15.'):
    return error('tensorflow', found, 'this program requires 1.15: ' + _INSTALL_REMEDY)
  kind = ('NVIDIA\'s build' if build.is_nvidia_build else
          'with oneDNN for CPUs' if build.is_intel_build else 'the stock build')
  return ok('tensorflow', '{}, {}'.format(found, kind))


def check_packages(installed: Dict[str, str], is_nvidia_build: bool, strategy: str,
                   python_version: Optional[str] = None) -> Iterator[CheckResult]:
  """Checks the packages whose newer releases do not work with TensorFlow 1.15, and Horovod.

  Args:
    installed: the result of `find_installed_versions`.
    python_version: the Python version whose requirements apply, such as `3.7`; None: the version of
      this process.
  """
  environment = python_version and {'python_version': python_version}
  lines = Path(system.PACKAGE_DIR, 'install_requires.txt').read_text(encoding='utf-8').splitlines()
  for requirement in pkg_resources.parse_requirements(lines):
    name, marker = requirement.key, requirement.marker
    if name not in _PINNED_PACKAGES or (marker and not marker.evaluate(environment)):
      continue
    version = installed.get(name, 'not installed')
    if name in installed and version in requirement:
      yield ok(name, version)
      continue
    # With NVIDIA's build, another version is only a warning, because NVIDIA's container has other
    # versions that work with its build.
    is_error = name != 'numpy' and not is_nvidia_build
    yield (error if is_error else warning)(
        name, '{}, but TensorFlow 1.15 was tested with {}'.format(version, requirement.specifier),
        '`pip install "{}{}"`'.format(name, requirement.specifier))
  if strategy == 'horovod' and importlib.util.find_spec('horovod') is None:
    yield error('horovod', 'not installed, which --distribution_strategy=horovod requires',
                'run scripts/install_horovod')


def check_import(imported: ImportResult) -> CheckResult:
  """Checks that TensorFlow can be imported quickly, and that it can list the GPUs."""
  if imported.version is None:
    return error('import', imported.failure,
                 'check whether the disk of the environment is slow, or a GPU\'s driver hangs '
                 '(dmesg)' if imported.child.code is None else 'fix what the other lines name, or '
                 'run `{} -c "import tensorflow"` to see the full error'.format(sys.executable))
  found = 'TensorFlow {} in {}'.format(imported.version, format_secs(imported.secs))
  if imported.num_gpus is None:
    return error('import', imported.failure, 'see the system log (dmesg) for messages of the '
                 'GPU\'s driver; to train on the CPU, set CUDA_VISIBLE_DEVICES to an empty value')
  if imported.secs > _SLOW_IMPORT_SECS:
    return warning('import', found,
                   'every run takes this long to start: put the environment on a local disk')
  return ok('import', found)


def measure_builds(build: TensorFlowBuild) -> List[BuildRate]:
  """Trains a small network on the CPU with this build and, if installed, with the other one."""
  own_build = 'oneDNN' if build.is_intel_build else 'stock'
  rates = [_measure_build(own_build, sys.executable)]
  for other, (environment, _) in _BUILDS.items():
    python = os.path.join(system.PACKAGE_PARENT_DIR, environment, 'bin', 'python')
    if other != own_build and os.access(python, os.X_OK):
      rates.append(_measure_build(other, python))
  return rates


def _measure_build(build: str, python: str) -> BuildRate:
  environment = dict(child_environment(), CUDA_VISIBLE_DEVICES='')
  with tempfile.TemporaryDirectory(prefix='doctor-') as folder:
    try:
      child = run_python([*_RATE_ARGUMENTS, '--model_dir=' + folder], _RATE_TIMEOUT_SECS,
                         environment, python)
    except OSError as failure:
      return BuildRate(build, None, str(failure))
  if child.error is not None:
    return BuildRate(build, None, child.error)
  return BuildRate(build, child.json_values[-1]['examples_per_sec'])


def check_build_rates(rates: Sequence[BuildRate], in_image: bool = False) -> CheckResult:
  """Compares the results of `measure_builds`, and recommends the faster build.

  Args:
    in_image: whether the program runs in the Docker image, where users do not install packages.
  """
  own, other = rates[0], rates[-1]
  found = 'fashion_cnn trains ' + ', '.join(rate.format() for rate in rates)
  if own.examples_per_sec is None:
    return warning('builds', found, 'run `{} {} --model_dir=FOLDER` to see the full error'.format(
        sys.executable, ' '.join(_RATE_ARGUMENTS)))
  if len(rates) == 1:
    other_name = next(name for name in _BUILDS if name != own.build)
    return ok('builds', found, '' if in_image else '`{} --mode=doctor` installs the {} build and '
              'compares both'.format(_BUILDS[other_name][1], other_name))
  if (other.examples_per_sec or 0.) < _MIN_RECOMMENDED_SPEED_UP * own.examples_per_sec:
    return ok('builds', found)
  return ok('builds', found, '`{}` uses the {} build, which is faster; compare on your own '
            'model'.format(_BUILDS[other.build][1], other.build))
