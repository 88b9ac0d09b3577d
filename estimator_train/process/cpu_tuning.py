"""What makes TensorFlow faster on CPUs: malloc for the stock build, variables for the other one.

TensorFlow reads the variables when it is imported. Measured by
`tests/benchmarks/run.sh variables_stock variables_onednn`, on any machine.
"""

import glob
import importlib.util
import os
from typing import Dict

from estimator_train.process import logs, malloc, memory

# OpenMP's threads spin for 200 ms after an operation, on cores that the input's threads could use.
# This is about a step of a small network: they need not be woken for each operation of it. By
# themselves they are as many as the process may use cores.
ONEDNN = {'KMP_BLOCKTIME': '30'}
# MKL, which that build multiplies matrices with, knows AVX2 on Intel's processors only; this is
# its own name for it. Theirs it leaves to MKL, which may know better.
ONEDNN_ON_AMD = {'MKL_DEBUG_CPU_TYPE': '5'}
# The most that the allocator of that build takes, in bytes; by itself all of the machine's memory.
# What the system refuses below that leaves it unable to grow.
MEMORY_LIMIT = 'TF_MKL_ALLOC_MAX_BYTES'
NAMES = (*ONEDNN, *ONEDNN_ON_AMD, MEMORY_LIMIT)

_CPU_INFO = '/proc/cpuinfo'


def set_up() -> bool:
  """Sets what the user has not set; to be called before TensorFlow is imported.

  Returns:
    Whether malloc keeps freed memory now, for `malloc.return_freed_memory` to end.
  """
  if has_onednn():
    for name, value in onednn().items():
      os.environ.setdefault(name, value)
    return False
  # Where there are GPUs the CPUs' tensors are the input's, many threads' at once, and the only
  # arena of malloc has one lock.
  return not logs.has_nvidia_driver() and malloc.keep_freed_memory()


def onednn() -> Dict[str, str]:
  """Returns what to set for the build with oneDNN on this processor, under these limits."""
  variables = dict(ONEDNN, **(ONEDNN_ON_AMD if _is_amd_with_avx2() else {}))
  limit = memory.process_limit_bytes()
  return variables if limit is None else dict(variables, **{MEMORY_LIMIT: str(limit)})


def has_onednn() -> bool:
  """Whether the TensorFlow that is imported, or would be, is the build with oneDNN."""
  # What is installed beside the package: to import it would be too late, and slow.
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
