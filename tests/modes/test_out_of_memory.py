"""Runs that ask for more memory than there is, and the runs after them in the same process."""

import json
import os
import resource
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest
from conftest import ROOT

# What takes long here is TensorFlow, and the same on any Python.
pytestmark = pytest.mark.slow

GB = 10 ** 9
SECS = 300
QUICK = ['--dataset=synthetic', '--image_size=28,28', '--num_gpus=0', '--train_steps=3',
         '--mode=train', '--report_page=false', '--log_every_steps=1000']
ORDINARY = ['--model=fashion_cnn', '--batch_size=256']
TOO_LARGE = ['--model=own_models:too_large', '--batch_size=4']
OUT_OF_MEMORY = ('error: out of memory on /device:CPU:0: a float tensor of shape [262144,{}] at '
                 '--batch_size=4: give a smaller --batch_size')


def run_in_process(folder, runs, imports=(), limit_gb=None, cgroup=None, tensor_mb=2 ** 22):
  """Runs the program several times in one new process; returns codes and errors.

  Args:
    folder: for the model directories.
    runs: of flags.
    imports: statements to execute first, as a script of a user would.
    limit_gb: of address space.
    cgroup: folder of a cgroup to run in.
    tensor_mb: what the model that is too large asks for, in MiB.
  """
  script = '\n'.join([*imports, '''
import contextlib, io, json, sys
from estimator_train.__main__ import main
outcomes = []
for index, flags in enumerate(json.loads(sys.argv[1])):
  err = io.StringIO()
  with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
    code = main(flags + ['--model_dir={}/{}'.format(sys.argv[2], index)])
  outcomes.append((code, err.getvalue()))
print(json.dumps(outcomes))
'''])

  def limit():
    if cgroup:
      (cgroup / 'cgroup.procs').write_text(str(os.getpid()))
    if limit_gb:
      resource.setrlimit(resource.RLIMIT_AS, (int(limit_gb * GB),) * 2)

  done = subprocess.run(
      [sys.executable, '-c', script, json.dumps([QUICK + run for run in runs]), str(folder)],
      cwd=str(ROOT), timeout=SECS,
      env=dict(os.environ, PYTHONPATH='{0}:{0}/tests'.format(ROOT), TENSOR_MB=str(tensor_mb)),
      preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == 0, done.stderr[-2000:]
  return json.loads(done.stdout.splitlines()[-1])


def check(outcomes, tensor_mb=2 ** 22):
  """Asserts that the first run had too little memory, and that the others trained."""
  (code, err), *others = outcomes
  assert code == 2 and 'Traceback' not in err
  assert err.splitlines()[-1].startswith(OUT_OF_MEMORY.format(tensor_mb))
  assert [code for code, _ in others] == [0] * len(others), others


@pytest.mark.parametrize('imports', [
    (), ('import tensorflow as tf', 'tf.Session().run(tf.zeros([1000, 1000]))')],
                         ids=['fresh process', 'after a session of the user\'s'])
def test_ordinary_runs_train_after_an_error(tmp_path, imports):
  # Without a limit a system might promise what it does not have.
  check(run_in_process(tmp_path, [TOO_LARGE] + [ORDINARY] * 3, imports=imports, limit_gb=100))


def test_ordinary_runs_train_after_one_just_below_the_limit(tmp_path):
  # Most of the address space is left, but not in one piece with what TensorFlow takes.
  check(run_in_process(tmp_path, [TOO_LARGE, ORDINARY], limit_gb=8, tensor_mb=7200), 7200)


def test_processes_side_by_side(tmp_path):
  def run(name):
    folder = tmp_path / name
    folder.mkdir()
    return run_in_process(folder, [TOO_LARGE, ORDINARY], limit_gb=100)

  with futures.ThreadPoolExecutor() as pool:
    for outcomes in pool.map(run, ['a', 'b']):
      check(outcomes)


@pytest.fixture
def small_cgroup():
  """A cgroup of 2 GiB."""
  folder = Path('/sys/fs/cgroup/memory/estimator_train_{}'.format(os.getpid()))
  try:
    folder.mkdir()
  except OSError as error:
    pytest.skip('no memory cgroup (version 1) can be made here: {}'.format(error))
  try:
    (folder / 'memory.limit_in_bytes').write_text(str(2 << 30))
    yield folder
  finally:
    folder.rmdir()


def test_in_a_cgroup_of_2_gib(tmp_path, small_cgroup):
  check(run_in_process(tmp_path, [TOO_LARGE, ORDINARY], cgroup=small_cgroup))
