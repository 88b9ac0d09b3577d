"""What `--mode=doctor` finds on machines that are not here, from their properties."""

import importlib.util
import json
import os
import resource
import shutil
import sys
import types

import pytest
from conftest import ROOT

from estimator_train.modes.doctor import DOCKER_IMAGE_VARIABLE, hardware, installation
from estimator_train.modes.doctor.hardware import Gpu, GpuInventory
from estimator_train.modes.doctor.installation import BuildRate
from estimator_train.modes.doctor.results import CheckResult
from estimator_train.system import machine, tensorflow_probe
from estimator_train.system.tensorflow_probe import ImportResult

HERE = installation.Interpreter('CPython', (3, 7, 16), 64, 'Linux', 'x86_64')
PACKAGES = {'protobuf': '3.19.6', 'h5py': '2.10.0', 'numpy': '1.18.5'}
NV = '1.15.5+nv23.3'
STOCK, NVIDIAS, ONEDNN = (dict(PACKAGES, **build) for build in (
    {'tensorflow': '1.15.0'}, {'nvidia-tensorflow': NV}, {'intel-tensorflow': '1.15.2'}))
GPU = Gpu('Tesla T4', (7, 5), '535.1', 15 << 30)
# What functions find on a machine without faults.
PROPERTIES = {
    'Interpreter': HERE, 'find_installed_versions': STOCK, 'inspect_gpus': GpuInventory(),
    'import_in_child': ImportResult(None, '1.15.0', 1., True, 0), 'cpu_property': 'avx avx2',
    'available_cores': 4, 'read_quota_cores': None, 'available_bytes': 2 * 10**9,
    'getrlimit': (1024, 1024), 'measure_builds': [BuildRate('stock', 1000.)]}


@pytest.fixture
def diagnose(run_program, monkeypatch, tmp_path):
  """Runs the doctor on a machine with other properties, or environment variables.

  Returns:
    The outcome, and the results of the checks by name.
  """
  def run(*flags, **properties):
    with monkeypatch.context() as patch:
      for name in ('TF_CONFIG', 'CUDA_VISIBLE_DEVICES', 'KAGGLE_USERNAME', 'KAGGLE_KEY'):
        patch.delenv(name, raising=False)
      patch.setenv('KAGGLE_CONFIG_DIR', str(tmp_path))
      for name, value in dict(PROPERTIES, **properties).items():
        if name.isupper():
          patch.setenv(name, value)
          continue
        owner = next(module for module in (
            installation, hardware, machine, resource, tensorflow_probe)
                     if hasattr(module, name))
        patch.setattr(owner, name, lambda *unused, value=value: value)
      done = run_program('--mode=doctor', *flags)
    return done, {check['name']: CheckResult(**check) for check in done.result['checks']}

  return run


def assert_found(result, level, *texts):
  """Checks the level of a result and what its line has; with `!` before: has not."""
  assert result.level == level, result
  for text in texts:
    assert (text.lstrip('!') in result.format_line()) == (not text.startswith('!')), result


def python(**changes):
  return {'Interpreter': HERE._replace(**changes)}


def packages(versions, **changes):
  return {'find_installed_versions': dict(versions, **changes)}


def gpus(versions, **changes):
  return dict(packages(versions), inspect_gpus=GpuInventory((GPU._replace(**changes),)))


def rates(*figures):
  return {'measure_builds': [BuildRate(*figure) for figure in figures]}


TASK = json.dumps({'cluster': {'worker': ['a:1', 'b:2'], 'ps': ['c:3']},
                   'task': {'type': 'ps', 'index': '0'}})
THREADS = '--intra_op_parallelism_threads=1 --num_parallel_calls=1'
# Properties, the name of a check, its level, and what its line has.
MACHINES = [
    (python(version=(3, 5, 9)), 'python', 'error'), (python(version=(3, 6, 0)), 'python', 'ok'),
    (python(version=(3, 8, 10)), 'python', 'ok'), (python(version=(3, 9, 0)), 'python', 'error'),
    (python(bits=32), 'python', 'error'), (python(system='mac'), 'python', 'error'),
    (packages({'tensorflow-gpu': '1.15.5'}), 'tensorflow', 'ok', 'stock'),
    (packages({'tensorflow': NV}), 'tensorflow', 'ok', 'NVIDIA'),
    (packages({'nvidia-tensorflow': NV, 'tensorflow': NV}), 'tensorflow', 'ok', 'NVIDIA'),
    (packages(ONEDNN), 'tensorflow', 'ok', 'oneDNN'),
    (packages({'tensorflow': '1.14.0'}), 'tensorflow', 'error', 'tensorflow 1.14.0'),
    (packages({}), 'tensorflow', 'error', 'not installed'),
    (packages(ONEDNN, tensorflow='1.15.0'), 'tensorflow', 'error', 'intel-tensorflow 1.15.2 are',
     'pip uninstall tensorflow intel-tensorflow`'),
    (packages({'tensorflow': '1.15.0'}), 'h5py', 'error', 'not installed'),
    (packages(STOCK, h5py='3.1.0'), 'h5py', 'error', 'pip install "h5py'),
    (packages(NVIDIAS, h5py='3.1.0'), 'h5py', 'warning', 'pip install "h5py'),
    (packages(STOCK, numpy='1.19.0'), 'numpy', 'warning', 'pip install "numpy'),
    ({'import_in_child': ImportResult(None, '1.15.0', 31., True, 0)}, 'import', 'warning'),
    ({}, 'cpu', 'ok', 'AVX, AVX2', '!512'), ({'cpu_property': 'sse4_2'}, 'cpu', 'error', 'no AVX'),
    ({'cpu_property': ''}, 'cpu', 'warning'),
    (packages({'intel-tensorflow-avx512': '1.15.2'}), 'cpu', 'error',
     'install intel-tensorflow instead'),
    ({}, 'cores', 'ok', '4'), ({'read_quota_cores': 4.}, 'cores', 'ok', '4'),
    ({'read_quota_cores': 1.5}, 'cores', 'warning', 'the CPU time of 1.5 core(s)', THREADS),
    (dict(packages(ONEDNN), read_quota_cores=.5), 'cores', 'warning',
     'set `OMP_NUM_THREADS=1` and give ' + THREADS),
    ({}, 'memory', 'ok'), ({'available_bytes': 1 << 30}, 'memory', 'warning'),
    ({}, 'open files', 'ok'), ({'getrlimit': (256, 256)}, 'open files', 'warning'),
    ({}, 'gpus', 'ok', 'no GPU'),
    ({'inspect_gpus': GpuInventory((GPU, GPU))}, 'gpus', 'ok', 'capability 7.5), Tesla T4'),
    ({'inspect_gpus': GpuInventory(num_pci_devices=2)}, 'gpus', 'warning', '2 NVIDIA device(s)'),
    ({'inspect_gpus': GpuInventory(failure='exit code 9')}, 'gpus', 'error', 'exit code 9'),
    (gpus(STOCK, driver='410.48'), 'gpu driver', 'ok'),
    (gpus(STOCK, driver='[N/A]'), 'gpu driver', 'ok'),
    (gpus(STOCK, driver='410.47'), 'gpu driver', 'error'),
    (gpus(NVIDIAS, driver='450.51.06'), 'gpu driver', 'ok'),
    (gpus(NVIDIAS, driver='450.50'), 'gpu driver', 'warning'),
    (gpus(STOCK, capability=(3, 0)), 'gpu build', 'error', 'no build'),
    (gpus(STOCK, capability=(8, 0)), 'gpu build', 'error', hardware.NVIDIA_CONTAINER),
    (gpus(STOCK, capability=(10, 0)), 'gpu build', 'error', 'no build'),
    (gpus(NVIDIAS, capability=(3, 7)), 'gpu build', 'error', 'stock'),
    (gpus(NVIDIAS, capability=(10, 0)), 'gpu build', 'error', 'no build'),
    (rates(('stock', 1000.), ('oneDNN', 2600.)), 'builds', 'ok', '1,000 examples/sec with the '
     'stock build, 2,600 examples/sec with the oneDNN build: `ESTIMATOR_TRAIN_TF=onednn '
     './run_train.sh` uses the oneDNN build'),
    (rates(('oneDNN', 1000.), ('stock', 1150.)), 'builds', 'ok',
     '`./run_train.sh` uses the stock build'),
    (rates(('stock', 1000.), ('oneDNN', 1140.)), 'builds', 'ok', '!uses'),
    (rates(('stock', None, 'killed by SIGILL'), ('oneDNN', 2600.)), 'builds', 'warning',
     'not with the stock build (killed by SIGILL)', sys.executable),
    ({}, 'builds', 'ok', '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh --mode=doctor` installs'),
    # tests/distribution/test_tf_config.py has every mistake.
    ({'TF_CONFIG': TASK}, 'TF_CONFIG', 'ok', 'ps 0 of 2 wor'),
    ({'TF_CONFIG': '{}'}, 'TF_CONFIG', 'ok', 'the run uses this machine alone'),
]


@pytest.mark.parametrize('machine', MACHINES, ids=[name for _, name, *_ in MACHINES])
def test_machines(diagnose, machine):
  properties, name, *expected = machine
  _, results = diagnose(**properties)
  assert_found(results[name], *expected)


def test_gpus_that_tensorflow_does_not_see(diagnose):
  """Of two GPUs of a kind, each fault is reported once."""
  supported = ['ok gpus', 'ok gpu driver', 'error gpus seen', 'warning nccl']
  for versions, capability, expected in (
      (STOCK, (3, 5), [*supported[:2], 'error cuda', *supported[2:]]),
      (STOCK, (8, 0), ['ok gpus', 'error gpu build', 'ok gpu driver']),
      (NVIDIAS, (6, 0), supported), (NVIDIAS, (9, 0), supported)):
    gpu = GPU._replace(capability=capability)
    done, _ = diagnose(inspect_gpus=GpuInventory((gpu, gpu)), find_installed_versions=versions)
    assert done.code == 2 and expected == [
        '{level} {name}'.format(**result) for result in done.result['checks']
        if result['name'].startswith(('gpu', 'cuda', 'nccl', 'builds'))]


def test_errors_end_with_2_after_all_checks(diagnose, tmp_path):
  (tmp_path / 'file').write_text('')
  done, _ = diagnose('--dataset=oct2017', '--model_dir', tmp_path / 'file',
                     TF_CONFIG='{"cluster"')
  assert done.code == 2 and done.err == (
      'error: this machine is not ready: 2 error(s): --model_dir, TF_CONFIG: fix the errors '
      'printed above\n')
  assert (done.result['errors'], done.result['warnings']) == (2, 1)
  assert done.out.splitlines()[-2].split()[:2] == ['warning', 'kaggle:']


def test_in_the_image_nothing_is_to_be_installed(diagnose):
  assert DOCKER_IMAGE_VARIABLE + '=' in (ROOT / 'Dockerfile').read_text()
  done, _ = diagnose(**{DOCKER_IMAGE_VARIABLE: '1'})
  assert 'install' not in done.out


def test_packages(monkeypatch):
  """For another Python, and Horovod, which the tests may have."""
  for python, level in (('3.6', 'error'), ('3.7', 'ok')):
    protobuf, *_ = installation.check_packages(
        dict(STOCK, protobuf='3.20.3'), False, 'off', python)
    assert (protobuf.name, protobuf.level) == ('protobuf', level)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  *_, horovod = installation.check_packages(STOCK, False, 'horovod')
  assert (horovod.name, horovod.level) == ('horovod', 'error')


def test_the_cpu_time_of_a_container(tmp_path, monkeypatch):
  assert 'avx' in machine.cpu_property('flags').split()
  for name in ('V2_CPU_MAX', 'V1_CPU_QUOTA', 'V1_CPU_PERIOD'):
    monkeypatch.setattr(hardware, '_CGROUP_' + name, str(tmp_path / name))
  for name, text, cores in (
      ('V1_CPU_PERIOD', '1000', None), ('V1_CPU_QUOTA', '-1', None), ('V1_CPU_QUOTA', '900', .9),
      ('V2_CPU_MAX', '1500 1000', 1.5), ('V2_CPU_MAX', 'max 1000', None)):
    (tmp_path / name).write_text(text)
    assert hardware.read_quota_cores() == cores


def test_folders(diagnose, tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  allowed, free = {}, []
  monkeypatch.setattr(os, 'access', lambda path, mode: all(
      is_allowed for bit, is_allowed in allowed.items() if mode & bit))
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=free[0]))
  for flag, name, free_bytes, writable, readable, *expected in (
      ('--model_dir', '', 2 * 10**9, 1, 1, 'ok', '--model_dir: {}, 2.00 GB free'.format(tmp_path)),
      ('--export_dir', 'new/run', 10**6, 1, 1, 'error', 'run (does not exist yet), 1.00 MB free'),
      ('--cache', '', 10**9, 1, 1, 'warning', '1.00 GB free'),
      ('--model_dir', 'new', 10**10, 0, 1, 'error', '{} cannot be written to'.format(tmp_path)),
      ('--cache', 'file', 10**10, 1, 1, 'error', 'file is not a folder'),
      ('--data_dir', '', 0, 1, 1, 'warning', 'downloading'),
      ('--data_dir', '', 10**10, 0, 1, 'ok', 'read-only'),
      ('--data_dir', '', 10**10, 1, 0, 'error', 'cannot be read')):
    free[:] = [free_bytes]
    allowed.update({os.R_OK: readable, os.W_OK: writable})
    _, results = diagnose(flag, tmp_path / name)
    assert_found(results[flag], *expected)
  assert '--cache' not in diagnose('--cache=memory')[1]


def test_credentials_for_kaggle_are_found_and_never_shown(diagnose, tmp_path):
  secret, needed, path = 'a0b1c2d3e4', ['--dataset=oct2017'], tmp_path / 'kaggle.json'
  whole = json.dumps({'username': secret, 'key': secret})
  (tmp_path / '.kaggle').mkdir()  # The usual folder.
  (tmp_path / '.kaggle' / 'kaggle.json').write_text(whole)
  (tmp_path / '.kaggle' / 'kaggle.json').chmod(0o600)
  for text, mode, flags, environment, *expected in (
      ('', 0, [], {'KAGGLE_CONFIG_DIR': '', 'HOME': str(tmp_path)}, 'ok', '/.kaggle/kaggle.json'),
      ('', 0, [], {}, 'ok', 'only --dataset=oct2017'),
      ('', 0, needed, {}, 'warning', 'no credentials', '!/tmp/.kag'),
      ('', 0, needed, {DOCKER_IMAGE_VARIABLE: '1'}, 'warning', '/tmp/.kaggle'),
      ('', 0, [], {'KAGGLE_USERNAME': secret, 'KAGGLE_KEY': secret}, 'ok', 'the environment'),
      ('', 0, [], {'KAGGLE_USERNAME': secret}, 'warning', 'KAGGLE_USERNAME is set without'),
      (whole, 0o640, [], {}, 'warning', 'other users may read', 'chmod 600 '),
      (json.dumps({'username': secret}), 0o600, [], {}, 'warning', 'lacks'),
      (secret, 0o600, [], {}, 'warning', 'cannot be read'),
      (whole, 0o620, [], {}, 'ok', 'credentials in ')):
    if text:
      path.write_text(text)
      path.chmod(mode)
    done, results = diagnose(*flags, **environment)
    assert_found(results['kaggle'], *expected)
    assert secret not in done.out + done.err
