"""A fresh machine: run_train.sh and tests/run.sh find a Python and make their environment.

The scripts run on a copy of the checkout whose lock files are empty and whose program prints its
arguments, with a PATH on which there is no Python unless a test puts one there.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_process

from estimator_train.settings.launcher_flags import LAUNCHER_FLAGS

VERSION = '{}.{}'.format(*sys.version_info)
OTHER_VERSION = {'3.6': '3.7', '3.7': '3.6'}[VERSION]
LOCK = 'requirements/py{}{}.txt'.format(*sys.version_info)

# What stand-ins for Python print for find_python.sh's questions, and how they fail.
PRINTS_FIELDS = '#!/usr/bin/env bash\necho a warning >&2\necho {} {} {} {} "$0"\n'
CPYTHON = PRINTS_FIELDS.format('CPython', '{}', 64, 'x86_64')
BROKEN_SHIM = '#!/usr/bin/env bash\necho "pyenv: $0: command not found" >&2\nexit 127\n'


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


class Machine:
  """A checkout, a home folder and a PATH, all empty but for what the scripts need."""

  def __init__(self, folder):
    self.folder = folder
    self.root, self.home, self.bin, self.elsewhere = (
      folder / name for name in ('a chéck out', 'home', 'bin', 'else where'))
    for path in (self.root, self.home, self.bin, self.elsewhere):
      path.mkdir()
    self.python = self.bin / 'python{}'.format(VERSION)
    for tool in ('bash', 'cat', 'dirname', 'env', 'mkdir', 'mktemp', 'readlink', 'rm', 'sort'):
      (self.bin / tool).symlink_to(shutil.which(tool))
    for source in ('setup.py', 'estimator_train/install_requires.txt', 'run_train.sh',
                   'tests/run.sh', 'requirements/environment.sh', 'requirements/find_python.sh',
                   'requirements/make_venv.py'):
      (self.root / source).parent.mkdir(exist_ok=True)
      shutil.copy(str(ROOT / source), str(self.root / source))
    for lock in ('pip', 'py36', 'py37', 'py36-onednn', 'py37-onednn'):
      self.write('requirements/{}.txt'.format(lock), '# nothing for {}\n'.format(lock))
    prints_call = 'import json, os, sys\nprint(json.dumps([os.getcwd()] + sys.argv[1:]))\n'
    self.write('estimator_train/__init__.py', '')
    self.write('estimator_train/version.py', "__version__ = '1.2'\n")
    self.write('estimator_train/__main__.py', prints_call)
    self.write('pytest.py', prints_call)

  def write(self, path, text):
    path = self.root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

  def run(self, script, *arguments, **environment):
    variables = dict(PATH=str(self.bin), HOME=str(self.home), PIP_CONFIG_FILE=os.devnull,
                     PIP_NO_INDEX='1', **environment)
    return run_process('env', '-i', *map('='.join, variables.items()), self.root / script,
                       *arguments, cwd=self.elsewhere, stdin=subprocess.DEVNULL)


PYENV = 'home/.pyenv/versions/{}/bin/python'
# The Pythons of a machine, by their paths (None: the running one), and which of them is found.
MACHINES = {
  'behind broken shims': (
    {'bin/python3.7': BROKEN_SHIM, 'bin/python3': BROKEN_SHIM, 'bin/python': None}, 'bin/python'),
  'under PYENV_ROOT': ({'other/versions/3.7.2/bin/python': CPYTHON.format('3.7')},
                       'other/versions/3.7.2/bin/python'),
  'the newest': (
    {'bin/python3.6': CPYTHON.format('3.6'), **{PYENV.format('3.7.' + patch): CPYTHON.format('3.7')
                                                for patch in ('9', '16')}}, PYENV.format('3.7.16')),
}


@pytest.mark.parametrize('pythons, expected', MACHINES.values(), ids=list(MACHINES))
def test_a_suitable_python_is_found(machine, pythons, expected):
  for path, text in pythons.items():
    if text is None:
      (machine.folder / path).symlink_to(sys.executable)
    else:
      machine.write(machine.folder / path, text)
  expected = machine.folder / expected
  variables = {'PYENV_ROOT': str(machine.folder / 'other')} if 'other' in str(expected) else {}
  result = machine.run('requirements/find_python.sh', **variables)
  assert result.returncode == 0, result.stderr
  assert result.stdout == '{}\n'.format(os.path.realpath(str(expected)))
  if expected.is_symlink():
    assert machine.run('requirements/find_python.sh', OTHER_VERSION).returncode == 2


# uv, which records its arguments, and knows a Python once it has installed it.
UV = '''#!/usr/bin/env bash
echo "$*" >>"$HOME/uv-calls"
case "$*" in
"python install 3.7") echo Downloading >&2 ;;
"python find 3.7") echo "$HOME/uv-python" ;;
esac
'''
# A Python 3.11 whose environments hold the uv in $HOME.
NEWER_PYTHON = '''#!/usr/bin/env bash
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cat "$0" >"$3/bin/python" && cat "$HOME/uv" >"$3/bin/uv" &&
  chmod +x "$3/bin/"* ;;
*"pip install"*) ;;
*) echo CPython 3.11 64 x86_64 "$0" ;;
esac
'''


def test_uv_installs_a_python(machine):
  machine.write(machine.home / 'uv-python', CPYTHON.format('3.7'))
  # The one on PATH is too new to know CPython 3.7.
  machine.write(machine.bin / 'uv', '#!/usr/bin/env bash\necho "no download found"\nexit 2\n')
  machine.write(machine.home / 'uv', UV)
  machine.write(machine.bin / 'python3', NEWER_PYTHON)
  (machine.bin / 'chmod').symlink_to(shutil.which('chmod'))
  result = machine.run('requirements/find_python.sh', TMPDIR=str(machine.elsewhere))
  assert (result.returncode, result.stdout) == (0, str(machine.home / 'uv-python') + '\n')
  calls = (machine.home / 'uv-calls').read_text().splitlines()
  assert calls == ['python install 3.7', 'python find 3.7']
  assert not list(machine.elsewhere.iterdir()), 'the temporary folder is left behind'


@pytest.mark.parametrize('script', ['run_train.sh', 'tests/run.sh'])
def test_errors_are_one_message_with_a_remedy(machine, script):
  machine.write(machine.bin / 'python3.7', BROKEN_SHIM)
  for fields in (('PyPy', '3.7', 64, 'x86_64'), ('CPython', '3.7', 32, 'x86_64'),
                 ('CPython', '3.7', 64, 'aarch64'), ('CPython', '2.7', 64, 'x86_64')):
    machine.write(machine.bin / 'python', PRINTS_FIELDS.format(*fields))
    result = machine.run(script)
    assert '{}/python: {} {}, {} bit, {}\n'.format(machine.bin, *fields) in result.stderr
  assert (result.returncode, result.stdout) == (2, '')
  assert result.stderr.startswith('error: ') and result.stderr.count('error: ') == 1
  for text in ('python3.7: does not work: pyenv: ', 'uv: not on PATH', 'docker build '):
    assert text in result.stderr
  result = machine.run(script, ESTIMATOR_TRAIN_TF='mkl')
  assert (result.returncode, result.stdout, result.stderr) == (
    2, '', 'error: ESTIMATOR_TRAIN_TF must be stock or onednn: got mkl: use one of them\n')
  if script == 'tests/run.sh':
    result = machine.run(script, '--python=3.9')
    assert (result.returncode, result.stderr) == (
      2, 'error: --python must be 3.6 or 3.7: got 3.9: give one of them\n')


# Making the environment: each of these makes a real one, which takes a few seconds.


def test_the_first_starts_make_one_environment_that_later_ones_use(machine):
  machine.python.symlink_to(sys.executable)
  # What an interrupted install left is removed.
  machine.write('.venv/setup.log', '')
  machine.write('.venv/leftover', '')
  (machine.elsewhere / 'link').symlink_to(machine.root / 'run_train.sh')
  with concurrent.futures.ThreadPoolExecutor() as pool:
    results = list(pool.map(machine.run, ['../else where/link'] * 2, ['--x=1'] * 2, ['a b'] * 2))
  err = ''.join(result.stderr for result in results)
  assert [result.returncode for result in results] == [0, 0], err
  assert err.count('Another start is setting up') == err.count('Installing the project') == 1
  # Standard output is the program's alone; the working folder is the caller's.
  for result in results:
    assert json.loads(result.stdout) == [str(machine.elsewhere), '--x=1', 'a b']
  assert not (machine.root / '.venv/leftover').exists()

  machine.python.unlink()  # Nothing could be made from here on.
  result = machine.run('run_train.sh')
  flagfile = machine.root / 'estimator_train/configs/quickstart.flags'
  assert result.stderr == ''
  assert json.loads(result.stdout) == [str(machine.elsewhere), '--flagfile={}'.format(flagfile)]


def test_a_failing_install_leaves_no_marker_and_keeps_what_others_made(machine):
  machine.python.symlink_to(sys.executable)
  venv = machine.root / '.venv-{}'.format(VERSION)
  machine.write(venv / 'mine', '')
  machine.write(LOCK, 'no-such-package==1.0 --hash=sha256:{}\n'.format('0' * 64))
  result = machine.run('tests/run.sh', '--python=' + VERSION)
  assert (result.returncode, result.stdout) == (1, '')
  assert 'No matching distribution found for no-such-package==1.0' in result.stderr
  last = result.stderr.splitlines()[-1]
  assert last.startswith('error: {} was not made: '.format(venv))
  assert str(venv / 'setup.log') in last and not (venv / 'installed.txt').exists()
  kept, = machine.root.glob(venv.name + '-kept-*')
  assert (kept / 'mine').exists()


# Starting in an environment. A stand-in for its Python shows that it is used; for the scripts there
# is no other Python, so that wanting to make the environment again is exit code 2.


def finished_environment(machine, venv='.venv', lock=LOCK,
                         python='#!/usr/bin/env bash\necho "$*"\n'):
  machine.write(venv + '/bin/python', python)
  machine.write(venv + '/installed.txt',
                '{}{}\n'.format((machine.root / lock).read_text(), machine.root))


def last_line(result):
  assert result.returncode == 0, result.stderr
  return result.stdout.splitlines()[-1]


def test_outdated_environments_are_made_again(machine):
  for outdate in (lambda: machine.write(LOCK, '# something else\n'),
                  (machine.root / '.venv/installed.txt').unlink):
    finished_environment(machine)
    assert last_line(machine.run('run_train.sh', '--help')) == '-m estimator_train --help'
    outdate()
    assert machine.run('run_train.sh').returncode == 2
  finished_environment(machine)
  moved = machine.root.parent / 'moved'
  machine.root.rename(moved)
  machine.root = moved
  assert machine.run('run_train.sh').returncode == 2


def test_a_link_does_not_change_the_environment_of_another_checkout(machine):
  machine.python.symlink_to(sys.executable)
  other = machine.folder / 'other'
  shutil.copytree(str(machine.root), str(other))
  (other / '.venv').mkdir()
  (other / '.venv/setup.log').touch()
  (machine.root / '.venv').symlink_to(other / '.venv')
  result = machine.run('run_train.sh')
  assert result.returncode == 1 and os.listdir(str(other / '.venv')) == ['setup.log']
  assert result.stderr.splitlines()[-1] == (
      'error: {} was not made: it belongs to another checkout: remove the link to it'.format(
          other / '.venv'))


def test_the_build_for_cpus_has_its_own_environments(machine):
  script = ['tests/run.sh', '--python=' + VERSION, '-x']
  finished_environment(machine, '.venv-{}-onednn'.format(VERSION),
                       LOCK.replace('.txt', '-onednn.txt'))
  assert last_line(machine.run(*script, ESTIMATOR_TRAIN_TF='onednn')) == (
    '-m pytest -p no:cacheprovider -x')
  assert machine.run(*script).returncode == 2  # It does not stand for that of the other build.


def test_some_flags_start_other_programs(machine):
  finished_environment(
    machine, python='#!/usr/bin/env bash\necho "$ESTIMATOR_TRAIN_STARTED_SECS $*"\n')
  for module, all_flags in (
      ('estimator_train.launcher.local_cluster',
       ' '.join(['-local_workers', *(
           '--{}{}'.format(flag.name, '=2' if flag.takes_count else '')
           for flag in LAUNCHER_FLAGS)])),
      ('estimator_train', '--local_workersx=2 local_workers=2 --labels=--tensorboard')):
    for flag in all_flags.split():
      printed = last_line(machine.run('run_train.sh', flag, '--batch_size=8'))
      started, _, command = printed.partition(' ')
      assert command == ' '.join(['-m', module, flag, '--batch_size=8'])
      # The program counts its start-up from here, without the set-up.
      assert 0 < float(started) <= float(Path('/proc/uptime').read_text().split()[0])
