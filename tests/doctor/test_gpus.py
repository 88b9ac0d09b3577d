"""GPUs, from what nvidia-smi prints: no GPU is needed, and none was there to try it on."""

import os

import pytest

from estimator_train.doctor import gpu_use, gpus
from estimator_train.doctor.packages import Build

STOCK = Build('tensorflow', '1.15.0')
NVIDIAS = Build('nvidia-tensorflow', '1.15.5+nv23.3')
# As nvidia-smi prints name, driver, memory and compute capability.
AMPERE = 'NVIDIA A100-SXM4-40GB, 535.104.05, 40960 MiB, 8.0'
TURING = 'Tesla T4, 535.104.05, 15360 MiB, 7.5'


def levels(findings):
  return {finding.name: finding.level for finding in findings}


def check(text, build):
  return gpus.check(gpus.Gpus(gpus.parse(text)), build)


@pytest.mark.parametrize('text, build, remedy', [
    pytest.param(TURING, STOCK, None, id='Turing'),
    pytest.param('Tesla K80, 410.48, 11441 MiB', STOCK, None, id='Kepler'),
    pytest.param(AMPERE, STOCK, gpus.CONTAINER, id='Ampere'),
    pytest.param('NVIDIA H100 PCIe, 535.1, 81559 MiB, 9.0', STOCK, gpus.CONTAINER, id='Hopper'),
    pytest.param('NVIDIA B200, 570.1, 1 MiB, 10.0', STOCK, 'no build', id='Blackwell'),
    pytest.param('GRID K520, 410.48, 1 MiB, 3.0', STOCK, 'no build', id='old'),
    pytest.param(AMPERE, NVIDIAS, None, id='Ampere in the container'),
    pytest.param('NVIDIA H100 PCIe, 535.1, 81559 MiB, 9.0', NVIDIAS, None,
                 id='Hopper in the container'),
    pytest.param('NVIDIA B200, 570.1, 1 MiB, 10.0', NVIDIAS, 'no build',
                 id='Blackwell in the container'),
    pytest.param('Tesla K80, 450.51, 11441 MiB, 3.7', NVIDIAS, 'stock', id='K80 in the container'),
    pytest.param('Some GPU, 535.1, 1 MiB', STOCK, None, id='unknown'),
])
def test_capability(text, build, remedy):
  found = [finding for finding in check(text, build) if finding.name == 'gpu build']
  assert [finding.level for finding in found] == ([] if remedy is None else ['error'])
  assert all(remedy in finding.remedy for finding in found)


def test_each_kind_of_gpu_is_told_once():
  found = check('\n'.join([AMPERE, AMPERE, TURING, '']), STOCK)
  assert [finding.name for finding in found] == ['gpus', 'gpu build', 'gpu driver']
  assert found[0].found.count('compute capability') == 3


@pytest.mark.parametrize('name, capability', [
    ('A100-PCIE-40GB', (8, 0)), ('RTX A1000', (8, 6)), ('GeForce RTX 3090', (8, 6)),
    ('GeForce RTX 2080 Ti', (7, 5)), ('GeForce GTX 1660', (7, 5)), ('Quadro RTX 6000', (7, 5)),
    ('Tesla V100-SXM2-16GB', (7, 0)), ('TITAN V', (7, 0)), ('Tesla P100-PCIE-16GB', (6, 0)),
    ('GeForce GTX 1080 Ti', (6, 1)), ('TITAN X (Pascal)', (6, 1)), ('TITAN Xp', (6, 1)),
    ('Tesla P4', (6, 1)), ('Tesla M60', (5, 2)), ('GeForce GTX TITAN X', (5, 2)),
    ('Tesla K80', (3, 7)), ('Tesla K40m', (3, 5)), ('GeForce 9800', None),
])
def test_capability_by_name(name, capability):
  (gpu,) = gpus.parse(name + ', 440.33.01, 1 MiB')
  assert gpu.capability == capability
  assert gpus.parse(name + ', 440.33.01, 1 MiB, [N/A]') == (gpu,)


@pytest.mark.parametrize('driver, build, level', [
    ('410.48', STOCK, 'ok'), ('535.104.05', STOCK, 'ok'), ('410.47', STOCK, 'error'),
    ('390.116', STOCK, 'error'), ('530.30.02', NVIDIAS, 'ok'), ('450.51.06', NVIDIAS, 'ok'),
    ('470.42.01', NVIDIAS, 'warning'), ('525.85.12', NVIDIAS, 'ok'), ('520.61', NVIDIAS, 'warning'),
    ('440.33.01', NVIDIAS, 'warning'), ('[N/A]', STOCK, 'ok'),
])
def test_driver(driver, build, level):
  found = levels(check('Tesla T4, {}, 15360 MiB, 7.5'.format(driver), build))
  assert found['gpu driver'] == level and found['gpus'] == 'ok'


@pytest.mark.parametrize('found, level, text', [
    (gpus.Gpus(), 'ok', 'no GPU'),
    (gpus.Gpus(num_pci_devices=2), 'warning', '2 by NVIDIA'),
    (gpus.Gpus(failure='exit code 9: no driver'), 'error', 'exit code 9: no driver'),
])
def test_none(found, level, text):
  (finding,) = gpus.check(found, STOCK)
  assert finding.level == level and text in finding.found


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
  """Puts a shell script on PATH as nvidia-smi."""
  def write(text):
    path = tmp_path / 'nvidia-smi'
    path.write_text('#!/bin/sh\n' + text)
    path.chmod(0o755)
    monkeypatch.setenv('PATH', '{}:{}'.format(tmp_path, os.environ['PATH']))

  return write


def test_asks_nvidia_smi(nvidia_smi):
  nvidia_smi('test "$*" = "--query-gpu=name,driver_version,memory.total,compute_cap '
             '--format=csv,noheader" && echo "{}"'.format(TURING))
  assert gpus.look().gpus == (gpus.Gpu('Tesla T4', (7, 5), '535.104.05', '15360 MiB'),)


def test_driver_that_does_not_know_the_capability(nvidia_smi):
  nvidia_smi('case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to '
             'query.\'; exit 2;; esac\necho "Tesla V100-SXM2-16GB, 418.67, 16130 MiB"')
  assert gpus.look().gpus == (
      gpus.Gpu('Tesla V100-SXM2-16GB', (7, 0), '418.67', '16130 MiB'),)


@pytest.mark.parametrize('script, deadline_secs, failure', [
    ('sleep 600', 1., 'no answer within 1 s'),
    ('echo cannot communicate with the driver; exit 9', 300.,
     'exit code 9: cannot communicate with'),
    ('kill -SEGV $$', 300., 'ended by SIGSEGV'),
])
def test_nvidia_smi_fails(nvidia_smi, script, deadline_secs, failure):
  nvidia_smi(script)
  found = gpus.look(deadline_secs=deadline_secs)
  assert found.gpus == () and found.failure.startswith(failure)


def test_no_devices(nvidia_smi):
  nvidia_smi('echo No devices were found; exit 6')
  assert gpus.look()[:2] == ((), None)


def test_no_nvidia_smi(monkeypatch, tmp_path):
  monkeypatch.setenv('PATH', str(tmp_path))
  assert gpus.look()[:2] == ((), None)


def test_counts_graphics_devices(monkeypatch, tmp_path):
  for name, vendor, kind in (('a', '0x10de', '0x030200'), ('b', '0x10de', '0x040300'),
                             ('c', '0x1013', '0x030000')):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'vendor').write_text(vendor + '\n')
    (tmp_path / name / 'class').write_text(kind + '\n')
  monkeypatch.setattr(gpus, '_NVIDIA_DEVICES', str(tmp_path / '*'))
  monkeypatch.setenv('PATH', str(tmp_path))
  assert gpus.look().num_pci_devices == 1


@pytest.mark.parametrize('seen, has_cuda, visible, level, text', [
    (2, True, None, 'ok', '2 of 2'),
    (0, True, None, 'error', 'usual reasons'),
    (1, True, None, 'error', '1 of 2'),
    (0, False, None, 'error', 'no code for GPUs'),
    (0, True, '', 'warning', 'CUDA_VISIBLE_DEVICES='),
    (1, True, '0', 'warning', 'CUDA_VISIBLE_DEVICES=0'),
])
def test_seen(seen, has_cuda, visible, level, text):
  finding = gpu_use.check_seen(2, seen, has_cuda, visible)
  assert finding.level == level and text in finding.line()


@pytest.mark.parametrize('shm_bytes, locked_bytes, found', [
    (1 << 30, None, ['ok']),
    (64 << 20, None, ['warning']),
    (1 << 30, 65536, ['warning']),
    (64 << 20, 65536, ['warning', 'warning']),
])
def test_nccl(shm_bytes, locked_bytes, found):
  findings = gpu_use.check_nccl(2, gpu_use.Memory(shm_bytes, locked_bytes))
  assert [finding.level for finding in findings] == found
  for finding in findings:
    assert '--all_reduce_alg=hierarchical_copy' in finding.remedy
    assert finding.level == 'ok' or '--shm-size=1g --ulimit memlock=-1' in finding.remedy


def test_memory_here():
  assert gpu_use.look_at_memory().shm_bytes > 0


def test_libraries():
  assert gpu_use.look_for_libraries(('libc.so.6', 'libnone.so.1')) == ('libnone.so.1',)
  assert gpu_use.check_libraries(()).level == 'ok'
  finding = gpu_use.check_libraries(('libcudnn.so.7',))
  assert finding.level == 'error' and 'libcudnn.so.7' in finding.found
