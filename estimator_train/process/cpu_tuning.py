"""CPU settings: malloc for TensorFlow's stock build, environment variables for that with oneDNN.

TensorFlow reads these variables when it is imported. To measure their effect on a machine, run
`tests/benchmarks/run.sh variables_stock variables_onednn`.
"""

import glob
import importlib.util
import os
from typing import Dict

from estimator_train.process import logs, malloc, memory

# By default OpenMP's threads spin for 200 ms after an operation, on cores that the threads of the
# input pipeline could use. 30 ms is about one step of a small network, so that the threads still
# need not be woken for each operation. By default there is one OpenMP thread per available core.
ONEDNN_VARIABLES = {'KMP_BLOCKTIME': '30'}
# MKL, which multiplies matrices in the build with oneDNN, uses AVX2 on AMD processors only if this
# variable selects it. On Intel processors, MKL selects the instruction set itself.
ONEDNN_AMD_VARIABLES = {'MKL_DEBUG_CPU_TYPE': '5'}
# The limit of that build's allocator in bytes; by default all of the machine's memory. Once the
# system has refused an allocation below this limit, the allocator cannot grow any more.
MEMORY_LIMIT_VARIABLE = 'TF_MKL_ALLOC_MAX_BYTES'
VARIABLE_NAMES = (*ONEDNN_VARIABLES, *ONEDNN_AMD_VARIABLES, MEMORY_LIMIT_VARIABLE)

_CPU_INFO = '/proc/cpuinfo'


def tune_cpu() -> bool:
  """Applies the settings that the user has not set; call this before TensorFlow is imported.

  Returns:
    Whether malloc keeps freed memory from now on, until `malloc.return_freed_memory` is called.
  """
  if has_onednn():
    for name, value in onednn_variables().items():
      os.environ.setdefault(name, value)
    return False
  # With GPUs, the tensors on CPUs are those of the input pipeline, whose many threads would compete
  # for the lock of malloc's only arena.
  return not logs.has_nvidia_driver() and malloc.keep_freed_memory()


def onednn_variables() -> Dict[str, str]:
  """Returns the variables for the build with oneDNN on this processor, within the memory limit."""
  variables = dict(ONEDNN_VARIABLES, **(ONEDNN_AMD_VARIABLES if _is_amd_with_avx2() else {}))
  limit = memory.process_limit_bytes()
  return variables if limit is None else dict(variables, **{MEMORY_LIMIT_VARIABLE: str(limit)})


def has_onednn() -> bool:
  """Whether the TensorFlow that this process imports is the build with oneDNN."""
  # Read from the name of a folder, because importing TensorFlow is slow, and variables that are set
  # after the import have no effect.
  spec = importlib.util.find_spec('tensorflow')
  return spec is not None and spec.origin is not None and bool(glob.glob(os.path.join(
      glob.escape(os.path.dirname(os.path.dirname(spec.origin))), 'intel_tensorflow*')))


def _is_amd_with_avx2() -> bool:
  try:
    with open(_CPU_INFO, encoding='utf-8', errors='replace') as file:
      first_core = file.read(10000).partition('\n\n')[0].split()
  except OSError:
    return False
  return 'AuthenticAMD' in first_core and 'avx2' in first_core
