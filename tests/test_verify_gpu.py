"""scripts/verify_gpu, on logical CPU devices in place of GPUs."""

import json
import types

import numpy as np
import pytest
from conftest import ROOT, load_script, run_process

from estimator_train.modes.doctor import hardware

verify_gpu = load_script('verify_gpu')


class CpuDevices(verify_gpu.Devices):
  """Two logical CPU devices."""

  def __init__(self):
    super().__init__(2)


def test_the_difference_of_variables():
  expected = {'kernel': np.array([[3., 0.]], np.float32), 'step': np.int64(4)}
  assert verify_gpu.relative_difference(expected, expected) == 0
  changed = dict(expected, kernel=np.array([[3., .5]], np.float32))
  assert verify_gpu.relative_difference(changed, expected) == pytest.approx(.1)
  assert verify_gpu.relative_difference({'kernel': expected['kernel']}, expected) == float('inf')


@pytest.mark.parametrize('flags, message', [
    (['--steps=11'], 'error: --steps must be at least 12: 11: give a larger number'),
    (['--cpu_replicas=-1'], 'error: --cpu_replicas must not be negative: -1: omit it'),
    ([], 'error: the program must see a GPU: TensorFlow sees none: see --mode=doctor; '
     '--cpu_replicas=2 runs the checks without GPUs')])
def test_wrong_flags(flags, message, tmp_path, capsys):
  output = tmp_path / 'report.json'
  assert verify_gpu.main(['--output={}'.format(output), *flags]) == 2
  assert capsys.readouterr().err == message + '\n' and not output.exists()


def test_several_devices_are_required(tmp_path):
  row, = verify_gpu.check_replicas(verify_gpu.Devices(1), 12, str(tmp_path))
  assert row['verdict'] == 'not run' and row['figure'] == 'requires several devices'


def test_the_share_of_the_rate_at_peak(monkeypatch):
  gpu = hardware.Gpu('Tesla V100-SXM2-16GB', (7, 0), '450.51', 16 << 30)
  monkeypatch.setattr(hardware, 'inspect_gpus', lambda: hardware.GpuInventory((gpu,)))
  monkeypatch.setattr(verify_gpu.tensorflow_probe, 'count_gpus', lambda: 2)
  devices = verify_gpu.Devices(0)
  rate = devices.rate_at_peak('resnet50, 1 GPU')
  assert 300 < rate < 600 and devices.rate_at_peak('resnet50, 9 GPUs') is None
  assert CpuDevices().rate_at_peak('resnet50, 1 GPU') is None
  run = types.SimpleNamespace(rate=rate / 2)
  assert verify_gpu.share_of_peak(run, rate) == ', 50.0% of the rate at peak'
  assert verify_gpu.share_of_peak(run, None) == ''


def test_a_run_that_fails(tmp_path, monkeypatch):
  monkeypatch.setattr(verify_gpu, 'WORKLOADS', (('fashion_mnist', ['--dataset=none'], 8, 8),))
  rows = list(verify_gpu.check_workloads(CpuDevices(), 12, str(tmp_path)))
  assert [row['verdict'] for row in rows] == ['FAILED', 'FAILED']
  assert all('--dataset=none' in row['figure'] for row in rows), rows


def test_gradients_that_are_wrong_by_a_factor(tmp_path, monkeypatch):
  """If the gradients on all replicas are twice as large, the comparison with one replica fails."""
  original = verify_gpu.train

  def train(folder, name, devices, count, arguments):
    changed = ['--learning_rate=0.02'] if count > 1 else []
    return original(folder, name, devices, count, [*arguments, *changed])

  monkeypatch.setattr(verify_gpu, 'train', train)
  row, *all_reduce = verify_gpu.check_replicas(CpuDevices(), 12, str(tmp_path))
  assert row['verdict'] == 'FAILED' and row['figure'].startswith('difference '), row
  assert [each['verdict'] for each in all_reduce] == ['ok', 'ok']


def test_another_exit_code_than_that_of_sigterm(tmp_path, monkeypatch):
  monkeypatch.setattr(verify_gpu, 'EXACT', [*verify_gpu.EXACT, '--hooks=none:none'])
  row, = verify_gpu.check_resuming(CpuDevices(), 12, str(tmp_path))
  assert row['verdict'] == 'FAILED' and row['figure'] == 'exit code 2 after SIGTERM'


@pytest.mark.slow
def test_all_checks(tmp_path):
  output = tmp_path / 'gpu_report.json'
  done = run_process(ROOT / 'scripts' / 'verify_gpu', '--cpu_replicas=2', '--steps=12',
                     '--output={}'.format(output), cwd=tmp_path, timeout=1200)
  report = json.loads(output.read_text())
  assert done.returncode == 0, (done.stdout, done.stderr)
  assert report['device_kind'] == 'logical CPU device' and report['num_devices'] == 2
  assert [row['verdict'] for row in report['rows']] == ['ok'] * 19
  assert done.stdout.count('\n| ') == 20 and '19 ok, 0 failed, 0 not run, in ' in done.stdout
  assert 'None' not in done.stdout and '| all checks | - |' in done.stdout
