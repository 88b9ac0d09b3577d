"""Python and the packages that TensorFlow 1.15 stands on, by what is installed, without importing.

pkg_resources knows this on every Python that is supported; importlib.metadata begins with 3.8.
"""

import platform
import struct
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import pkg_resources

from estimator_train.doctor.check_results import Finding, error, ok, warning
from estimator_train.files import paths

_PINNED = ('protobuf', 'h5py', 'numpy')
_BREAKS = ('protobuf', 'h5py')  # Newer ones do; a newer NumPy at first only fills the log.
_DISTRIBUTIONS = ('tensorflow', 'tensorflow-gpu', 'tensorflow-cpu', 'intel-tensorflow',
                  'intel-tensorflow-avx512', 'nvidia-tensorflow')
_INSTALL = './run_train.sh sets an environment up, `pip install .` installs into yours'
_FASTER = ('`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh` uses the same built with oneDNN, which is '
           'faster on CPUs; in an environment of yours, `pip uninstall {}` and then '
           '`pip install intel-tensorflow==1.15.2`')
_FASTER_IMAGE = ('`docker build --build-arg BASE_IMAGE=python:3.7-slim --build-arg '
                 'TENSORFLOW=onednn` gives the same built with oneDNN, which is faster on CPUs')


class Interpreter(NamedTuple):
  """The Python that runs this."""
  implementation: str
  version: Tuple[int, ...]
  bits: int
  system: str
  machine: str


class Build(NamedTuple):
  """The TensorFlow that is installed.

  Attributes:
    name: of its distribution.
    version: of it.
  """
  name: str
  version: str

  @property
  def is_nvidias(self) -> bool:
    """Whether it is NVIDIA's, which knows GPUs that CUDA 10.0 does not."""
    return self.name == 'nvidia-tensorflow' or '+nv' in self.version

  @property
  def is_intels(self) -> bool:
    """Whether it is Intel's, with oneDNN."""
    return self.name.startswith('intel')


def look_at_python() -> Interpreter:
  """Returns the facts about this interpreter."""
  return Interpreter(platform.python_implementation(), tuple(sys.version_info[:3]),
                     8 * struct.calcsize('P'), platform.system(), platform.machine())


def check_python(python: Interpreter) -> Finding:
  """Says whether TensorFlow 1.15 exists for this Python."""
  found = '{} {}, {} bit, {} {}'.format(
      python.implementation, '.'.join(map(str, python.version)), python.bits, python.system,
      python.machine)
  if python.implementation != 'CPython' or not (3, 6) <= python.version[:2] <= (3, 8):
    return error('python', found, 'use CPython 3.7 or 3.6 (3.8 in NVIDIA\'s container); '
                 './run_train.sh finds one')
  if python.bits != 64 or (python.system, python.machine) != ('Linux', 'x86_64'):
    return error('python', found, 'TensorFlow 1.15 has builds for 64-bit x86 Linux: use such a '
                 'machine')
  return ok('python', found)


def look_at_installed() -> Dict[str, str]:
  """Returns the versions of what is installed, by name in lower case."""
  # A set made now: the process's own is as old as the first import.
  return {found.key: found.version for found in pkg_resources.WorkingSet()}


def build(installed: Dict[str, str]) -> Optional[Build]:
  """Returns the build of TensorFlow that is installed; None unless it is exactly one."""
  found = _builds(installed)
  return found[0] if len(found) == 1 else None


def _builds(installed: Dict[str, str]) -> List[Build]:
  found = [Build(name, installed[name]) for name in _DISTRIBUTIONS if name in installed]
  # NVIDIA's may go by two names for the same files.
  if len({each.version for each in found}) == 1 and found[0].is_nvidias:
    return found[-1:]
  return found


def check_tensorflow(installed: Dict[str, str], has_gpu: bool, in_image: bool = False) -> Finding:
  """Says whether one build of TensorFlow 1.15 is installed.

  Args:
    installed: versions by name.
    has_gpu: whether there is a GPU to train on.
    in_image: whether this is the Dockerfile's image, where nobody installs anything.
  """
  found = _builds(installed)
  text = ' and '.join('{} {}'.format(*each) for each in found)
  if not found:
    return error('tensorflow', 'none is installed', _INSTALL)
  if len(found) > 1:
    return error('tensorflow', text + ' are installed over each other, as both own the same files',
                 '`pip uninstall {}`, then install the one you want'.format(
                     ' '.join(each.name for each in found)))
  (only,) = found
  if not only.version.startswith('1.15.'):
    return error('tensorflow', text, 'this program is for 1.15: ' + _INSTALL)
  if only.is_nvidias:
    return ok('tensorflow', text + ', NVIDIA\'s build')
  if only.is_intels:
    return ok('tensorflow', text + ', with oneDNN for CPUs')
  faster = _FASTER_IMAGE if in_image else _FASTER.format(only.name)
  return ok('tensorflow', text + ', the stock build', '' if has_gpu else faster)


def look_at_requirements() -> List[str]:
  """Returns the package's requirements, which setup.py reads from the same file."""
  lines = (line.partition('#')[0].strip()
           for line in Path(paths.REQUIREMENTS).read_text(encoding='utf-8').splitlines())
  return [line for line in lines if line]


def check_pins(installed: Dict[str, str], requirements: Sequence[str],
               python_version: Optional[str] = None) -> List[Finding]:
  """Says whether packages whose newer releases do not suit TensorFlow 1.15 are within bounds."""
  environment = python_version and {'python_version': python_version}
  only = build(installed)
  findings = []
  for requirement in map(pkg_resources.Requirement.parse, requirements):
    name, marker = requirement.key, requirement.marker
    if name not in _PINNED or (marker and not marker.evaluate(environment)):
      continue
    version = installed.get(name, 'not installed')
    if name in installed and version in requirement:
      findings.append(ok(name, version))
      continue
    # NVIDIA's container brings what it was built with.
    level = error if name in _BREAKS and not (only and only.is_nvidias) else warning
    findings.append(level(
        name, '{}, and TensorFlow 1.15 was tested with {}'.format(version, requirement.specifier),
        '`pip install "{}{}"`'.format(name, requirement.specifier)))
  return findings


def check_pillow(installed: Dict[str, str]) -> Finding:
  """Says whether --mode=audit can run."""
  if 'pillow' in installed:
    return ok('pillow', installed['pillow'])
  return warning('pillow', 'not installed; --mode=audit reads the headers of images with it',
                 '`pip install Pillow`')
