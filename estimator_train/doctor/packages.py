"""Checks Python and the packages that TensorFlow 1.15 needs, without importing these packages.

The module uses pkg_resources, because importlib.metadata is not available before Python 3.8.
"""

import platform
import struct
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import pkg_resources

from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.files import paths

_PINNED_PACKAGES = ('protobuf', 'h5py', 'numpy')
# If one of these two packages is too new, TensorFlow breaks. If NumPy is only slightly too new,
# TensorFlow prints warnings, but works.
_BREAKING_PACKAGES = ('protobuf', 'h5py')
_TENSORFLOW_DISTRIBUTIONS = ('tensorflow', 'tensorflow-gpu', 'tensorflow-cpu', 'intel-tensorflow',
                             'intel-tensorflow-avx512', 'nvidia-tensorflow')
_INSTALL_REMEDY = ('./run_train.sh creates an environment; `pip install .` installs into your own '
                   'environment')


class Interpreter(NamedTuple):
  """The Python interpreter of this process, and the operating system and machine that run it."""
  implementation: str
  version: Tuple[int, ...]
  bits: int
  system: str
  machine: str


class TensorFlowBuild(NamedTuple):
  """An installed build of TensorFlow.

  Attributes:
    name: name of the package, such as `tensorflow-gpu`.
    version: version of the package.
  """
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


def inspect_python() -> Interpreter:
  """Returns the properties of this interpreter."""
  return Interpreter(platform.python_implementation(), tuple(sys.version_info[:3]),
                     8 * struct.calcsize('P'), platform.system(), platform.machine())


def check_python(python: Interpreter) -> CheckResult:
  """Checks that TensorFlow 1.15 supports this Python interpreter."""
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


def installed_versions() -> Dict[str, str]:
  """Returns the versions of the installed packages, by the name of the package in lower case."""
  # pkg_resources.working_set lists what was installed when pkg_resources was imported. A new
  # WorkingSet lists what is installed now.
  return {distribution.key: distribution.version for distribution in pkg_resources.WorkingSet()}


def installed_build(installed: Dict[str, str]) -> Optional[TensorFlowBuild]:
  """Returns the installed build of TensorFlow; None unless exactly one is installed."""
  builds = _installed_builds(installed)
  return builds[0] if len(builds) == 1 else None


def _installed_builds(installed: Dict[str, str]) -> List[TensorFlowBuild]:
  builds = [TensorFlowBuild(name, installed[name])
            for name in _TENSORFLOW_DISTRIBUTIONS if name in installed]
  # NVIDIA's build may be installed under two names for the same files. Count it as one build.
  if len({build.version for build in builds}) == 1 and builds[0].is_nvidia_build:
    return builds[-1:]
  return builds


def check_tensorflow(installed: Dict[str, str]) -> CheckResult:
  """Checks that exactly one build of TensorFlow 1.15 is installed.

  Args:
    installed: versions of the installed packages by name.
  """
  builds = _installed_builds(installed)
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
  if build.is_nvidia_build:
    return ok('tensorflow', found + ', NVIDIA\'s build')
  if build.is_intel_build:
    return ok('tensorflow', found + ', with oneDNN for CPUs')
  return ok('tensorflow', found + ', the stock build')


def read_requirements() -> List[str]:
  """Returns the requirements of estimator_train, such as `h5py<3`, which setup.py also reads."""
  lines = (line.partition('#')[0].strip()
           for line in Path(paths.REQUIREMENTS_FILE).read_text(encoding='utf-8').splitlines())
  return [line for line in lines if line]


def check_pins(installed: Dict[str, str], requirements: Sequence[str],
               python_version: Optional[str] = None) -> List[CheckResult]:
  """Checks the versions of packages whose newer releases do not work with TensorFlow 1.15.

  Args:
    installed: versions of the installed packages by name.
    requirements: the requirements that read_requirements returned.
    python_version: the Python version for which the markers of the requirements are evaluated, such
      as `3.7`; None: the version of this process.
  """
  marker_environment = python_version and {'python_version': python_version}
  build = installed_build(installed)
  results = []
  for requirement in map(pkg_resources.Requirement.parse, requirements):
    name, marker = requirement.key, requirement.marker
    if name not in _PINNED_PACKAGES or (marker and not marker.evaluate(marker_environment)):
      continue
    version = installed.get(name, 'not installed')
    if name in installed and version in requirement:
      results.append(ok(name, version))
      continue
    # With NVIDIA's build, a version outside the pins is only a warning, because NVIDIA's container
    # ships other versions that work with its build.
    breaks = name in _BREAKING_PACKAGES and not (build and build.is_nvidia_build)
    make_result = error if breaks else warning
    results.append(make_result(
        name, '{}, but TensorFlow 1.15 was tested with {}'.format(version, requirement.specifier),
        '`pip install "{}{}"`'.format(name, requirement.specifier)))
  return results


def check_pillow(installed: Dict[str, str]) -> CheckResult:
  """Checks that Pillow is installed, which --mode=audit requires."""
  if 'pillow' in installed:
    return ok('pillow', installed['pillow'])
  return warning('pillow', 'not installed; --mode=audit reads the headers of images with it',
                 '`pip install Pillow`')
