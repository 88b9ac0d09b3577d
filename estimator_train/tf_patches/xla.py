"""XLA on CPUs. This module does not import TensorFlow.

TensorFlow reads the environment variable once, when it creates its devices.
"""

import os

FLAGS_VARIABLE, _CPU_FLAG = 'TF_XLA_FLAGS', '--tf_xla_cpu_global_jit'


def compile_for_cpus() -> None:
  """Makes XLA compile for CPUs, too, if the session's `global_jit_level` enables XLA.

  Defect: TensorFlow 1.15 ignores `global_jit_level` on CPUs unless a flag, which only the
  environment can set, allows it: tensorflow/compiler/jit/flags.cc, `tf_xla_cpu_global_jit`, which
  mark_for_compilation_pass.cc reads (both in C++, not in the wheel). Symptom: `--enable_xla` has
  no effect on CPUs, without a warning.

  This function has no effect in a process that has created its devices already.
  """
  flags = os.environ.get(FLAGS_VARIABLE, '')
  if _CPU_FLAG not in flags:
    os.environ[FLAGS_VARIABLE] = '{} {}'.format(flags, _CPU_FLAG).strip()
