"""The memory that limits leave, and the settings of malloc and of oneDNN for it."""

import json
import resource
import sys

import psutil
import pytest
from conftest import run_process

from estimator_train.system import machine

GB = 10 ** 9


def run(*arguments, **options):
  """Returns the JSON that Python prints in a child process."""
  done = run_process(sys.executable, *arguments, timeout=60, **options)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.fixture
def kernel_files(monkeypatch):
  """The texts of the files of the kernel by their paths; there are none but those a test adds."""
  texts = {}
  monkeypatch.setattr(machine, 'read_kernel_file', lambda path, max_chars=-1: texts.get(path, ''))
  return texts


@pytest.mark.parametrize('root, limit_name, usage_name, prefix', [
    ('/sys/fs/cgroup/', 'memory.max', 'memory.current', ''),
    ('/sys/fs/cgroup/memory/', 'memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_')])
def test_the_lowest_limit_of_the_cgroups_of_this_process_counts(
    kernel_files, root, limit_name, usage_name, prefix):
  def write(folder, limit, usage=0, inactive=0):
    kernel_files.update({
        root + folder + limit_name: '{}\n'.format(limit),
        root + folder + usage_name: '{}\n'.format(usage),
        root + folder + 'memory.stat': 'anon 5\n{}inactive_file {}\n'.format(prefix, inactive)})

  kernel_files['/proc/self/cgroup'] = '4:memory:/job/step\n3:cpu:/other\n'
  write('', 2 * GB, GB, GB // 2)
  assert machine.bytes_left_under_limits() == 3 * GB // 2
  assert machine.available_bytes() <= 3 * GB // 2
  write('job/', GB)
  write('job/step/', 4 * GB)
  write('other/', 300 * 10 ** 6)
  assert machine.bytes_left_under_limits() == GB
  write('', GB, GB)  # Full: it leaves what a start takes.
  assert machine.available_bytes() == 0 and machine.bytes_left_under_limits() == 256 << 20
  for folder, limit in (('', 'max'), ('job/', 2 ** 63 - 4096), ('job/step/', 'max')):
    write(folder, limit)
  assert machine.bytes_left_under_limits() is None and machine.available_bytes() > 0


def test_address_space(kernel_files):
  _, most = resource.getrlimit(resource.RLIMIT_AS)
  resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 8 * GB, most))
  assert machine.bytes_left_under_limits() == pytest.approx(8 * GB - 2 ** 31, abs=GB // 10)


# Allocates and frees a block, as an operation of each step does; prints the memory that is resident
# then, and after its return.
ALLOCATES = '''
import json, numpy, psutil
from estimator_train.system import machine
is_kept = machine.keep_freed_memory()
resident = lambda: psutil.Process().memory_info().rss / 2 ** 20
numpy.ones(50 << 17)
freed = resident()
machine.return_freed_memory()
print(json.dumps([is_kept, freed, resident()]))
'''


def test_malloc_keeps_freed_blocks_and_returns_them_later():
  is_kept, resident_mb, returned_mb = run('-c', ALLOCATES)
  assert is_kept and resident_mb > 50 and resident_mb - returned_mb > 40
  for name in ('MALLOC_ARENA_MAX', 'GLIBC_TUNABLES'):
    assert not machine.keep_freed_memory({name: '4'})  # What the user has set stays.


# Stands in for TensorFlow, and prints the variables that the program has set when it is imported.
TENSORFLOW = '''
import json, os
from estimator_train.system.machine import ONEDNN_VARIABLE_NAMES as names
print(json.dumps({name: os.environ[name] for name in names if name in os.environ}), flush=True)
os._exit(0)
'''


def test_variables_of_the_build_with_onednn(tmp_path, monkeypatch):
  for name in machine.ONEDNN_VARIABLE_NAMES:
    monkeypatch.delenv(name, raising=False)

  def start(**given):
    return run('-m', 'estimator_train', '--train_steps=1', '--model_dir={}/run'.format(tmp_path),
               env=dict(given, PYTHONPATH=str(tmp_path)))

  (tmp_path / 'tensorflow').mkdir()
  (tmp_path / 'tensorflow' / '__init__.py').write_text(TENSORFLOW)
  assert start() == {}  # The stock build gets none.
  (tmp_path / 'intel_tensorflow-1.15.2.dist-info').mkdir()
  assert start() == machine.onednn_variables()
  given = {'KMP_BLOCKTIME': '7', 'MKL_DEBUG_CPU_TYPE': '4', 'TF_MKL_ALLOC_MAX_BYTES': '5000000000'}
  assert start(**given) == given  # What the user has set stays.


def test_tuning_for_a_processor(kernel_files, monkeypatch):
  monkeypatch.setattr(machine, 'keep_freed_memory', lambda: True)
  for vendor, cpu_flags, mkl_type, pads, limit in (
      (None, '', None, False, None), ('AuthenticAMD', 'avx2', '5', True, 2 ** 31),
      ('GenuineIntel', 'avx2', None, True, 9), ('AuthenticAMD', 'avx2 avx512f', '5', False, None)):
    if vendor:
      kernel_files['/proc/cpuinfo'] = (
          'vendor_id\t: {}\nflags\t\t: fpu avx {}\n\nvendor_id\t: GenuineIntel\n'.format(
              vendor, cpu_flags))
    monkeypatch.setattr(machine, 'bytes_left_under_limits', lambda limit=limit: limit)
    expected = {'KMP_BLOCKTIME': '30', 'MKL_DEBUG_CPU_TYPE': mkl_type,
                'TF_MKL_ALLOC_MAX_BYTES': limit and str(limit)}
    assert machine.onednn_variables() == {
        name: value for name, value in expected.items() if value is not None}
    for has_onednn, has_driver in ((True, True), (True, False), (False, True), (False, False)):
      monkeypatch.setattr(machine, 'has_onednn', lambda has_onednn=has_onednn: has_onednn)
      monkeypatch.setattr(machine, 'has_nvidia_driver', lambda has_driver=has_driver: has_driver)
      assert machine.needs_padded_gradients() == (pads and has_onednn)
      assert machine.tune_for_cpu_training() == (not has_onednn and not has_driver)
