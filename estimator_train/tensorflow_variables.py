"""What makes TensorFlow faster on CPUs by variables that it reads when it is imported.

Measured by `tests/benchmarks/run.sh variables_stock variables_onednn`, on any machine.
"""

import glob
import importlib.util
import os
from typing import Dict

# The stock build gives the memory of large tensors back to the kernel after each operation, which
# has to zero it for the next one. TensorFlow's own allocator keeps it, without a limit here: what
# it asks for is the kernel's to refuse, as it is without it. The build with oneDNN has one already.
STOCK = {'TF_CPU_ALLOCATOR_USE_BFC': '1', 'TF_CPU_BFC_MEM_LIMIT_IN_MB': str(2 ** 30)}
# OpenMP's threads spin for 200 ms after an operation, on cores that the input's threads could use.
# This is about a step of a small network: they need not be woken for each operation of it. By
# themselves they are as many as the process may use cores.
ONEDNN = {'KMP_BLOCKTIME': '30'}
# MKL, which that build multiplies matrices with, knows AVX2 on Intel's processors only; this is
# its own name for it. Theirs it leaves to MKL, which may know better.
ONEDNN_ON_AMD = {'MKL_DEBUG_CPU_TYPE': '5'}
NAMES = (*STOCK, *ONEDNN, *ONEDNN_ON_AMD)

_CPU_INFO = '/proc/cpuinfo'


def set_up() -> None:
  """Sets what the user has not set; to be called before TensorFlow is imported."""
  found = onednn() if has_onednn() else stock()
  for name, value in found.items():
    os.environ.setdefault(name, value)


def stock() -> Dict[str, str]:
  """Returns what to set for the builds without oneDNN; nothing where there are GPUs.

  There the CPUs' tensors are the input's, many threads' at once, and the allocator's lock is one.
  """
  return {} if os.path.exists('/proc/driver/nvidia') else dict(STOCK)


def onednn() -> Dict[str, str]:
  """Returns what to set for the build with oneDNN on this processor."""
  return dict(ONEDNN, **(ONEDNN_ON_AMD if _is_amd_with_avx2() else {}))


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
