"""The interpreters that are compared: what they have; makes those of PyTorch and Keras 3."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Optional

import common

TORCH_VENV = common.ROOT / '.venv-torch'
# pip takes a CPU-only wheel, 2.13.0+cpu, where one of its sources has it; the package index has
# only those with CUDA, 527 MB and as much again in libraries.
TORCH = ['torch==2.13.0', 'numpy', 'pillow']
_PYTHONS_OF_TORCH = ('3.11', '3.12', '3.10', '3.13')
_PACKAGES = ('tensorflow', 'intel-tensorflow', 'keras', 'torch', 'numpy', 'pillow')


def python_of(venv: Path) -> str:
  return str(venv / 'bin' / 'python')


def ensure_torch(deadline_secs: float) -> str:
  """Makes the environment of PyTorch unless it is there, and returns its interpreter.

  Raises:
    common.ChildFailed: there is no Python for it, or it cannot be installed.
  """
  marker = TORCH_VENV / 'installed.json'
  if marker.exists() and json.loads(marker.read_text(encoding='utf-8')) == TORCH:
    return python_of(TORCH_VENV)
  python = _newer_python()
  if python is None:
    raise common.ChildFailed('PyTorch needs CPython {}: there is none'.format(
        ', '.join(sorted(_PYTHONS_OF_TORCH))), [])
  common.log('Making {} with {}'.format(TORCH_VENV, python))
  common.run_python(['-I', '-m', 'venv', '--clear', str(TORCH_VENV)], deadline_secs, python)
  common.run_python(['-I', '-m', 'pip', 'install', '--disable-pip-version-check'] + TORCH,
                    deadline_secs, python_of(TORCH_VENV))
  marker.write_text(json.dumps(TORCH), encoding='utf-8')
  return python_of(TORCH_VENV)


def ensure_clients() -> str:
  """Makes the environment of Keras 3 unless it is there, and returns its interpreter.

  Raises:
    common.ChildFailed: it cannot be made.
  """
  done = subprocess.run([str(common.ROOT / 'scripts' / 'install_clients')], stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, universal_newlines=True)
  lines = done.stdout.splitlines()
  if done.returncode:
    raise common.ChildFailed('the environment of Keras 3 cannot be made', lines)
  return lines[-1]


def _newer_python() -> Optional[str]:
  pyenv = Path(os.environ.get('PYENV_ROOT') or Path.home() / '.pyenv') / 'versions'
  for version in _PYTHONS_OF_TORCH:
    there: List[str] = [path for path in (shutil.which('python' + version),) if path]
    there += sorted(map(str, pyenv.glob(version + '.*/bin/python')))
    for path in there:
      # A version manager's command may be there and lead nowhere.
      if subprocess.call([path, '-I', '-c', 'import venv, ensurepip'], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
        return path
  return None


def versions(python: str) -> Dict[str, str]:
  """Returns the versions of an interpreter and of what it has of the packages that matter."""
  listed = subprocess.check_output(
      [python, '-I', '-m', 'pip', '--disable-pip-version-check', 'list', '--format=json'],
      stderr=subprocess.DEVNULL, universal_newlines=True)
  versions = {each['name'].lower().replace('_', '-'): each['version']
              for each in json.loads(listed)}
  version = subprocess.check_output([python, '-I', '-c', 'import platform as p; '
                                     'print(p.python_version())'], universal_newlines=True)
  return dict({'python': version.strip()},
              **{name: versions[name] for name in _PACKAGES if name in versions})
