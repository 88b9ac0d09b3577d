"""What the doctor finds from facts about a machine, of machines that are not here too."""

import importlib.util
import json
import os
import resource
import shutil
import sys
import types

from estimator_train.doctor import hardware, installation
from estimator_train.doctor.installation import BuildRate, TensorFlowBuild
from estimator_train.modes import doctor
from estimator_train.settings import Settings
from estimator_train.system import machine

STOCK = TensorFlowBuild('tensorflow', '1.15.0')
NVIDIAS = TensorFlowBuild('nvidia-tensorflow', '1.15.5+nv23.3')


def assert_found(rows):
  """Checks rows of (check result, its level, what its line has; with `!` before: has not)."""
  for check, level, *texts in rows:
    assert check.level == level, check
    for text in texts:
      assert (text.lstrip('!') in check.format_line()) == (not text.startswith('!')), check


def test_python():
  here = installation.Interpreter('CPython', (3, 7, 16), 64, 'Linux', 'x86_64')
  assert_found([(installation.check_python(installation.Interpreter()), 'ok')])
  for level, *changes in (
      ('ok', {'version': (3, 6, 0)}, {'version': (3, 8, 10)}),
      ('error', {'version': (3, 5, 9)}, {'version': (3, 9, 0)}, {'bits': 32}, {'system': 'mac'})):
    assert_found((installation.check_python(here._replace(**change)), level) for change in changes)


def test_builds_of_tensorflow():
  nv = '1.15.5+nv23.3'
  assert_found(
      (installation.check_tensorflow(installation.installed_builds(installed)), *expected)
      for installed, *expected in (
          ({'tensorflow-gpu': '1.15.5'}, 'ok', 'stock'), ({'tensorflow': nv}, 'ok', 'NVIDIA'),
          ({'intel-tensorflow': '1.15.2'}, 'ok', 'oneDNN'),
          ({'nvidia-tensorflow': nv, 'tensorflow': nv}, 'ok', 'NVIDIA'),
          ({'tensorflow': '1.14.0'}, 'error', 'tensorflow 1.14.0'), ({}, 'error', 'not installed'),
          ({'intel-tensorflow': '1.15.2', 'tensorflow': '1.15.0'}, 'error',
           'intel-tensorflow 1.15.2 are', 'pip uninstall tensorflow intel-tensorflow`')))
  assert len(installation.installed_builds(installation.installed_versions())) == 1


def test_packages(monkeypatch):
  good = {'protobuf': '3.19.6', 'h5py': '2.10.0', 'numpy': '1.18.5'}
  for change, python, levels in (
      ({'protobuf': '3.20.3'}, '3.7', 'ok ok ok'), ({'protobuf': '3.20.3'}, '3.6', 'error ok ok'),
      ({'h5py': '3.1.0'}, '3.7', 'ok error ok'), ({'numpy': '1.19.0'}, '3.7', 'ok ok warning'),
      ({'h5py': '3.1.0'}, '3.8', 'ok warning ok')):  # NVIDIA's build, only which is for 3.8.
    found = list(installation.check_packages(dict(good, **change), python == '3.8', 'off', python))
    assert [check.name for check in found] == ['protobuf', 'h5py', 'numpy']
    assert ' '.join(check.level for check in found) == levels
    assert all(check.level == 'ok' or 'pip install "' + check.name in check.remedy
               for check in found)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  found = {check.name: check for check in installation.check_packages({}, False, 'horovod')}
  assert_found([(found['h5py'], 'error', 'not installed'), (found['horovod'], 'error')])


def test_cpu_and_limits(tmp_path, monkeypatch):
  avx512 = TensorFlowBuild('intel-tensorflow-avx512', '1.15.2')
  assert_found((hardware.check_cpu(flags, build), *expected) for flags, build, *expected in (
      ('avx avx2', STOCK, 'ok', 'AVX, AVX2', '!512'), ('sse4_2', STOCK, 'error', 'no AVX'),
      ('', STOCK, 'warning'), ('avx avx2', avx512, 'error', 'install intel-tensorflow instead')))
  assert 'avx' in machine.cpu_property('flags').split()
  for name in ('V2_CPU_MAX', 'V1_CPU_QUOTA', 'V1_CPU_PERIOD'):
    monkeypatch.setattr(hardware, '_CGROUP_' + name, str(tmp_path / name))
  for name, text, cores in (
      ('V1_CPU_PERIOD', '1000', None), ('V1_CPU_QUOTA', '-1', None), ('V1_CPU_QUOTA', '900', .9),
      ('V2_CPU_MAX', '1500 1000', 1.5), ('V2_CPU_MAX', 'max 1000', None)):
    (tmp_path / name).write_text(text)
    assert hardware.read_quota_cores() == cores
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(4)))
  threads = '--intra_op_parallelism_threads=1 --num_parallel_calls=1'
  assert_found([
      (hardware.check_cores(None, False), 'ok', '4'), (hardware.check_cores(4., False), 'ok', '4'),
      (hardware.check_cores(1.5, False), 'warning', 'the CPU time of 1.5 core(s)', threads),
      (hardware.check_cores(.5, True), 'warning', 'set `OMP_NUM_THREADS=1` and give ' + threads)])
  for available, limit, level in ((2 * 10**9, 1024, 'ok'), (1 << 30, 256, 'warning')):
    monkeypatch.setattr(machine, 'available_bytes', lambda available=available: available)
    monkeypatch.setattr(resource, 'getrlimit', lambda _, limit=limit: (limit, limit))
    assert [check.level for check in hardware.check_limits()] == [level, level]


def test_folders(tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  allowed, free = {os.R_OK: True, os.W_OK: True}, []
  monkeypatch.setattr(os, 'access', lambda path, mode: all(
      is_allowed for bit, is_allowed in allowed.items() if mode & bit))
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=free[0]))
  for flag, name, free_bytes, writable, readable, *expected in (
      ('model_dir', '', 2 * 10**9, 1, 1, 'ok', '--model_dir: {}, 2.0 GB free'.format(tmp_path)),
      ('export_dir', 'new/run', 10**6, 1, 1, 'error', 'run (does not exist yet), 0.0 GB free'),
      ('cache', '', 10**9, 1, 1, 'warning', '1.0 GB free'),
      ('model_dir', 'new', 10**10, 0, 1, 'error', '{} cannot be written to'.format(tmp_path)),
      ('cache', 'file', 10**10, 1, 1, 'error', 'file is not a folder'),
      ('data_dir', '', 0, 1, 1, 'warning', 'downloading'),
      ('data_dir', '', 10**10, 0, 1, 'ok', 'read-only'),
      ('data_dir', '', 10**10, 1, 0, 'error', 'cannot be read')):
    free[:] = [free_bytes]
    allowed.update({os.R_OK: readable, os.W_OK: writable})
    check, = doctor.check_folders(Settings(mode='doctor', **{flag: str(tmp_path / name)}))
    assert_found([(check, *expected)])
  assert doctor.check_folders(Settings(mode='doctor', cache='memory')) == []


def test_gpus_that_the_build_and_the_driver_do_not_support():
  def check(capability, build, driver='535.1'):
    gpu = hardware.Gpu('GPU', capability, driver, 40 << 30)
    found = list(hardware.check_gpus(hardware.GpuInventory((gpu, gpu)), build))
    assert found[0].level == 'ok' and found[0].found.count('{}.{}'.format(*capability)) == 2
    assert len(found) == len({check.name for check in found})  # Each kind is reported once.
    return {check.name: check for check in found}

  for build, remedies in (
      (STOCK, {(3, 0): 'no build', (3, 5): '', (7, 5): '', (8, 0): hardware.NVIDIA_CONTAINER,
               (10, 0): 'no build'}),
      (NVIDIAS, {(3, 7): 'stock', (6, 0): '', (9, 0): '', (10, 0): 'no build'})):
    for capability, remedy in remedies.items():
      found = check(capability, build).get('gpu build')
      assert bool(found) == bool(remedy), capability
      assert not remedy or found.level == 'error' and remedy in found.remedy
  for build, level, driver in (
      (STOCK, 'ok', '410.48'), (STOCK, 'ok', '[N/A]'), (STOCK, 'error', '410.47'),
      (NVIDIAS, 'ok', '450.51.06'), (NVIDIAS, 'warning', '450.50')):
    assert check((7, 5), build, driver)['gpu driver'].level == level, driver
  assert_found((*hardware.check_gpus(inventory, STOCK), *expected) for inventory, *expected in (
      (hardware.GpuInventory(), 'ok', 'no GPU'),
      (hardware.GpuInventory(num_pci_devices=2), 'warning', '2 NVIDIA device(s)'),
      (hardware.GpuInventory(failure='exit code 9: no driver'), 'error', 'exit code 9: no driver')))


def test_measured_rates_decide_which_build_is_recommended():
  def check(*rates, in_image=False):
    return installation.check_build_rates(
        [BuildRate(*rate, *(['killed by SIGILL'] if not rate[1] else [])) for rate in rates],
        in_image)

  stock, onednn = ('stock', 1000.), ('oneDNN', 2600.)
  assert_found([
      (check(stock, onednn), 'ok', '1,000 examples/sec with the stock build, 2,600 examples/sec '
       'with the oneDNN build: `ESTIMATOR_TRAIN_TF=onednn ./run_train.sh` uses the oneDNN build'),
      (check(('oneDNN', 1000.), ('stock', 1150.)), 'ok', '`./run_train.sh` uses the stock build'),
      (check(stock, ('oneDNN', 1140.)), 'ok', '!uses'),
      (check(('stock', None), onednn), 'warning', 'not with the stock build (killed by SIGILL)',
       sys.executable),
      (check(stock), 'ok', '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh --mode=doctor` installs'),
      (check(stock, in_image=True), 'ok', '!install')])


def test_credentials_for_kaggle_are_found_and_never_shown(tmp_path, monkeypatch):
  secret = 'a0b1c2d3e4'

  def check(is_needed=False, in_image=False, **environment):
    found = doctor.check_kaggle_credentials(
        dict({'KAGGLE_CONFIG_DIR': str(tmp_path)}, **environment), is_needed, in_image)
    assert secret not in repr(found)
    return found

  assert_found([
      (check(True), 'warning', 'no credentials', '!/tmp/.kag'),
      (check(True, in_image=True), 'warning', '/tmp/.kaggle'),
      (check(KAGGLE_USERNAME=secret, KAGGLE_KEY=secret), 'ok', 'credentials in the environment'),
      (check(KAGGLE_USERNAME=secret), 'warning', 'KAGGLE_USERNAME is set without')])
  whole = json.dumps({'username': secret, 'key': secret})
  for text, mode, *expected in (
      (whole, 0o640, 'warning', 'other users may read', 'chmod 600 '),
      (json.dumps({'username': secret}), 0o600, 'warning', 'lacks'),
      (secret, 0o600, 'warning', 'cannot be read'), (whole, 0o620, 'ok', 'credentials in ')):
    (tmp_path / 'kaggle.json').write_text(text)
    (tmp_path / 'kaggle.json').chmod(mode)
    assert_found([(check(), *expected)])
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / '.kaggle').mkdir()  # The usual folder.
  shutil.copy(str(tmp_path / 'kaggle.json'), str(tmp_path / '.kaggle'))
  assert_found([(check(KAGGLE_CONFIG_DIR=''), 'ok', str(tmp_path / '.kaggle' / 'kaggle.json'))])


def test_tf_config():
  """tests/distribution/test_tf_config.py has every mistake, tests/modes/test_doctor.py an error."""
  task = json.dumps({'cluster': {'worker': ['a:1', 'b:2'], 'ps': ['c:3']},
                     'task': {'type': 'ps', 'index': '0'}})
  assert_found([(doctor.check_tf_config(task), 'ok', 'ps 0 of 2 wor'),
                (doctor.check_tf_config('{}'), 'ok', 'the run uses this machine alone')])
