"""Checks the GPUs of the machine, and whether the installed build of TensorFlow supports them.

These checks are based on NVIDIA's documentation of NVML and on the release notes of CUDA and of
NVIDIA's containers. They have not been tested on a GPU.
"""

import glob
import json
import os
import re
import sys
from typing import List, NamedTuple, Optional, Tuple

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.doctor.packages import TensorFlowBuild

NVIDIA_CONTAINER = 'nvcr.io/nvidia/tensorflow:23.03-tf1-py3'
TIMEOUT_SECS = 20.  # The first call after boot loads the driver, which takes seconds per GPU.
_PCI_DEVICES = '/sys/bus/pci/devices/*'
_NVIDIA_VENDOR_ID, _DISPLAY_CLASS_PREFIX = '0x10de', '0x03'

# The lowest compute capability that a build supports, and the first that is too new for the build.
_STOCK_CAPABILITIES = ((3, 5), (8, 0))  # The stock build, with CUDA 10.0.
_NVIDIA_CAPABILITIES = ((6, 0), (10, 0))  # NVIDIA's container, with CUDA 12.1.
# The minimum driver version for the stock build.
_STOCK_MIN_DRIVER = (410, 48)
# NVIDIA's container accepts the last of these driver versions and later ones with any GPU. With a
# data-center GPU, the container also accepts each of the other versions listed, and later versions
# of the same branch (major version).
_NVIDIA_MIN_DRIVERS = ((450, 51), (470, 57), (510, 47), (515, 65), (525, 85), (530, 0))

# This code runs in a child process, because a driver may hang. Without a driver, there is no NVML
# library, and the code prints nothing.
_CHILD_CODE = '''
import json, pynvml
try:
  pynvml.nvmlInit()
except pynvml.NVMLError_LibraryNotFound:
  raise SystemExit
driver = pynvml.nvmlSystemGetDriverVersion()
for index in range(pynvml.nvmlDeviceGetCount()):
  gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
  print(json.dumps([pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetCudaComputeCapability(gpu),
                    driver, pynvml.nvmlDeviceGetMemoryInfo(gpu).total]))
'''


class Gpu(NamedTuple):
  """A GPU as described by NVML.

  Attributes:
    name: name of the product.
    capability: compute capability, (major, minor).
    driver: version of the driver.
    memory_bytes: total memory of the GPU.
  """
  name: str
  capability: Tuple[int, int]
  driver: str
  memory_bytes: int


class GpuInventory(NamedTuple):
  """The GPUs of the machine.

  Attributes:
    gpus: the GPUs that NVML lists.
    failure: why NVML failed; None if NVML works, or if there is no driver.
    num_pci_devices: number of NVIDIA graphics devices that the kernel lists, even without a driver;
      0 if NVML failed.
  """
  gpus: Tuple[Gpu, ...] = ()
  failure: Optional[str] = None
  num_pci_devices: int = 0


def inspect_gpus(timeout_secs: float = TIMEOUT_SECS) -> GpuInventory:
  """Lists the GPUs with NVML, NVIDIA's management library, which comes with the driver."""
  result = commands.run_command([sys.executable, '-c', _CHILD_CODE], timeout_secs)
  if result.exit_code != 0:
    return GpuInventory(failure=result.failure_reason())
  rows = [json.loads(line) for line in result.stdout.splitlines()]
  gpus = tuple(Gpu(name, (major, minor), driver, memory_bytes)
               for name, (major, minor), driver, memory_bytes in rows)
  return GpuInventory(gpus, None, _count_pci_devices())


def _count_pci_devices() -> int:
  count = 0
  for folder in glob.glob(_PCI_DEVICES):
    try:
      with open(os.path.join(folder, 'vendor')) as vendor, \
           open(os.path.join(folder, 'class')) as device_class:
        count += (vendor.read().strip() == _NVIDIA_VENDOR_ID
                  and device_class.read().startswith(_DISPLAY_CLASS_PREFIX))
    except OSError:
      continue
  return count


def check_gpus(inventory: GpuInventory, build: Optional[TensorFlowBuild]) -> List[CheckResult]:
  """Lists the GPUs, and checks that the build of TensorFlow and the driver support them."""
  if inventory.failure is not None:
    return [error('gpus', 'the driver fails: ' + inventory.failure,
                  'see dmesg; reinstall the driver or restart the machine; in a container, restart '
                  'the container')]
  if not inventory.gpus:
    if inventory.num_pci_devices:
      return [warning('gpus', '{} NVIDIA device(s) in the machine, but no driver works here'.format(
          inventory.num_pci_devices), 'install the driver; in Docker, give `--gpus all`')]
    return [ok('gpus', 'no GPU: training runs on the CPU')]
  results = [ok('gpus', ', '.join('{} ({} MiB, compute capability {})'.format(
      gpu.name, gpu.memory_bytes >> 20, _format_version(gpu.capability))
                                  for gpu in inventory.gpus))]
  if build is not None:
    for gpu in sorted(set(inventory.gpus)):
      results.extend(_check_capability(gpu, build))
    results.append(_check_driver(inventory.gpus[0].driver, build))
  return results


def _check_capability(gpu: Gpu, build: TensorFlowBuild) -> List[CheckResult]:
  lowest, too_new = _NVIDIA_CAPABILITIES if build.is_nvidia_build else _STOCK_CAPABILITIES
  if lowest <= gpu.capability < too_new:
    return []
  found = '{} has compute capability {}; {} {} supports {} up to, but not including, {}'.format(
      gpu.name, _format_version(gpu.capability), build.name, build.version, _format_version(lowest),
      _format_version(too_new))
  if gpu.capability >= _NVIDIA_CAPABILITIES[1] or gpu.capability < _STOCK_CAPABILITIES[0]:
    remedy = 'no build of TensorFlow 1.15 supports it: use another GPU, or --num_gpus=0'
  elif build.is_nvidia_build:
    remedy = 'use the stock build, tensorflow 1.15.0 with CUDA 10.0'
  else:
    remedy = 'use NVIDIA\'s build: the container ' + NVIDIA_CONTAINER
  return [error('gpu build', found, remedy)]


def _check_driver(driver: str, build: TensorFlowBuild) -> CheckResult:
  version = tuple(int(number) for number in re.findall(r'\d+', driver)[:2])
  if not version:
    return ok('gpu driver', 'its version is unknown')
  if not build.is_nvidia_build:
    if version >= _STOCK_MIN_DRIVER:
      return ok('gpu driver', driver)
    return error('gpu driver', '{}, but CUDA 10.0 needs {} or later'.format(
        driver, _format_version(_STOCK_MIN_DRIVER)), 'install a newer driver')
  if version >= _NVIDIA_MIN_DRIVERS[-1] or any(
      version[:1] == minimum[:1] and version >= minimum for minimum in _NVIDIA_MIN_DRIVERS):
    return ok('gpu driver', driver)
  # This is not an error, because containers before 23.03 work with older drivers.
  return warning('gpu driver', '{}, but NVIDIA\'s container 23.03 needs 530 or later or, on '
                 'data-center GPUs, one of {} or later in the same branch'.format(
                     driver, ', '.join(map(_format_version, _NVIDIA_MIN_DRIVERS[:-1]))),
                 'install a newer driver')


def _format_version(version: Tuple[int, ...]) -> str:
  return '.'.join(map(str, version))
