"""Checks the GPUs of the machine, and whether the installed build of TensorFlow supports them.

Based on NVIDIA's documentation (CUDA release notes, the containers' release notes, NVML), and not
tested on a GPU.
"""

import glob
import json
import os
import re
import sys
from typing import List, NamedTuple, Optional, Tuple

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import CheckResult, error, ok, warning
from estimator_train.doctor.packages import Build

CONTAINER = 'nvcr.io/nvidia/tensorflow:23.03-tf1-py3'
DEADLINE_SECS = 20.  # The first call after boot loads the driver, which takes seconds per GPU.
_NVIDIA_DEVICES = '/sys/bus/pci/devices/*'
_NVIDIA, _DISPLAY = '0x10de', '0x03'

# (lowest compute capability, first one that is too new) for CUDA 10.0 with the stock wheels, and
# for CUDA 12.1 in NVIDIA's containers.
_STOCK_CAPABILITIES = ((3, 5), (8, 0))
_NVIDIAS_CAPABILITIES = ((6, 0), (10, 0))
# The minimum driver of CUDA 10.0; and those of CUDA 12.1 in the container: any driver from the last
# one on or, for data-center GPUs, from one of the others on within its branch.
_STOCK_DRIVER = (410, 48)
_NVIDIAS_DRIVERS = ((450, 51), (470, 57), (510, 47), (515, 65), (525, 85), (530, 0))

# Run in a child process, since a driver may hang. Without a driver there is no NVML library either.
_CHILD = '''
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
  """A GPU as described by NVML; `memory` is in bytes."""
  name: str
  capability: Tuple[int, int]
  driver: str
  memory: int


class GpuInventory(NamedTuple):
  """The GPUs of the machine.

  Attributes:
    gpus: the GPUs that NVML lists.
    failure: why NVML failed; None if it did not, or if there is no driver.
    num_pci_devices: number of NVIDIA graphics devices that the kernel lists, even without a driver.
  """
  gpus: Tuple[Gpu, ...] = ()
  failure: Optional[str] = None
  num_pci_devices: int = 0


def inspect_gpus(deadline_secs: float = DEADLINE_SECS) -> GpuInventory:
  """Lists the GPUs with NVML, NVIDIA's management library, which comes with the driver."""
  result = commands.run_command([sys.executable, '-c', _CHILD], deadline_secs)
  if result.code != 0:
    return GpuInventory(failure=result.failure_reason())
  rows = [json.loads(line) for line in result.out.splitlines()]
  gpus = tuple(Gpu(name, (major, minor), driver, memory)
               for name, (major, minor), driver, memory in rows)
  return GpuInventory(gpus, None, _count_pci_devices())


def _count_pci_devices() -> int:
  count = 0
  for folder in glob.glob(_NVIDIA_DEVICES):
    try:
      with open(os.path.join(folder, 'vendor')) as vendor, \
           open(os.path.join(folder, 'class')) as kind:
        count += vendor.read().strip() == _NVIDIA and kind.read().startswith(_DISPLAY)
    except OSError:
      continue
  return count


def check_gpus(inventory: GpuInventory, build: Optional[Build]) -> List[CheckResult]:
  """Lists the GPUs, and checks that the build of TensorFlow and the driver support them."""
  if inventory.failure is not None:
    return [error('gpus', 'the driver fails: ' + inventory.failure,
                  'see dmesg; reinstall the driver or restart the machine; in a container, restart '
                  'the container')]
  if not inventory.gpus:
    if inventory.num_pci_devices:
      return [warning('gpus', '{} by NVIDIA in the machine, but no driver works here'.format(
          inventory.num_pci_devices), 'install the driver; in Docker, give `--gpus all`')]
    return [ok('gpus', 'no GPU: training runs on the CPU')]
  results = [ok('gpus', ', '.join('{} ({} MiB, compute capability {})'.format(
      gpu.name, gpu.memory >> 20, _dotted(gpu.capability)) for gpu in inventory.gpus))]
  if build is not None:
    for gpu in sorted(set(inventory.gpus)):
      results.extend(_check_capability(gpu, build))
    results.append(_check_driver(inventory.gpus[0].driver, build))
  return results


def _check_capability(gpu: Gpu, build: Build) -> List[CheckResult]:
  lowest, too_new = _NVIDIAS_CAPABILITIES if build.is_nvidias else _STOCK_CAPABILITIES
  if lowest <= gpu.capability < too_new:
    return []
  found = '{} has compute capability {}; {} {} supports {} to below {}'.format(
      gpu.name, _dotted(gpu.capability), build.name, build.version, _dotted(lowest),
      _dotted(too_new))
  if gpu.capability >= _NVIDIAS_CAPABILITIES[1] or gpu.capability < _STOCK_CAPABILITIES[0]:
    remedy = 'no build of TensorFlow 1.15 supports it: use another GPU, or --num_gpus=0'
  elif build.is_nvidias:
    remedy = 'use the stock build, tensorflow 1.15.0 with CUDA 10.0'
  else:
    remedy = 'use NVIDIA\'s build: the container ' + CONTAINER
  return [error('gpu build', found, remedy)]


def _check_driver(driver: str, build: Build) -> CheckResult:
  version = tuple(int(part) for part in re.findall(r'\d+', driver)[:2])
  if not version:
    return ok('gpu driver', 'its version is unknown')
  if not build.is_nvidias:
    if version >= _STOCK_DRIVER:
      return ok('gpu driver', driver)
    return error('gpu driver', '{}, and CUDA 10.0 needs {}'.format(driver, _dotted(_STOCK_DRIVER)),
                 'install a newer driver')
  if version >= _NVIDIAS_DRIVERS[-1] or any(
      version[:1] == branch[:1] and version >= branch for branch in _NVIDIAS_DRIVERS):
    return ok('gpu driver', driver)
  # A warning, since containers before 23.03 work with older drivers.
  return warning('gpu driver', '{}, and the container 23.03 needs 530 or, on data-center GPUs, '
                 'one of {} or later in its branch'.format(
                     driver, ', '.join(map(_dotted, _NVIDIAS_DRIVERS[:-1]))),
                 'install a newer driver')


def _dotted(version: Tuple[int, ...]) -> str:
  return '.'.join(map(str, version))
