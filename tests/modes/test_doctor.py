"""`--mode=doctor`, end to end, on this machine without a GPU."""

import os
import sys

import pytest
from conftest import ROOT, run_process

from estimator_train.doctor import hardware, installation
from estimator_train.modes import doctor

IMPORTED = installation.ImportResult(None, '1.15.0', 1., True, 0)


@pytest.fixture
def without_children(monkeypatch):
  """Stands in for the import of TensorFlow and its training, which have tests of their own."""
  monkeypatch.setattr(installation, 'import_in_child', lambda: IMPORTED)
  monkeypatch.setattr(installation, 'measure_builds',
                      lambda build: [installation.BuildRate('stock', 1000.)])


def levels(result):
  return {check['name']: check['level'] for check in result['checks']}


def test_this_machine(run_well, tmp_path):
  """Imports TensorFlow and trains in child processes."""
  done = run_well('--mode=doctor', '--model_dir', tmp_path / 'new', '--data_dir', tmp_path,
                  '--cache', tmp_path / 'cache')
  assert done.err == ''
  *lines, _ = done.out.splitlines()
  result = done.result
  assert result['mode'] == 'doctor' and result['errors'] == 0
  assert len(lines) == len(result['checks']) == result['ok'] + result['warnings']
  for line, check in zip(lines, result['checks']):
    assert set(check) == {'name', 'level', 'found', 'remedy'}
    assert line.startswith(check['level']) and check['name'] in line and check['found'] in line
  assert set(levels(result)) == {
      'python', 'tensorflow', 'protobuf', 'h5py', 'numpy', 'import', 'gpus', 'cpu',
      'cores', 'memory', 'open files', 'builds', '--model_dir', '--data_dir', '--cache',
      'TF_CONFIG', 'kaggle'}
  assert ': TensorFlow 1.15' in done.out and ' examples/sec with the ' in done.out
  assert os.listdir(str(tmp_path)) == []  # It looks, and leaves nothing.


def test_errors_end_with_2_after_all_checks(run_program, without_children, monkeypatch, tmp_path):
  monkeypatch.setenv('TF_CONFIG', '{"cluster"')
  for name in ('KAGGLE_USERNAME', 'KAGGLE_KEY'):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('KAGGLE_CONFIG_DIR', str(tmp_path))
  (tmp_path / 'file').write_text('')
  done = run_program('--mode=doctor', '--dataset=oct2017', '--model_dir', tmp_path / 'file')
  assert done.code == 2
  assert done.err == ('error: this machine is not ready: 2 error(s): --model_dir, TF_CONFIG: fix '
                      'the errors printed above\n')
  found = levels(done.result)
  assert done.result['errors'] == 2 and found['TF_CONFIG'] == found['--model_dir'] == 'error'
  assert found['kaggle'] == 'warning' and done.result['warnings'] >= 1
  assert done.out.splitlines()[-2].split()[1] == 'kaggle:'


def test_gpus_that_tensorflow_does_not_see(run_program, without_children, monkeypatch):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  gpu = hardware.Gpu('Tesla T4', (7, 5), '535.1', 15 << 30)
  monkeypatch.setattr(hardware, 'inspect_gpus', lambda: hardware.GpuInventory((gpu,)))
  done = run_program('--mode=doctor')
  assert done.code == 2 and {name: level for name, level in levels(done.result).items()
                             if name.startswith(('gpu', 'cuda', 'nccl', 'builds'))} == {
      'gpus': 'ok', 'gpu driver': 'ok', 'cuda': 'error', 'gpus seen': 'error'}


def test_in_the_image_nothing_is_to_be_installed(run_well, without_children, monkeypatch):
  assert doctor.DOCKER_IMAGE_VARIABLE + '=' in (ROOT / 'Dockerfile').read_text()
  monkeypatch.setenv(doctor.DOCKER_IMAGE_VARIABLE, '1')
  assert 'pip ' not in run_well('--mode=doctor').out


def test_works_where_tensorflow_does_not(tmp_path):
  (tmp_path / 'tensorflow').mkdir()
  (tmp_path / 'tensorflow' / '__init__.py').write_text(
      'import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n')
  done = run_process(sys.executable, '-m', 'estimator_train', '--mode=doctor',
                     env={'PYTHONPATH': str(tmp_path)})
  assert done.returncode == 2 and '"errors": 1' in done.stdout.splitlines()[-1], done.stderr
  assert 'error    import: TensorFlow cannot be imported: killed by SIGILL' in done.stdout
  assert done.stderr.startswith('error: this machine is not ready: 1 error(s): import: ')
