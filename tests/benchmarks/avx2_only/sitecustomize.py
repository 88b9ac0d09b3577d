"""Hides AVX-512 from TensorFlow 1.15, to measure what AVX2 reaches.

For measurements only. `--avx2` of tests/benchmarks/run.sh puts this folder into PYTHONPATH, and
every interpreter then imports this file when it starts. The MKL-DNN 0.x of both builds has no
variable that limits its instructions. It asks for the features of the processor from objects
`Xbyak::util::Cpu`, one for each of its source files, whose first member is a set of bits; and
TensorFlow, which chooses the layout of poolings by them, from an object `CPUIDInfo`, whose first
members are bit fields. The bits of AVX-512 are cleared here, after the library is loaded and before
it generates a kernel; `nm` of binutils lists the objects. MKL obeys MKL_ENABLE_INSTRUCTIONS, and
both builds compiled Eigen for at most AVX2. The program reads the features from /proc/cpuinfo.
"""

import builtins
import ctypes
import importlib.machinery
import io
import re
import subprocess

_EXTENSION = '_pywrap_tensorflow_internal'
_LIBRARIES = (_EXTENSION + '.so', 'libtensorflow_framework.so.1')
# In Xbyak::util::Cpu, tAVX512F is bit 35. The features up to bit 45 and of these later bits also
# belong to AVX-512.
_MKLDNN_CPU = '_ZN6mkldnn4impl3cpu12_GLOBAL__N_1L3cpuE'
_MKLDNN_BITS = sum(1 << bit for bit in (*range(35, 46), 50, *range(54, 64)))
# A pointer. In CPUIDInfo, the fields from have_avx512f_ to have_avx512_4fmaps_ are bits 4 to 14.
_TENSORFLOW_CPU = '_ZN10tensorflow4port12_GLOBAL__N_15cpuidE'
_TENSORFLOW_BITS = sum(1 << bit for bit in range(4, 15))


def _hide_avx512() -> None:
  """Clears the bits in all libraries of TensorFlow that this process has loaded."""
  cleared = set()
  with open('/proc/self/maps') as file:
    mappings = [line.split(None, 5) for line in file]
  for path in {mapping[5].strip() for mapping in mappings if len(mapping) == 6}:
    if not path.endswith(_LIBRARIES):
      continue
    base = min(int(mapping[0].partition('-')[0], 16) for mapping in mappings
               if len(mapping) == 6 and mapping[5].strip() == path)
    for line in subprocess.check_output(['nm', path], universal_newlines=True).splitlines():
      symbol = line.rpartition(' ')[2]
      if symbol not in (_MKLDNN_CPU, _TENSORFLOW_CPU):
        continue
      features = ctypes.c_uint64.from_address(base + int(line.split()[0], 16))
      if symbol == _MKLDNN_CPU:
        features.value &= ~_MKLDNN_BITS
      elif features.value:
        ctypes.c_uint64.from_address(features.value).value &= ~_TENSORFLOW_BITS
      else:
        continue  # The library uses the object of the other one.
      cleared.add(symbol)
  if len(cleared) != 2:
    raise RuntimeError('this TensorFlow cannot be limited to AVX2')


def _exec_module(self, module):
  """Initializes an extension module, and hides AVX-512 from TensorFlow's."""
  _exec_module_as_before(self, module)
  if self.name.endswith(_EXTENSION):
    _hide_avx512()


_exec_module_as_before = importlib.machinery.ExtensionFileLoader.exec_module
importlib.machinery.ExtensionFileLoader.exec_module = _exec_module  # type: ignore


def _open(file, *arguments, **options):
  """Opens a file; /proc/cpuinfo without the features of AVX-512."""
  opened = _open_as_before(file, *arguments, **options)
  if file != '/proc/cpuinfo':
    return opened
  with opened:
    return io.StringIO(re.sub(r' avx512\w*', '', opened.read()))


_open_as_before = builtins.open
builtins.open = _open
