"""Child processes of the doctor, which crash, hang, or are not there."""

import importlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import run_process

from estimator_train import system
from estimator_train.modes.doctor import hardware, installation
from estimator_train.modes.doctor.installation import BuildRate, TensorFlowBuild
from estimator_train.system import tensorflow_probe
from estimator_train.system.machine import has_nvidia_driver, has_onednn

# What NVML answers where the driver works; `{}` comes before.
NVML = '''
import os, time, types
NVMLError_LibraryNotFound, NVMLError_DriverNotLoaded = KeyError, ValueError
def nvmlInit(): {}
nvmlSystemGetDriverVersion = lambda: '535.104.05'
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = ['NVIDIA A100-SXM4-40GB', 'Tesla T4'].__getitem__
nvmlDeviceGetCudaComputeCapability = [(8, 0), (7, 5)].__getitem__
nvmlDeviceGetMemoryInfo = lambda index: types.SimpleNamespace(total=[40 << 30, 15 << 30][index])
'''


def test_gpus_are_those_that_nvml_lists(tmp_path, monkeypatch):
  """With NVIDIA's package, and with a stand-in for it and so for a driver."""
  if not has_nvidia_driver():
    assert hardware.inspect_gpus()[:2] == ((), None)
  pynvml = importlib.import_module('pynvml')
  asked = set(re.findall(r'pynvml\.(\w+)', hardware._NVML_CODE))
  assert len(asked) == 8 and all(hasattr(pynvml, name) for name in asked)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
  for name, vendor, kind in (('a', '0x10de', '0x030200'), ('b', '0x10de', '0x040300'),
                             ('c', '0x1013', '0x030000')):
    (tmp_path / 'pci' / name).mkdir(parents=True)
    (tmp_path / 'pci' / name / 'vendor').write_text(vendor)
    (tmp_path / 'pci' / name / 'class').write_text(kind)
  monkeypatch.setattr(hardware, '_PCI_DEVICES', str(tmp_path / 'pci' / '*'))
  (tmp_path / 'pynvml.py').write_text(NVML.format('pass'))
  assert hardware.inspect_gpus() == hardware.GpuInventory((
      hardware.Gpu('NVIDIA A100-SXM4-40GB', (8, 0), '535.104.05', 40 << 30),
      hardware.Gpu('Tesla T4', (7, 5), '535.104.05', 15 << 30)), None, 1)
  (tmp_path / 'pynvml.py').write_text(NVML.format('raise NVMLError_DriverNotLoaded("driver")'))
  assert hardware.inspect_gpus()[:2] == ((), 'ValueError: driver')


def test_libraries():
  assert hardware.check_libraries(('libc.so.6',)).level == 'ok'
  found = hardware.check_libraries(('libc.so.6', 'libnone.so.1'))
  assert found.level == 'error' and 'OSError: libnone.so.1: cannot open' in found.found


@pytest.mark.skipif(shutil.which('gcc') is None, reason='gcc is not installed')
@pytest.mark.parametrize('version, level', [(7401, 'error'), (7600, 'ok'), (7605, 'ok')])
def test_version_of_cudnn(tmp_path, version, level):
  (tmp_path / 'stub.c').write_text(
      'unsigned long cudnnGetVersion(void) {{ return {}; }}'.format(version))
  library = str(tmp_path / 'libcudnn.so.7')
  run_process('gcc', '-shared', '-fPIC', '-o', library, tmp_path / 'stub.c', check=True)
  result = hardware.check_libraries((library,))
  assert result.level == level
  assert ('cuDNN has version 7.4.1, but' in result.found) == (level == 'error')


# A driver with one GPU of compute capability 7.0, whose functions succeed and do nothing.
STUB_DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { *version = 10000; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "Stub", size); return 0; }
int cuDeviceComputeCapability(int* major, int* minor, int device) {
  *major = 7; *minor = 0; return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = 64; return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)16 << 30; return 0; }
int cuDeviceGetPCIBusId(char* name, int size, int device) {
  strncpy(name, "0000:00:04.0", size); return 0;
}
int cuDeviceGetProperties(int* properties, int device) { memset(properties, 0, 64); return 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { *free = *total = (size_t)16 << 30; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)8; return 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)8; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0; *is_active = 1; return 0;
}
int cuDevicePrimaryCtxSetFlags(int device, unsigned flags) { return 0; }
"""


@pytest.mark.skipif(shutil.which('gcc') is None, reason='requires a C compiler')
@pytest.mark.skipif(has_onednn(), reason='the build with oneDNN does not support GPUs')
def test_the_libraries_that_tensorflow_loads(tmp_path):
  """With a stand-in for the driver, TensorFlow names each library that it cannot load."""
  (tmp_path / 'driver.c').write_text(STUB_DRIVER)
  subprocess.check_call(['gcc', '-w', '-shared', '-fPIC', '-o', str(tmp_path / 'libcuda.so.1'),
                         str(tmp_path / 'driver.c')])
  done = run_process(
      sys.executable, '-c', 'import tensorflow as tf; print(tf.test.is_gpu_available())',
      env={'LD_LIBRARY_PATH': str(tmp_path), 'TF_CPP_MIN_LOG_LEVEL': '0'})
  assert done.stdout.split() == ['False'], done.stderr
  assert set(re.findall("Could not load dynamic library '([^']+)'", done.stderr)) == set(
      hardware._CUDA_LIBRARIES)


FAILS_TO_LIST_GPUS = '''
import os, signal
from unittest.mock import MagicMock
__version__, config, test = '1.15.9', MagicMock(), MagicMock(is_built_with_cuda=bool)
config.experimental.list_physical_devices = lambda kind: os.kill(os.getpid(), signal.SIGSEGV)
'''


def test_tensorflow_fails(tmp_path, monkeypatch):
  """tests/modes/test_doctor.py has an import that crashes, and the real TensorFlow."""
  for folder in ('tensorflow', 'tensorflow/compat', 'tensorflow/compat/v1'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / '__init__.py').touch()
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  for init, v1, found, remedy in (
      ('raise TypeError("Descriptors cannot be created directly.\\nMore information: there")', '',
       'TypeError: Descriptors cannot be created directly.', 'to see the full error'),
      ('import time; time.sleep(600)', '', 'no answer within ', 'disk'),
      ('', FAILS_TO_LIST_GPUS, 'TensorFlow 1.15.9 in 0.00 s, but it fails to list GPUs: killed by '
       'SIGSEGV', 'CUDA_VISIBLE_DEVICES')):
    (tmp_path / 'tensorflow' / '__init__.py').write_text(init)
    (tmp_path / 'tensorflow' / 'compat' / 'v1' / '__init__.py').write_text(v1)
    imported = tensorflow_probe.import_in_child(1. if 'sleep' in init else 120.)
    check = installation.check_import(imported._replace(secs=0.))
    assert check.level == 'error' and found in check.found and remedy in check.remedy


def test_builds_are_measured_where_they_are_installed(tmp_path, monkeypatch):
  """With stand-ins for Python; tests/modes/test_doctor.py has the real training."""
  def install(venv, *script):
    python = tmp_path / venv / 'bin' / 'python'
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text('\n'.join(script))
    python.chmod(0o755)
    return str(python)

  def trains(rate):  # And not as a worker of the cluster of the run that is checked.
    return ['#!/bin/sh', 'test -z "$TF_CONFIG$CUDA_VISIBLE_DEVICES" && echo starting &&',
            'echo \'{"examples_per_sec": %s}\'' % rate]

  monkeypatch.setattr(system, 'PACKAGE_PARENT_DIR', str(tmp_path))
  monkeypatch.setattr(sys, 'executable', install('own', *trains(1000)))
  monkeypatch.setenv('TF_CONFIG', '{}')
  stock, onednn = TensorFlowBuild('tensorflow', '1.15.0'), TensorFlowBuild('intel-tensorflow', '1')
  for build, name, other, venv in ((stock, 'stock', 'oneDNN', '.venv-onednn'),
                                   (onednn, 'oneDNN', 'stock', '.venv')):
    assert installation.measure_builds(build) == [BuildRate(name, 1000)]
    install(venv, *trains(2000))
    assert installation.measure_builds(build) == [BuildRate(name, 1000), BuildRate(other, 2000)]
    (tmp_path / venv).rename(tmp_path / 'removed {}'.format(name))
  install('.venv-onednn', '#!/no/such/interpreter')
  assert 'No such file' in installation.measure_builds(stock)[1].failure
