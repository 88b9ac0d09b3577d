"""CPU settings: malloc parameters for TensorFlow's stock build, variables for that with oneDNN.

TensorFlow reads the variables when it is imported. To measure their effect on a machine, run
`tests/benchmarks/run.sh variables_stock variables_onednn`.
"""

import glob
import importlib.util
import os
from typing import Dict

from estimator_train.process import logs, malloc, memory

# By default OpenMP's threads spin for 200 ms after an operation, on cores that the threads of the
# input pipeline could use. 30 ms is about one step of a small network, so that the threads still
# need not be woken for each operation. Their number, that of the available cores, needs no setting.
ONEDNN_VARIABLES = {'KMP_BLOCKTIME': '30'}
# MKL, which multiplies matrices in that build, uses AVX2 on processors of AMD only if this selects
# it. On Intel's processors MKL chooses by itself.
ONEDNN_AMD_VARIABLES = {'MKL_DEBUG_CPU_TYPE': '5'}
# The limit of that build's allocator in bytes; by default all of the machine's memory. After the
# system has refused memory below the limit, the allocator cannot grow any more.
MEMORY_LIMIT_VARIABLE = 'TF_MKL_ALLOC_MAX_BYTES'
VARIABLE_NAMES = (*ONEDNN_VARIABLES, *ONEDNN_AMD_VARIABLES, MEMORY_LIMIT_VARIABLE)

_CPU_INFO = '/proc/cpuinfo'


def tune_cpu() -> bool:
  """Applies the settings that the user has not set; call this before TensorFlow is imported.

  Returns:
    Whether malloc keeps freed memory from now on, until `malloc.return_freed_memory`.
  """
  if has_onednn():
    for name, value in onednn_variables().items():
      os.environ.setdefault(name, value)
    return False
  # With GPUs, the tensors on CPUs are those of the input pipeline, whose many threads would compete
  # for the lock of malloc's only arena.
  return not logs.has_nvidia_driver() and malloc.keep_freed_memory()


def onednn_variables() -> Dict[str, str]:
  """Returns the variables for the build with oneDNN on this processor, within the memory limits."""
  variables = dict(ONEDNN_VARIABLES, **(ONEDNN_AMD_VARIABLES if _is_amd_with_avx2() else {}))
  limit = memory.process_limit_bytes()
  return variables if limit is None else dict(variables, **{MEMORY_LIMIT_VARIABLE: str(limit)})


def has_onednn() -> bool:
  """Whether the TensorFlow that is imported, or would be, is the build with oneDNN."""
  # Found by the folder of the distribution: an import would be slow, and too late for variables.
  spec = importlib.util.find_spec('tensorflow')
  return spec is not None and spec.origin is not None and bool(glob.glob(os.path.join(
      glob.escape(os.path.dirname(os.path.dirname(spec.origin))), 'intel_tensorflow*')))


def _is_amd_with_avx2() -> bool:
  try:
    with open(_CPU_INFO, encoding='utf-8', errors='replace') as file:
      first = file.read(10000).partition('\n\n')[0].split()
  except OSError:
    return False
  return 'AuthenticAMD' in first and 'avx2' in first
