"""Enables XLA on CPUs.

This module does not import TensorFlow, because process/caller_state.py, which imports this module,
must set environment variables before TensorFlow is imported.
"""

import os

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
