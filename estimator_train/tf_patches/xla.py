"""Enables XLA on CPUs.

This module does not import TensorFlow, because process/guest.py must be importable without it.
"""

import os

FLAGS_VARIABLE, _CPU_FLAG = 'TF_XLA_FLAGS', '--tf_xla_cpu_global_jit'


def compile_for_cpus() -> None:
  """Makes XLA compile for CPUs, too, if the `global_jit_level` of the session enables XLA.

  Defect: on CPUs, TensorFlow 1.15 ignores `global_jit_level` unless TF_XLA_FLAGS contains
  `--tf_xla_cpu_global_jit` (defined in tensorflow/compiler/jit/flags.cc, read in
  mark_for_compilation_pass.cc; both are C++ sources that the wheel does not contain). Symptom:
  `--enable_xla` has no effect on CPUs, and there is no warning.

  TensorFlow reads TF_XLA_FLAGS when it creates the devices of the process, so this function has no
  effect afterwards.
  """
  flags = os.environ.get(FLAGS_VARIABLE, '')
  if _CPU_FLAG not in flags:
    os.environ[FLAGS_VARIABLE] = '{} {}'.format(flags, _CPU_FLAG).strip()
