"""A fresh machine: run_train.sh and tests/run.sh find a Python and make their environment.

The scripts run on a copy of the checkout whose lock files are empty and whose program prints its
arguments, with a PATH on which there is no Python unless a test puts one there.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VERSION = '{}.{}'.format(*sys.version_info)
OTHER_VERSION = {'3.6': '3.7', '3.7': '3.6'}[VERSION]
LOCK = 'requirements/py{}{}.txt'.format(*sys.version_info)
TOOLS = 'bash cat dirname env mkdir mktemp readlink rm sort'
TIMEOUT_SECS = 60

# What stand-ins for Python print for find_python.sh's questions, and how they fail.
PRINTS_FIELDS = '#!/usr/bin/env bash\necho a warning >&2\necho {} {} {} {} "$0"\n'
BROKEN_SHIM = '#!/usr/bin/env bash\necho "pyenv: $0: command not found" >&2\nexit 127\n'


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


class Machine:
  """A checkout, a home folder and a PATH, all empty but for what the scripts need."""

  def __init__(self, folder):
    self.root = folder / 'a chéck out'
    self.home = folder / 'home'
    self.bin = folder / 'bin'
    self.elsewhere = folder / 'else where'
    for path in (self.root, self.home, self.bin, self.elsewhere):
      path.mkdir()
    for tool in TOOLS.split():
      (self.bin / tool).symlink_to(shutil.which(tool))
    for source in ('setup.py', 'estimator_train/install_requires.txt', 'run_train.sh',
                   'tests/run.sh', 'requirements/environment.sh', 'requirements/find_python.sh',
                   'requirements/make_venv.py'):
      (self.root / source).parent.mkdir(exist_ok=True)
      shutil.copy(str(ROOT / source), str(self.root / source))
    for lock in ('pip', 'py36', 'py37', 'py36-onednn', 'py37-onednn'):
      self.write('requirements/{}.txt'.format(lock), '# nothing for {}\n'.format(lock))
    prints_call = 'import json, os, sys\nprint(json.dumps([os.getcwd()] + sys.argv[1:]))\n'
    self.write('estimator_train/__init__.py', "__version__ = '1.2'\n")
    self.write('estimator_train/__main__.py', prints_call)
    self.write('pytest.py', prints_call)

  def write(self, path, text):
    path = self.root / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

  def add_python(self, path=None):
    """Puts the running Python at `path`, by default on PATH under its own name."""
    path = path or self.bin / 'python{}'.format(VERSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)

  def start(self, script, *arguments, **environment):
    environment = dict(
      PATH=str(self.bin), HOME=str(self.home), PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX='1',
      **environment)
    return subprocess.Popen(
      [str(self.root / script)] + list(arguments), cwd=str(self.elsewhere), env=environment,
      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
      universal_newlines=True)

  def run(self, script, *arguments, **environment):
    return finish(self.start(script, *arguments, **environment))

  def log_lines(self, venv='.venv'):
    return (self.root / venv / 'setup.log').read_text().splitlines()


def finish(process):
  try:
    out, err = process.communicate(timeout=TIMEOUT_SECS)
  finally:
    process.kill()
  return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def found(result):
  assert result.returncode == 0, result.stderr
  assert result.stdout.count('\n') == 1
  return result.stdout.strip()


REAL_PYTHON = os.path.realpath(sys.executable)


# Finding a Python.


@pytest.mark.parametrize('name', ['python' + VERSION, 'python3', 'python'])
def test_python_on_path_is_found(machine, name):
  machine.add_python(machine.bin / name)
  assert found(machine.run('requirements/find_python.sh')) == REAL_PYTHON
  assert found(machine.run('requirements/find_python.sh', VERSION)) == REAL_PYTHON


@pytest.mark.parametrize('pyenv_root', ['pyenv', None], ids=['PYENV_ROOT', 'home'])
def test_python_under_pyenv_is_found(machine, pyenv_root):
  root = machine.home / (pyenv_root or '.pyenv')
  machine.add_python(root / 'versions' / '{}.2'.format(VERSION) / 'bin' / 'python')
  environment = {'PYENV_ROOT': str(root)} if pyenv_root else {}
  result = machine.run('requirements/find_python.sh', **environment)
  assert found(result) == REAL_PYTHON


def test_newest_patch_under_pyenv_wins(machine):
  for patch in (9, 16, 17):
    path = machine.home / '.pyenv/versions/3.7.{}/bin/python'.format(patch)
    machine.write(path, PRINTS_FIELDS.format('CPython', '3.7', 64, 'x86_64'))
  assert '/3.7.17/' in found(machine.run('requirements/find_python.sh'))


def test_newer_version_wins_wherever_it_is(machine):
  machine.write(
    machine.bin / 'python3.6', PRINTS_FIELDS.format('CPython', '3.6', 64, 'x86_64'))
  assert found(machine.run('requirements/find_python.sh')).endswith('/bin/python3.6')
  path = machine.home / '.pyenv/versions/3.7.2/bin/python'
  machine.write(path, PRINTS_FIELDS.format('CPython', '3.7', 64, 'x86_64'))
  assert found(machine.run('requirements/find_python.sh')) == str(path)


def test_broken_shim_is_survived(machine):
  machine.write(machine.bin / 'python3.7', BROKEN_SHIM)
  machine.write(machine.bin / 'python3', BROKEN_SHIM)
  machine.add_python(machine.bin / 'python')
  assert found(machine.run('requirements/find_python.sh')) == REAL_PYTHON


@pytest.mark.parametrize('fields', [
  ('PyPy', '3.7', 64, 'x86_64'),
  ('CPython', '3.7', 32, 'x86_64'),
  ('CPython', '3.7', 64, 'aarch64'),
  ('CPython', '2.7', 64, 'x86_64'),
])
def test_unsuitable_python_is_refused_and_listed(machine, fields):
  machine.write(machine.bin / 'python3', PRINTS_FIELDS.format(*fields))
  result = machine.run('requirements/find_python.sh')
  assert result.returncode == 2
  assert '{}/python3: {} {}, {} bit, {}\n'.format(machine.bin, *fields) in result.stderr


def test_exactly_the_version_asked_for(machine):
  machine.add_python()
  assert machine.run('requirements/find_python.sh', OTHER_VERSION).returncode == 2


# uv, which says what it was asked, and knows a Python once it has installed it.
UV = '''#!/usr/bin/env bash
echo "$*" >>"$HOME/uv-calls"
case "$*" in
"python install 3.7") echo Downloading >&2 ;;
"python find 3.7") echo "$HOME/uv-python" ;;
esac
'''


def test_uv_on_path_installs_python(machine):
  machine.write(machine.bin / 'uv', UV)
  machine.write(
    machine.home / 'uv-python', PRINTS_FIELDS.format('CPython', '3.7', 64, 'x86_64'))
  result = machine.run('requirements/find_python.sh')
  assert found(result) == str(machine.home / 'uv-python')
  assert 'Downloading' not in result.stderr
  calls = (machine.home / 'uv-calls').read_text().splitlines()
  assert calls == ['python install 3.7', 'python find 3.7']


def test_uv_is_installed_by_a_newer_python(machine):
  # A Python 3.11 whose environments hold a uv; the one on PATH is too new to know CPython 3.7.
  machine.write(machine.bin / 'uv', '#!/usr/bin/env bash\necho "no download found"\nexit 2\n')
  machine.write(machine.home / 'uv', UV)
  machine.write(
    machine.home / 'uv-python', PRINTS_FIELDS.format('CPython', '3.7', 64, 'x86_64'))
  machine.write(machine.bin / 'python3', '''#!/usr/bin/env bash
echo "$*" >>"$HOME/python-calls"
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cat "$0" >"$3/bin/python" && cat "$HOME/uv" >"$3/bin/uv" &&
  chmod +x "$3/bin/"* ;;
*"pip install"*) ;;
*) echo CPython 3.11 64 x86_64 "$0" ;;
esac
''')
  (machine.bin / 'chmod').symlink_to(shutil.which('chmod'))
  result = machine.run('requirements/find_python.sh', TMPDIR=str(machine.elsewhere))
  assert found(result) == str(machine.home / 'uv-python')
  assert ' uv==' in (machine.home / 'python-calls').read_text()
  assert not list(machine.elsewhere.iterdir()), 'the temporary folder is left behind'


@pytest.mark.parametrize('script', ['run_train.sh', 'tests/run.sh'])
def test_no_python_is_one_message_with_a_way_out(machine, script):
  machine.write(machine.bin / 'python3.7', BROKEN_SHIM)
  machine.write(machine.bin / 'python', PRINTS_FIELDS.format('CPython', '2.7', 64, 'x86_64'))
  result = machine.run(script)
  assert result.returncode == 2
  assert result.stdout == ''
  assert result.stderr.startswith('error: ')
  assert result.stderr.count('error: ') == 1
  for tried in ('python3.7: does not work: pyenv: ', 'python: CPython 2.7, ', 'uv: not on PATH'):
    assert tried in result.stderr
  assert 'docker build ' in result.stderr
  assert not (machine.root / '.venv').exists()


def test_tests_refuse_another_version(machine):
  result = machine.run('tests/run.sh', '--python=3.9')
  assert result.returncode == 2
  assert result.stderr == 'error: --python must be 3.6 or 3.7: got 3.9: give one of them\n'


@pytest.mark.parametrize('script', ['run_train.sh', 'tests/run.sh'])
def test_unknown_build_of_tensorflow_is_refused(machine, script):
  result = machine.run(script, ESTIMATOR_TRAIN_TF='mkl')
  assert (result.returncode, result.stdout) == (2, '')
  assert result.stderr == (
    'error: ESTIMATOR_TRAIN_TF must be stock or onednn: got mkl: use one of them\n')


# Making the environment: each of these starts a real one, a few seconds.


def test_first_start_makes_the_environment_and_later_ones_use_it(machine):
  machine.add_python()
  (machine.elsewhere / 'link').symlink_to(machine.root / 'run_train.sh')
  result = machine.run('../else where/link', '--x=1', 'a b')
  assert result.returncode == 0, result.stderr
  # Standard output is the program's alone; the working folder is the caller's.
  assert json.loads(result.stdout) == [str(machine.elsewhere), '--x=1', 'a b']
  assert sorted(path.name for path in machine.root.iterdir()) == [
    '.venv', 'estimator_train', 'estimator_train.egg-info', 'pytest.py', 'requirements',
    'run_train.sh', 'setup.py', 'tests']

  # The second start, with no Python to make anything: the quickstart, then the tests.
  (machine.bin / 'python{}'.format(VERSION)).unlink()
  result = machine.run('run_train.sh')
  assert result.stderr == ''
  flagfile = machine.root / 'estimator_train/configs/quickstart.flags'
  assert json.loads(result.stdout) == [str(machine.elsewhere), '--flagfile={}'.format(flagfile)]
  result = machine.run('tests/run.sh')
  assert json.loads(result.stdout) == [
    str(machine.root), '-p', 'no:cacheprovider', 'tests', '--ignore=tests/benchmarks',
    '--numprocesses=auto', '--maxprocesses=4', '--dist=loadfile']
  result = machine.run('tests/run.sh', '-k', 'a b')
  assert json.loads(result.stdout)[3:] == ['-k', 'a b']


def test_two_starts_at_once_make_one_environment(machine):
  machine.add_python()
  # What an interrupted install leaves behind is removed first.
  machine.write('.venv/setup.log', '')
  machine.write('.venv/leftover', '')
  results = [finish(process) for process in [machine.start('run_train.sh') for _ in range(2)]]
  assert [result.returncode for result in results] == [0, 0]
  err = ''.join(result.stderr for result in results)
  assert err.count('Another start is setting up') == 1
  assert err.count('Installing the project') == 1
  assert not (machine.root / '.venv/leftover').exists()


def test_failing_install_leaves_no_marker(machine):
  machine.add_python()
  machine.write(LOCK, 'no-such-package==1.0 --hash=sha256:{}\n'.format('0' * 64))
  result = machine.run('tests/run.sh', '--python=' + VERSION)
  assert result.returncode == 1
  assert result.stdout == ''
  assert 'No matching distribution found for no-such-package==1.0' in result.stderr
  last = result.stderr.splitlines()[-1]
  venv = machine.root / '.venv-{}'.format(VERSION)
  assert last.startswith('error: {} was not made: '.format(venv))
  assert str(venv / 'setup.log') in last
  assert not (venv / 'installed.txt').exists()


# When an environment is made again. A stand-in for its Python shows whether it still runs; for the
# scripts there is no other, so that wanting to make it again is exit code 2.


def finished_environment(machine, venv='.venv', lock=LOCK):
  machine.write(venv + '/bin/python', '#!/usr/bin/env bash\necho "$*"\n')
  machine.write(venv + '/installed.txt',
                '{}{}\n'.format((machine.root / lock).read_text(), machine.root))


def test_finished_environment_is_used(machine):
  finished_environment(machine)
  result = machine.run('run_train.sh', '--help')
  assert result.returncode == 0, result.stderr
  assert result.stdout.splitlines()[-1] == '-m estimator_train --help'


ONEDNN_LOCK = LOCK.replace('.txt', '-onednn.txt')


@pytest.mark.parametrize('script, venv, told', [
  (['run_train.sh', '--help'], '.venv-onednn', '-m estimator_train --help'),
  (['tests/run.sh', '-x'], '.venv-onednn', '-m pytest -p no:cacheprovider -x'),
  (['tests/run.sh', '--python=' + VERSION, '-x'], '.venv-{}-onednn'.format(VERSION),
   '-m pytest -p no:cacheprovider -x')])
def test_build_for_cpus_has_environments_of_its_own(machine, script, venv, told):
  finished_environment(machine, venv, ONEDNN_LOCK)
  result = machine.run(*script, ESTIMATOR_TRAIN_TF='onednn')
  assert result.returncode == 0, result.stderr
  assert result.stdout.splitlines()[-1] == told
  # Neither build's environment stands for the other's: there is no Python to make one with.
  assert machine.run(*script).returncode == 2
  finished_environment(machine, venv)
  assert machine.run(*script, ESTIMATOR_TRAIN_TF='onednn').returncode == 2


@pytest.mark.parametrize('flag', ['--local_workers=2', '-local_workers', '--local_ps=1',
                                  '--max_restarts=x', '--local_cores=1', '--local_gpus=1'])
def test_local_cluster_is_started_in_place_of_the_program(machine, flag):
  finished_environment(machine)
  result = machine.run('run_train.sh', '--batch_size=8', flag, '--local_workersx')
  assert result.returncode == 0, result.stderr
  assert result.stdout.splitlines()[-1] == (
    '-m estimator_train.launcher.local_cluster --batch_size=8 {} --local_workersx'.format(flag))


@pytest.mark.parametrize('flag', ['--local_workersx=2', 'local_workers=2', '--labels=--local_ps',
                                  '--tensorboardx', '--labels=--tensorboard'])
def test_other_flags_start_the_program(machine, flag):
  finished_environment(machine)
  result = machine.run('run_train.sh', flag)
  assert result.stdout.splitlines()[-1] == '-m estimator_train {}'.format(flag)


@pytest.mark.parametrize('flag', ['--tensorboard', '-tensorboard'])
@pytest.mark.parametrize('other', ['--batch_size=8', '--local_workers=2'])
def test_tensorboard_is_started_wherever_its_flag_stands(machine, flag, other):
  finished_environment(machine)
  for flags in ((flag, other), (other, flag)):
    result = machine.run('run_train.sh', *flags)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == (
      '-m estimator_train.launcher.with_tensorboard {} {}'.format(*flags))


def test_the_program_counts_from_when_the_environment_is_there(machine):
  finished_environment(machine)
  machine.write('.venv/bin/python', '#!/usr/bin/env bash\necho "$ESTIMATOR_TRAIN_STARTED_SECS"\n')
  before = uptime_secs()
  result = machine.run('run_train.sh', '--help')
  assert before <= float(result.stdout.splitlines()[-1]) <= uptime_secs()


def uptime_secs():
  return float(Path('/proc/uptime').read_text().split()[0])


def change_lock(machine):
  machine.write(LOCK, '# something else\n')


def lose_marker(machine):
  (machine.root / '.venv/installed.txt').unlink()


def lose_python(machine):
  (machine.root / '.venv/bin/python').unlink()


@pytest.mark.parametrize('change', [change_lock, lose_marker, lose_python])
def test_outdated_environment_is_made_again(machine, change):
  finished_environment(machine)
  change(machine)
  assert machine.run('run_train.sh').returncode == 2


def test_moved_checkout_makes_the_environment_again(machine):
  finished_environment(machine)
  moved = machine.root.parent / 'moved'
  machine.root.rename(moved)
  machine.root = moved
  assert machine.run('run_train.sh').returncode == 2


def test_environment_of_another_maker_is_kept(machine):
  machine.add_python()
  machine.write('.venv/mine', '')
  # Fails after the environment was cleared, which is all that matters here.
  machine.write('requirements/pip.txt', 'no-such-package==1.0\n')
  assert machine.run('run_train.sh').returncode == 1
  kept, = machine.root.glob('.venv-kept-*')
  assert (kept / 'mine').exists()
