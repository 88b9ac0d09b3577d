"""Settings for TensorFlow's build with oneDNN, whose operations run on OpenMP's threads."""

import os

# OpenMP's threads spin for 200 ms after an operation, unless told otherwise, on cores that the
# input's threads could use. The rest the build sets by itself: as many threads as the process may
# use cores, and as a rule two operations at once. To be measured, on any machine, by
# `tests/benchmarks/run.sh onednn_threads`.
THREADS = {'KMP_BLOCKTIME': '0'}


def set_up() -> None:
  """Sets what the user has not set; to be called before TensorFlow is imported.

  The stock build has no OpenMP, and does not look.
  """
  for name, value in THREADS.items():
    os.environ.setdefault(name, value)
