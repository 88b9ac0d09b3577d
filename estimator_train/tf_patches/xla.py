"""XLA on CPUs. This module imports without TensorFlow.

TensorFlow reads the variable once, when it makes its devices.
"""

import os

VARIABLE, _ON_CPU = 'TF_XLA_FLAGS', '--tf_xla_cpu_global_jit'


def compile_for_cpus() -> None:
  """Has XLA compile for CPUs too, where the session's `global_jit_level` asks for XLA.

  Defect: TensorFlow 1.15 ignores `global_jit_level` for CPUs unless a flag, which only the
  environment can set, allows it: tensorflow/compiler/jit/flags.cc, `tf_xla_cpu_global_jit`, which
  mark_for_compilation_pass.cc asks for (both in C++, not in the wheel). Symptom: `--enable_xla` has
  no effect on a CPU, and nothing says so.

  In a process that has made devices before, it has no effect either.
  """
  flags = os.environ.get(VARIABLE, '')
  if _ON_CPU not in flags:
    os.environ[VARIABLE] = '{} {}'.format(flags, _ON_CPU).strip()
