"""Checks the processor, the memory and the GPUs, and whether TensorFlow can use the GPUs.

The checks of GPUs are based on the documentation of TensorFlow, NVML, CUDA and NCCL, and on the
release notes of NVIDIA's containers. They have not been tested on a GPU.
"""

import glob
import os
import re
import resource
import shutil
from typing import Iterator, NamedTuple, Optional, Tuple

from estimator_train.modes.doctor.installation import TensorFlowBuild
from estimator_train.modes.doctor.results import CheckResult, error, ok, warning
from estimator_train.system import machine
from estimator_train.system.child_process import run_python
from estimator_train.system.formatting import format_bytes
from estimator_train.system.tensorflow_probe import ImportResult

# Training on Fashion-MNIST needs 0.5 GB. An image network on a CPU needs several times as much.
_RECOMMENDED_MEMORY_BYTES = 2 * 10**9
_MIN_OPEN_FILES = 1024  # The default on Linux, and enough for every run.
_CGROUP_V2_CPU_MAX = '/sys/fs/cgroup/cpu.max'
_CGROUP_V1_CPU_QUOTA = '/sys/fs/cgroup/cpu/cpu.cfs_quota_us'
_CGROUP_V1_CPU_PERIOD = '/sys/fs/cgroup/cpu/cpu.cfs_period_us'

NVIDIA_CONTAINER = 'nvcr.io/nvidia/tensorflow:23.03-tf1-py3'
# The timeout of child processes. The first call of NVML after boot loads the driver, which takes
# seconds per GPU.
_TIMEOUT_SECS = 30.
_PCI_DEVICES = '/sys/bus/pci/devices/*'
_NVIDIA_VENDOR_ID, _DISPLAY_CLASS_PREFIX = '0x10de', '0x03'

# (lowest compute capability that the build supports, lowest one that is too new for the build).
_STOCK_CAPABILITIES = ((3, 5), (8, 0))  # The stock build, with CUDA 10.0.
_NVIDIA_CAPABILITIES = ((6, 0), (10, 0))  # NVIDIA's container, with CUDA 12.1.
# The lowest version of the driver for CUDA 10.0, and for NVIDIA's container on data-center GPUs.
_STOCK_MIN_DRIVER, _NVIDIA_MIN_DRIVER = (410, 48), (450, 51)

# Prints a line per GPU. Without a driver, there is no NVML library, and the code prints nothing.
_NVML_CODE = '''
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
# The stock build of TensorFlow loads these libraries when it finds a GPU. If one of them cannot be
# loaded, TensorFlow uses no GPU.
_CUDA_LIBRARIES = ('libcudart.so.10.0', 'libcublas.so.10.0', 'libcufft.so.10.0',
                   'libcurand.so.10.0', 'libcusolver.so.10.0', 'libcusparse.so.10.0',
                   'libcudnn.so.7')
# Prints the version of cuDNN, such as 7605, if it is among the libraries.
_LOAD_LIBRARIES_CODE = '''
import ctypes, sys
for name in sys.argv[1:]:
  library = ctypes.CDLL(name)
  if 'cudnn' in name:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    print([library.cudnnGetVersion()])
'''
# TensorFlow 1.15.0 was compiled with cuDNN 7.6.0, and rejects lower minor versions in its first
# convolution (https://github.com/tensorflow/tensorflow/issues/35376).
_MIN_CUDNN_VERSION = 7600
_HANG_REMEDY = 'if training hangs, give --all_reduce_alg=hierarchical_copy'


class Gpu(NamedTuple):
  """A GPU as described by NVML.

  Attributes:
    capability: the compute capability (major, minor).
  """
  name: str
  capability: Tuple[int, int]
  driver: str
  memory_bytes: int


class GpuInventory(NamedTuple):
  """The GPUs of the machine.

  Attributes:
    failure: the reason why NVML failed; None if NVML works, or if there is no driver.
    num_pci_devices: the number of NVIDIA's graphics devices, which the kernel lists even without a
      driver.
  """
  gpus: Tuple[Gpu, ...] = ()
  failure: Optional[str] = None
  num_pci_devices: int = 0


def inspect_gpus() -> GpuInventory:
  """Lists the GPUs with NVML, NVIDIA's management library, which comes with the driver."""
  child = run_python(['-c', _NVML_CODE], _TIMEOUT_SECS)
  if child.error is not None:
    return GpuInventory(failure=child.error)
  gpus = tuple(Gpu(name, (major, minor), driver, memory_bytes)
               for name, (major, minor), driver, memory_bytes in child.json_values)
  return GpuInventory(gpus, None, sum(map(_is_nvidia_gpu, glob.glob(_PCI_DEVICES))))


def _is_nvidia_gpu(device_folder: str) -> bool:
  return (machine.read_kernel_file(device_folder + '/vendor').strip() == _NVIDIA_VENDOR_ID
          and machine.read_kernel_file(device_folder + '/class').startswith(_DISPLAY_CLASS_PREFIX))


def check_gpus(inventory: GpuInventory,
               build: Optional[TensorFlowBuild]) -> Iterator[CheckResult]:
  """Lists the GPUs, and checks that the build of TensorFlow and the driver support them."""
  if inventory.failure is not None:
    yield error('gpus', 'the driver fails: ' + inventory.failure,
                'see dmesg; reinstall the driver or restart the machine; in a container, restart '
                'the container')
  elif inventory.gpus:
    yield ok('gpus', ', '.join('{} ({} MiB, compute capability {})'.format(
        gpu.name, gpu.memory_bytes >> 20, _format_version(gpu.capability))
                               for gpu in inventory.gpus),
             'scripts/verify_gpu verifies in 15 minutes that training works on them')
    if build is not None:
      for gpu in sorted(set(inventory.gpus)):
        yield from _check_capability(gpu, build)
      yield _check_driver(inventory.gpus[0].driver, build)
  elif inventory.num_pci_devices:
    yield warning('gpus', '{} NVIDIA device(s) in the machine, but no driver works here'.format(
        inventory.num_pci_devices), 'install the driver; in Docker, give `--gpus all`')
  else:
    yield ok('gpus', 'no GPU: training runs on the CPU')


def _check_capability(gpu: Gpu, build: TensorFlowBuild) -> Iterator[CheckResult]:
  lowest, too_new = _NVIDIA_CAPABILITIES if build.is_nvidia_build else _STOCK_CAPABILITIES
  if lowest <= gpu.capability < too_new:
    return
  if gpu.capability >= _NVIDIA_CAPABILITIES[1] or gpu.capability < _STOCK_CAPABILITIES[0]:
    remedy = 'no build of TensorFlow 1.15 supports it: use another GPU, or --num_gpus=0'
  elif build.is_nvidia_build:
    remedy = 'use the stock build, tensorflow 1.15.0 with CUDA 10.0'
  else:
    remedy = 'use NVIDIA\'s build: the container ' + NVIDIA_CONTAINER
  yield error('gpu build', '{} has compute capability {}; {} {} supports {} up to, but not '
              'including, {}'.format(gpu.name, _format_version(gpu.capability), build.name,
                                     build.version, _format_version(lowest),
                                     _format_version(too_new)), remedy)


def _check_driver(driver: str, build: TensorFlowBuild) -> CheckResult:
  version = tuple(int(number) for number in re.findall(r'\d+', driver)[:2])
  if not version:
    return ok('gpu driver', 'its version is unknown')
  lowest = _NVIDIA_MIN_DRIVER if build.is_nvidia_build else _STOCK_MIN_DRIVER
  if version >= lowest:
    return ok('gpu driver', driver)
  # NVIDIA's older containers work with older drivers, so this is only a warning with its build.
  return (warning if build.is_nvidia_build else error)(
      'gpu driver', '{}, but {} {} needs {} or later'.format(
          driver, build.name, build.version, _format_version(lowest)), 'install a newer driver')


def _format_version(version: Tuple[int, ...]) -> str:
  return '.'.join(map(str, version))


def check_usable_gpus(num_gpus: int, build: Optional[TensorFlowBuild],
                      import_result: ImportResult) -> Iterator[CheckResult]:
  """Checks that TensorFlow can use the GPUs, if the build and the driver support them.

  Args:
    build: None if it is unknown.
  """
  if build is not None and not build.is_nvidia_build:  # NVIDIA's build includes CUDA's libraries.
    yield check_libraries()
  if import_result.num_gpus is not None:
    yield _check_visible_gpus(num_gpus, import_result.num_gpus, import_result.has_cuda)
  if num_gpus > 1:
    yield _check_nccl(num_gpus)


def check_libraries(names: Tuple[str, ...] = _CUDA_LIBRARIES) -> CheckResult:
  """Checks that a child process can load the libraries of CUDA 10.0 and cuDNN 7."""
  child = run_python(['-c', _LOAD_LIBRARIES_CODE, *names], _TIMEOUT_SECS)
  if child.error is None:
    for version, in child.json_values:
      if version < _MIN_CUDNN_VERSION:
        return error('cuda', 'cuDNN has version {}.{}.{}, but TensorFlow 1.15 requires 7.6 or a '
                     'later 7'.format(version // 1000, version // 100 % 10, version % 100),
                     'install cuDNN 7.6.5 for CUDA 10.0')
    return ok('cuda', 'the libraries of CUDA 10.0 and cuDNN 7 can be loaded')
  return error('cuda', 'cannot load the libraries: ' + child.error,
               'install CUDA 10.0 and cuDNN 7, and add their folders to LD_LIBRARY_PATH; the '
               'image tensorflow/tensorflow:1.15.0-gpu-py3 has them')


def _check_visible_gpus(num_gpus: int, num_visible: int, has_cuda: bool) -> CheckResult:
  """Checks that TensorFlow sees the GPUs that NVML lists."""
  found = 'TensorFlow sees {} of {} GPUs'.format(num_visible, num_gpus)
  visible_devices = os.environ.get('CUDA_VISIBLE_DEVICES')
  if num_visible >= num_gpus:
    return ok('gpus seen', found)
  if visible_devices is not None:
    return warning('gpus seen', '{}, with CUDA_VISIBLE_DEVICES={}'.format(found, visible_devices),
                   'unset CUDA_VISIBLE_DEVICES to use all')
  if not has_cuda:
    return error('gpus seen', found + ': the installed build does not support GPUs',
                 'install tensorflow==1.15.0 (for later 1.15 releases, tensorflow-gpu)')
  return error('gpus seen', found, 'the usual reasons: a CUDA library that cannot be loaded, an '
               'old driver, a GPU that the build does not support (see the lines above), or '
               'another user\'s exclusive process (see nvidia-smi)')


def _check_nccl(num_gpus: int) -> CheckResult:
  """Checks that the limits of shared and locked memory are high enough for NCCL.

  NCCL's documentation recommends 1 GB of shared memory, and no limit of locked memory. It does not
  name a sufficient limit of locked memory, so any such limit is a warning.
  """
  shm_bytes = shutil.disk_usage('/dev/shm').total if os.path.isdir('/dev/shm') else 0
  locked_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
  if shm_bytes >= 1 << 30 and locked_bytes == resource.RLIM_INFINITY:
    return ok('nccl', '/dev/shm and locked memory are sufficient', _HANG_REMEDY)
  found = '/dev/shm has {} MB, and a process may lock {} of memory (ulimit -l)'.format(
      shm_bytes >> 20, 'any amount' if locked_bytes == resource.RLIM_INFINITY
      else '{} kB'.format(locked_bytes >> 10))
  return warning('nccl', '{}; for {} GPUs, NCCL may need 1 GB, and no limit'.format(
      found, num_gpus), 'in Docker, give `--shm-size=1g --ulimit memlock=-1`; ' + _HANG_REMEDY)


def read_quota_cores() -> Optional[float]:
  """Returns the CPU time per second that the container may use, in seconds; None: no limit."""
  text = machine.read_kernel_file(_CGROUP_V2_CPU_MAX) or '{} {}'.format(
      *map(machine.read_kernel_file, (_CGROUP_V1_CPU_QUOTA, _CGROUP_V1_CPU_PERIOD)))
  # Without a limit, the quota is "max" or -1.
  numbers = re.match(r'(\d+)\s+(\d+)$', text.strip())
  return int(numbers.group(1)) / int(numbers.group(2)) if numbers else None


def check_cpu(flags: str, build: Optional[TensorFlowBuild]) -> CheckResult:
  """Checks that the CPU has the instructions that the build of TensorFlow uses.

  Args:
    flags: the features of the CPU in /proc/cpuinfo, separated by spaces.
    build: None if it is unknown.
  """
  # AVX-512 consists of several features; avx512f is the one that all CPUs with AVX-512 have.
  features = [name for name, flag in (('AVX', 'avx'), ('AVX2', 'avx2'), ('AVX-512', 'avx512f'))
              if flag in flags.split()]
  if not flags:
    return warning('cpu', 'its features are unknown',
                   'TensorFlow needs AVX: see `grep avx /proc/cpuinfo`')
  if 'AVX' not in features:
    return error('cpu', 'no AVX, which the builds of TensorFlow 1.15 need',
                 'use another machine, or enable CPU passthrough of the virtual machine')
  if build is not None and build.name == 'intel-tensorflow-avx512' and 'AVX-512' not in features:
    return error('cpu', ', '.join(features) + '; {} needs AVX-512'.format(build.name),
                 'install intel-tensorflow instead')
  return ok('cpu', ', '.join(features))


def check_cores(quota_cores: Optional[float], has_onednn: bool) -> CheckResult:
  """Checks that the container gets the CPU time of all cores that it sees.

  Args:
    quota_cores: see `read_quota_cores`.
  """
  cores = machine.available_cores()
  if quota_cores is None or quota_cores >= cores:
    return ok('cores', str(cores))
  # With oneDNN, operations run one after the other, so only the number of OpenMP threads that they
  # use needs a limit, which is OMP_NUM_THREADS.
  remedy = ('set `OMP_NUM_THREADS={0}` and give ' if has_onednn
            else 'give --inter_op_parallelism_threads={0} ')
  return warning('cores', '{}, but the container gets the CPU time of {:g} core(s); TensorFlow '
                 'starts one thread per core, and these threads are throttled'.format(
                     cores, round(quota_cores, 2)),
                 (remedy + '--intra_op_parallelism_threads={0} --num_parallel_calls={0}').format(
                     max(1, int(quota_cores))))


def check_limits() -> Iterator[CheckResult]:
  """Checks the available memory, within the limit of the container, and the open-file limit."""
  available = machine.available_bytes()
  found = format_bytes(available) + ' available'
  if available < _RECOMMENDED_MEMORY_BYTES:
    yield warning('memory', found, 'stop other programs, or raise the container\'s limit; '
                  '--cache=none and a smaller --batch_size need less memory')
  else:
    yield ok('memory', found)
  limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
  if limit == resource.RLIM_INFINITY or limit >= _MIN_OPEN_FILES:
    yield ok('open files', 'no limit' if limit == resource.RLIM_INFINITY else
             'up to {} per process'.format(limit))
  else:
    yield warning('open files', 'a process may have only {} open'.format(limit),
                  'set `ulimit -n {}`'.format(_MIN_OPEN_FILES))
