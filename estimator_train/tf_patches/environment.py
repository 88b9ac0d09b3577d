"""Sets environment variables of the process, and settings that apply to all of its graphs."""

import contextlib
import os
import sys
from typing import Iterator, Optional, Sequence

import tensorflow.compat.v1 as tf
from tensorflow.python.util import deprecation


@contextlib.contextmanager
def without_deprecation_checks() -> Iterator[None]:
  """Disables TensorFlow's checks and warnings for deprecated arguments in a `with` block.

  Defect: a function with a deprecated argument, such as `tf.reduce_sum`, inspects its own signature
  at each call (tensorflow_core/python/util/deprecation.py:480), even if the level of the log hides
  the warning. Symptom: the checks take a tenth of the time of building a graph.
  """
  # TensorFlow's own context manager `silence` does not restore the setting after an exception.
  previous = deprecation._PRINT_DEPRECATION_WARNINGS
  deprecation._PRINT_DEPRECATION_WARNINGS = False
  try:
    yield
  finally:
    deprecation._PRINT_DEPRECATION_WARNINGS = previous


def enable_xla_on_cpus() -> None:
  """Makes XLA also compile for CPUs if the `global_jit_level` of the session enables XLA.

  Defect: on CPUs, TensorFlow 1.15 ignores `global_jit_level` unless TF_XLA_FLAGS contains
  `--tf_xla_cpu_global_jit` (defined in tensorflow/compiler/jit/flags.cc, read in
  mark_for_compilation_pass.cc; both are C++ sources that the wheel does not contain). Symptom:
  `--enable_xla` has no effect on CPUs, and there is no warning.

  TensorFlow reads TF_XLA_FLAGS when it creates the devices of the process. A later call of this
  function therefore has no effect.
  """
  flags = os.environ.get('TF_XLA_FLAGS', '')
  if '--tf_xla_cpu_global_jit' not in flags:
    os.environ['TF_XLA_FLAGS'] = '{} {}'.format(flags, '--tf_xla_cpu_global_jit').strip()


def skip_search_for_xla_clusters() -> None:
  """Makes TensorFlow not look for operations that XLA could compile, unless TF_XLA_FLAGS is set.

  Defect: without XLA, too, TensorFlow 1.15 checks for each operation of a graph whether XLA could
  compile it (tensorflow/compiler/jit/mark_for_compilation_pass.cc, a C++ source that the wheel does
  not contain). For an operation that XLA does not support, it formats an error message, which
  requires a scan of all registered kernels. Symptom: the check takes up to 8 % of the time to the
  first step.

  Afterwards, `tf.xla.experimental.jit_scope` and `global_jit_level` have no effect in this process
  and its child processes. Must be called before TensorFlow creates its devices.
  """
  os.environ.setdefault('TF_XLA_FLAGS', '--tf_xla_clustering_fuel=0')


def set_gpus_of_eager_context(indices: Optional[Sequence[int]], memory_growth: bool) -> None:
  """Makes the eager context use only some GPUs, with the same options as the sessions.

  Has no effect after the eager context has been initialized.

  Defect: in graph mode, too, a MirroredStrategy initializes TensorFlow's eager context
  (tensorflow_core/python/distribute/mirrored_strategy.py:836), by default with all GPUs and all of
  their memory. The options of the first user of a GPU apply to the whole process. Symptoms: a run
  that is resumed takes all memory of all GPUs, although its sessions let the memory grow. With
  several processes on a host, such as those of Horovod, training fails with `TensorFlow device
  (GPU:0) is being mapped to multiple CUDA devices`.

  Args:
    indices: the indices of the GPUs in the list of tf.config; None for all GPUs.
  """
  gpus = tf.config.experimental.list_physical_devices('GPU')
  with contextlib.suppress(RuntimeError):  # The context has been initialized.
    for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, memory_growth)
    if indices is not None:
      tf.config.experimental.set_visible_devices([gpus[index] for index in indices], 'GPU')


@contextlib.contextmanager
def toco_on_path() -> Iterator[None]:
  """Puts the folder of this Python, which contains the converter's command, first in PATH.

  Defect: tensorflow_core/lite/python/convert.py:49 names the command `toco_from_protos` without a
  folder, so the shell that runs the command (line 175) searches PATH. Symptom: if the virtual
  environment is not activated, the shell prints `toco_from_protos: not found`, or runs the command
  of another TensorFlow.
  """
  old_path = os.environ.get('PATH', os.defpath)
  os.environ['PATH'] = os.path.dirname(sys.executable) + os.pathsep + old_path
  try:
    yield
  finally:
    os.environ['PATH'] = old_path
