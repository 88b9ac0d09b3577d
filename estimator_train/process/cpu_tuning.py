"""Tunes TensorFlow on CPUs, by malloc parameters or, for the oneDNN build, environment variables.

TensorFlow reads these variables when it is imported. To measure their effect on a machine, run
`tests/benchmarks/run.sh variables_stock variables_onednn`.
"""

import glob
import importlib.util
import os
from typing import Dict, List

from estimator_train.process import logs, malloc, memory

# By default, OpenMP's threads spin for 200 ms after an operation and occupy cores that the threads
# of the input pipeline could use. With 30 ms, which is about one step of a small network, OpenMP's
# threads still do not sleep between operations.
ONEDNN_VARIABLES = {'KMP_BLOCKTIME': '30'}
# MKL, which multiplies matrices in the oneDNN build, uses AVX2 on AMD processors only if this
# variable selects AVX2. On Intel processors, MKL selects the instruction set itself.
ONEDNN_AMD_VARIABLES = {'MKL_DEBUG_CPU_TYPE': '5'}
# This variable limits the bytes that the allocator of the oneDNN build may use. By default, the
# limit is all memory of the machine. If the system refuses an allocation below the limit, the
# allocator can never grow again. The limit is therefore set to the memory that this process may
# use.
MEMORY_LIMIT_VARIABLE = 'TF_MKL_ALLOC_MAX_BYTES'
VARIABLE_NAMES = (*ONEDNN_VARIABLES, *ONEDNN_AMD_VARIABLES, MEMORY_LIMIT_VARIABLE)

_CPU_INFO = '/proc/cpuinfo'


def tune_cpu() -> bool:
  """Applies the settings that the user has not set; must run before TensorFlow is imported.

  Returns:
    Whether malloc now keeps freed memory until `malloc.return_freed_memory` is called.
  """
  if has_onednn():
    for name, value in onednn_variables().items():
      os.environ.setdefault(name, value)
    return False
  # With GPUs, most tensors in main memory belong to the input pipeline. Its many threads would
  # compete for the lock of the one arena that all threads share after keep_freed_memory.
  return not logs.has_nvidia_driver() and malloc.keep_freed_memory()


def onednn_variables() -> Dict[str, str]:
  """Returns the environment variables for the oneDNN build on this processor."""
  variables = dict(ONEDNN_VARIABLES, **(ONEDNN_AMD_VARIABLES if _is_amd_with_avx2() else {}))
  limit = memory.bytes_left_under_limits()
  return variables if limit is None else dict(variables, **{MEMORY_LIMIT_VARIABLE: str(limit)})


def has_onednn() -> bool:
  """Returns whether the TensorFlow that this process imports is the oneDNN build."""
  # Only the oneDNN build has a folder `intel_tensorflow*`. TensorFlow must not be imported to find
  # its build, because variables that are set after the import have no effect.
  spec = importlib.util.find_spec('tensorflow')
  return spec is not None and spec.origin is not None and bool(glob.glob(os.path.join(
      glob.escape(os.path.dirname(os.path.dirname(spec.origin))), 'intel_tensorflow*')))


def needs_padded_gradients() -> bool:
  """Returns whether gradients of single-channel convolutions are faster with padded images.

  This is the case for the oneDNN build with AVX2, but without AVX-512; see
  tf_patches/optimizers.py.
  """
  words = _words_of_first_core()
  return 'avx2' in words and 'avx512f' not in words and has_onednn()


def _is_amd_with_avx2() -> bool:
  words = _words_of_first_core()
  return 'AuthenticAMD' in words and 'avx2' in words


def _words_of_first_core() -> List[str]:
  """Returns the words that describe the first core; an empty list if they cannot be read."""
  try:
    with open(_CPU_INFO, encoding='utf-8', errors='replace') as file:
      return file.read(10000).partition('\n\n')[0].split()
  except OSError:
    return []
