"""Sets environment variables that TensorFlow reads.

This module does not import TensorFlow, because system/caller_state.py, which imports this module,
must set environment variables before TensorFlow is imported.
"""

import contextlib
import os
import sys
from typing import Iterator

FLAGS_VARIABLE, _CPU_FLAG = 'TF_XLA_FLAGS', '--tf_xla_cpu_global_jit'


def compile_for_cpus() -> None:
  """Makes XLA also compile for CPUs if the `global_jit_level` of the session enables XLA.

  Defect: on CPUs, TensorFlow 1.15 ignores `global_jit_level` unless TF_XLA_FLAGS contains
  `--tf_xla_cpu_global_jit` (defined in tensorflow/compiler/jit/flags.cc, read in
  mark_for_compilation_pass.cc; both are C++ sources that the wheel does not contain). Symptom:
  `--enable_xla` has no effect on CPUs, and there is no warning.

  TensorFlow reads TF_XLA_FLAGS when it creates the devices of the process. A later call of this
  function therefore has no effect.
  """
  flags = os.environ.get(FLAGS_VARIABLE, '')
  if _CPU_FLAG not in flags:
    os.environ[FLAGS_VARIABLE] = '{} {}'.format(flags, _CPU_FLAG).strip()


@contextlib.contextmanager
def converter_on_path() -> Iterator[None]:
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
