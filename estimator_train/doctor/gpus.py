"""The GPUs of the machine, and whether the build of TensorFlow that is installed knows them.

Written from NVIDIA's documentation (CUDA release notes, the containers' release notes, NVML), and
not run on a GPU.
"""

import glob
import json
import os
import re
import sys
from typing import List, NamedTuple, Optional, Tuple

from estimator_train.doctor import commands
from estimator_train.doctor.check_results import Finding, error, ok, warning
from estimator_train.doctor.packages import Build

CONTAINER = 'nvcr.io/nvidia/tensorflow:23.03-tf1-py3'
DEADLINE_SECS = 20.  # The first call after boot loads the driver, which takes seconds a GPU.
_NVIDIA_DEVICES = '/sys/bus/pci/devices/*'
_NVIDIA, _DISPLAY = '0x10de', '0x03'

# (lowest compute capability, first one that is too new): what CUDA 10.0 and the stock wheels know,
# and what CUDA 12.1 and NVIDIA's containers do.
_STOCK_CAPABILITIES = ((3, 5), (8, 0))
_NVIDIAS_CAPABILITIES = ((6, 0), (10, 0))
# Of CUDA 10.0; and of the container's CUDA 12.1: any driver from the last on, or a later one of the
# same branch as the others, for data-center GPUs.
_STOCK_DRIVER = (410, 48)
_NVIDIAS_DRIVERS = ((450, 51), (470, 57), (510, 47), (515, 65), (525, 85), (530, 0))

# In a child process, as a driver may hang. Without a driver there is no library either.
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
  """A GPU as NVML describes it; `memory` is in bytes."""
  name: str
  capability: Tuple[int, int]
  driver: str
  memory: int


class Gpus(NamedTuple):
  """What there is.

  Attributes:
    gpus: what NVML lists.
    failure: why it does not; None when it does, or when there is no driver.
    num_pci_devices: graphics devices by NVIDIA that the kernel lists, with a driver or without.
  """
  gpus: Tuple[Gpu, ...] = ()
  failure: Optional[str] = None
  num_pci_devices: int = 0


def look(deadline_secs: float = DEADLINE_SECS) -> Gpus:
  """Asks NVML, NVIDIA's management library, which comes with the driver."""
  done = commands.run([sys.executable, '-c', _CHILD], deadline_secs)
  if done.code != 0:
    return Gpus(failure=done.reason())
  rows = [json.loads(line) for line in done.out.splitlines()]
  return Gpus(tuple(Gpu(name, (major, minor), driver, memory)
                    for name, (major, minor), driver, memory in rows), None, _num_pci_devices())


def _num_pci_devices() -> int:
  count = 0
  for folder in glob.glob(_NVIDIA_DEVICES):
    try:
      with open(os.path.join(folder, 'vendor')) as vendor, \
           open(os.path.join(folder, 'class')) as kind:
        count += vendor.read().strip() == _NVIDIA and kind.read().startswith(_DISPLAY)
    except OSError:
      continue
  return count


def check(found: Gpus, build: Optional[Build]) -> List[Finding]:
  """Says which GPUs there are, and whether the build and the driver fit them."""
  if found.failure is not None:
    return [error('gpus', 'the driver fails: ' + found.failure,
                  'see dmesg; install it again or restart the machine. In a '
                  'container, start that again')]
  if not found.gpus:
    if found.num_pci_devices:
      return [warning('gpus', '{} by NVIDIA in the machine, but no driver works here'.format(
          found.num_pci_devices), 'install the driver; in Docker, give `--gpus all`')]
    return [ok('gpus', 'no GPU: training is on the CPU')]
  findings = [ok('gpus', ', '.join('{} ({} MiB, compute capability {})'.format(
      gpu.name, gpu.memory >> 20, _dotted(gpu.capability)) for gpu in found.gpus))]
  if build is not None:
    for gpu in sorted(set(found.gpus)):
      findings.extend(_check_capability(gpu, build))
    findings.append(_check_driver(found.gpus[0].driver, build))
  return findings


def _check_capability(gpu: Gpu, build: Build) -> List[Finding]:
  lowest, too_new = _NVIDIAS_CAPABILITIES if build.is_nvidias else _STOCK_CAPABILITIES
  if lowest <= gpu.capability < too_new:
    return []
  found = '{} has compute capability {}; {} {} knows {} to below {}'.format(
      gpu.name, _dotted(gpu.capability), build.name, build.version, _dotted(lowest),
      _dotted(too_new))
  if gpu.capability >= _NVIDIAS_CAPABILITIES[1] or gpu.capability < _STOCK_CAPABILITIES[0]:
    remedy = 'no build of TensorFlow 1.15 knows it: use another, or --num_gpus=0'
  elif build.is_nvidias:
    remedy = 'use the stock build, tensorflow 1.15.0 with CUDA 10.0'
  else:
    remedy = 'use NVIDIA\'s build: the container ' + CONTAINER
  return [error('gpu build', found, remedy)]


def _check_driver(driver: str, build: Build) -> Finding:
  version = tuple(int(part) for part in re.findall(r'\d+', driver)[:2])
  if not version:
    return ok('gpu driver', 'its version is not known')
  if not build.is_nvidias:
    if version >= _STOCK_DRIVER:
      return ok('gpu driver', driver)
    return error('gpu driver', '{}, and CUDA 10.0 needs {}'.format(driver, _dotted(_STOCK_DRIVER)),
                 'install a newer driver')
  if version >= _NVIDIAS_DRIVERS[-1] or any(
      version[:1] == branch[:1] and version >= branch for branch in _NVIDIAS_DRIVERS):
    return ok('gpu driver', driver)
  # Earlier containers than 23.03 make do with earlier drivers.
  return warning('gpu driver', '{}, and the container 23.03 needs 530, or on data-center GPUs '
                 'one of {} or later in its branch'.format(
                     driver, ', '.join(map(_dotted, _NVIDIAS_DRIVERS[:-1]))),
                 'install a newer driver')


def _dotted(version: Tuple[int, ...]) -> str:
  return '.'.join(map(str, version))
