"""Recommends how several workers exchange gradients, and checks that Horovod is installed."""

import glob
import importlib.util
import os
from typing import Iterator, Optional

from estimator_train.doctor.check_results import CheckResult, error, ok

# In tests/benchmarks/engines.py, Horovod was slower with 5 MB of gradients, and faster with 80 MB;
# see docs/performance.md.
_LARGE_GRADIENTS_BYTES = 20e6


def read_weight_bytes(model_dir: Optional[str]) -> Optional[int]:
  """Returns the size of the initial weights of a run; None if there is no run."""
  if model_dir is None:
    return None
  paths = glob.glob(os.path.join(glob.escape(model_dir), 'keras', 'keras_model.ckpt.data-*'))
  return sum(map(os.path.getsize, paths)) or None


def check_engine(strategy: str, num_workers: int,
                 weight_bytes: Optional[int]) -> Iterator[CheckResult]:
  """Checks `--distribution_strategy` of a run on several workers.

  Args:
    strategy: the flag.
    num_workers: number of workers in TF_CONFIG.
    weight_bytes: size of the weights, which the gradients do not exceed; None if unknown.
  """
  if strategy == 'horovod':
    yield _check_horovod()
  if weight_bytes is None or strategy not in ('multi_worker_mirrored', 'horovod') or (
      strategy == 'multi_worker_mirrored' and num_workers == 1):
    return
  is_large = weight_bytes >= _LARGE_GRADIENTS_BYTES
  faster = 'horovod' if is_large else 'multi_worker_mirrored'
  yield ok('engine', 'the gradients of the run in --model_dir have at most {:.3g} MB; on CPUs, '
           'horovod is usually the faster strategy from {:.0f} MB on'.format(
               weight_bytes / 1e6, _LARGE_GRADIENTS_BYTES / 1e6),
           '' if strategy == faster else 'compare with --distribution_strategy=' + faster)


def _check_horovod() -> CheckResult:
  if importlib.util.find_spec('horovod') is None:
    return error('horovod', 'not installed, which --distribution_strategy=horovod requires',
                 'run scripts/install_horovod')
  return ok('horovod', 'installed')
