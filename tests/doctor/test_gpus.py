"""GPUs, as a stand-in for NVML tells of them: no GPU was there to try it on."""

import importlib
import re

import pytest

from estimator_train.doctor import gpu_use, gpus
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.process.logs import has_nvidia_driver

STOCK = TensorFlowBuild('tensorflow', '1.15.0')
NVIDIAS = TensorFlowBuild('nvidia-tensorflow', '1.15.5+nv23.3')
AMPERE = gpus.Gpu('NVIDIA A100-SXM4-40GB', (8, 0), '535.104.05', 40 << 30)
TURING = gpus.Gpu('Tesla T4', (7, 5), '535.104.05', 15 << 30)
HOPPER = gpus.Gpu('NVIDIA H100 PCIe', (9, 0), '535.1', 80 << 30)
BLACKWELL = gpus.Gpu('NVIDIA B200', (10, 0), '570.1', 180 << 30)
KEPLER = gpus.Gpu('Tesla K80', (3, 7), '450.51', 11 << 30)


def levels(findings):
  return {finding.name: finding.level for finding in findings}


def check(found, build):
  return gpus.check_gpus(gpus.GpuInventory((found,)), build)


@pytest.mark.parametrize('gpu, build, remedy', [
    pytest.param(TURING, STOCK, None, id='Turing'),
    pytest.param(KEPLER, STOCK, None, id='Kepler'),
    pytest.param(AMPERE, STOCK, gpus.NVIDIA_CONTAINER, id='Ampere'),
    pytest.param(HOPPER, STOCK, gpus.NVIDIA_CONTAINER, id='Hopper'),
    pytest.param(BLACKWELL, STOCK, 'no build', id='Blackwell'),
    pytest.param(KEPLER._replace(capability=(3, 0)), STOCK, 'no build', id='old'),
    pytest.param(AMPERE, NVIDIAS, None, id='Ampere in the container'),
    pytest.param(HOPPER, NVIDIAS, None, id='Hopper in the container'),
    pytest.param(BLACKWELL, NVIDIAS, 'no build', id='Blackwell in the container'),
    pytest.param(KEPLER, NVIDIAS, 'stock', id='K80 in the container'),
])
def test_capability(gpu, build, remedy):
  found = [finding for finding in check(gpu, build) if finding.name == 'gpu build']
  assert [finding.level for finding in found] == ([] if remedy is None else ['error'])
  assert all(remedy in finding.remedy for finding in found)


def test_each_kind_of_gpu_is_told_once():
  found = gpus.check_gpus(gpus.GpuInventory((AMPERE, AMPERE, TURING)), STOCK)
  assert [finding.name for finding in found] == ['gpus', 'gpu build', 'gpu driver']
  assert found[0].found.count('compute capability') == 3


@pytest.mark.parametrize('driver, build, level', [
    ('410.48', STOCK, 'ok'), ('535.104.05', STOCK, 'ok'), ('410.47', STOCK, 'error'),
    ('390.116', STOCK, 'error'), ('530.30.02', NVIDIAS, 'ok'), ('450.51.06', NVIDIAS, 'ok'),
    ('470.42.01', NVIDIAS, 'warning'), ('525.85.12', NVIDIAS, 'ok'), ('520.61', NVIDIAS, 'warning'),
    ('440.33.01', NVIDIAS, 'warning'), ('[N/A]', STOCK, 'ok'),
])
def test_driver(driver, build, level):
  found = levels(check(TURING._replace(driver=driver), build))
  assert found['gpu driver'] == level and found['gpus'] == 'ok'


@pytest.mark.parametrize('found, level, text', [
    (gpus.GpuInventory(), 'ok', 'no GPU'),
    (gpus.GpuInventory(num_pci_devices=2), 'warning', '2 NVIDIA device(s)'),
    (gpus.GpuInventory(failure='exit code 9: no driver'), 'error', 'exit code 9: no driver'),
])
def test_none(found, level, text):
  (finding,) = gpus.check_gpus(found, STOCK)
  assert finding.level == level and text in finding.found


# What NVML answers where the driver works; `{}` comes before.
NVML = '''
import os, time, types
class NVMLError_LibraryNotFound(Exception): pass
class NVMLError_DriverNotLoaded(Exception): pass
def nvmlInit(): {}
def nvmlSystemGetDriverVersion(): return '535.104.05'
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(index): return ['NVIDIA A100-SXM4-40GB', 'Tesla T4'][index]
def nvmlDeviceGetCudaComputeCapability(index): return [(8, 0), (7, 5)][index]
def nvmlDeviceGetMemoryInfo(index): return types.SimpleNamespace(total=[40 << 30, 15 << 30][index])
'''


@pytest.fixture
def nvml(tmp_path, monkeypatch):
  """Puts a stand-in for NVIDIA's package, and so for a driver, where a child process finds it."""
  def write(init):
    (tmp_path / 'pynvml.py').write_text(NVML.format(init))
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))

  return write


def test_asks_nvml(nvml):
  nvml('pass')
  assert gpus.inspect_gpus().gpus == (AMPERE, TURING)


@pytest.mark.parametrize('init, timeout_secs, failure', [
    ('time.sleep(600)', 1., 'no answer within 1 s'),
    ('raise NVMLError_DriverNotLoaded("Driver Not Loaded")', 300.,
     'exit code 1: pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded'),
    ('os.abort()', 300., 'ended by SIGABRT'),
])
def test_driver_fails(nvml, init, timeout_secs, failure):
  nvml(init)
  found = gpus.inspect_gpus(timeout_secs=timeout_secs)
  assert found.gpus == () and found.failure == failure


def test_no_driver():
  """As on this machine; with NVIDIA's own package, so that its names are the right ones."""
  if has_nvidia_driver():
    pytest.skip('there is a driver here')
  assert gpus.inspect_gpus()[:2] == ((), None)


def test_package_has_what_is_asked_of_it():
  pynvml = importlib.import_module('pynvml')
  asked = set(re.findall(r'pynvml\.(\w+)', gpus._CHILD_CODE))
  assert len(asked) == 8 and not [name for name in asked if not hasattr(pynvml, name)]


def test_counts_graphics_devices(monkeypatch, tmp_path):
  for name, vendor, kind in (('a', '0x10de', '0x030200'), ('b', '0x10de', '0x040300'),
                             ('c', '0x1013', '0x030000')):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'vendor').write_text(vendor + '\n')
    (tmp_path / name / 'class').write_text(kind + '\n')
  monkeypatch.setattr(gpus, '_PCI_DEVICES', str(tmp_path / '*'))
  assert gpus.inspect_gpus().num_pci_devices == 1


@pytest.mark.parametrize('seen, has_cuda, visible, level, text', [
    (2, True, None, 'ok', '2 of 2'),
    (0, True, None, 'error', 'usual reasons'),
    (1, True, None, 'error', '1 of 2'),
    (0, False, None, 'error', 'does not support GPUs'),
    (0, True, '', 'warning', 'CUDA_VISIBLE_DEVICES='),
    (1, True, '0', 'warning', 'CUDA_VISIBLE_DEVICES=0'),
])
def test_seen(seen, has_cuda, visible, level, text):
  finding = gpu_use.check_visible_gpus(2, seen, has_cuda, visible)
  assert finding.level == level and text in finding.format_line()


@pytest.mark.parametrize('shm_bytes, locked_bytes, found', [
    (1 << 30, None, ['ok']),
    (64 << 20, None, ['warning']),
    (1 << 30, 65536, ['warning']),
    (64 << 20, 65536, ['warning', 'warning']),
])
def test_nccl(shm_bytes, locked_bytes, found):
  findings = gpu_use.check_nccl(2, gpu_use.NcclMemoryLimits(shm_bytes, locked_bytes))
  assert [finding.level for finding in findings] == found
  for finding in findings:
    assert '--all_reduce_alg=hierarchical_copy' in finding.remedy
    assert finding.level == 'ok' or '--shm-size=1g --ulimit memlock=-1' in finding.remedy


def test_memory_here():
  assert gpu_use.inspect_memory_limits().shm_bytes > 0


def test_libraries():
  assert gpu_use.find_missing_libraries(('libc.so.6', 'libnone.so.1')) == ('libnone.so.1',)
  assert gpu_use.check_libraries(()).level == 'ok'
  finding = gpu_use.check_libraries(('libcudnn.so.7',))
  assert finding.level == 'error' and 'libcudnn.so.7' in finding.found
