"""Settings for TensorFlow's build with oneDNN, whose operations run on OpenMP's threads."""

import os

# OpenMP's threads spin for 200 ms after an operation, unless told otherwise. On those cores the
# input's threads and TensorFlow's own could run. The rest the build does well by itself: as many
# threads as physical cores that the process may use, and two operations at once.
# `tests/benchmarks/run.sh onednn_threads` measures this.
THREADS = {'KMP_BLOCKTIME': '0'}


def set_up() -> None:
  """Sets what the user has not set; to be called before TensorFlow is imported.

  The stock build has no OpenMP, and does not look.
  """
  for name, value in THREADS.items():
    os.environ.setdefault(name, value)
