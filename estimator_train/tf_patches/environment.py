"""Sets environment variables of the process, and settings that apply to all of its graphs."""

import contextlib
import os
import sys
from typing import Iterator

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
