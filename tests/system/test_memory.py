"""The memory that limits leave, and the settings of malloc and of oneDNN for it."""

import json
import resource
import sys

import pytest
from conftest import run_process

from estimator_train.system import machine

GB = 10 ** 9


def run(code, **options):
  """Returns the JSON that a child process prints."""
  done = run_process(sys.executable, '-c', code, timeout=60, **options)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
  """Writes the files of the cgroups of this process: `(limit, use, inactive_file)` by folder."""
  files = {2: ('memory.max', 'memory.current', ''),
           1: ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_')}
  (tmp_path / 'own').write_text('4:memory:/job/step\n3:cpu:/other\n')
  monkeypatch.setattr(machine, '_address_bytes_left', lambda: None)
  monkeypatch.setattr(machine, '_CGROUPS', [
      (str(tmp_path / str(version)), *names[:2]) for version, names in files.items()])
  monkeypatch.setattr('builtins.open', lambda path, *given, real=open, **more: real(
      str(tmp_path / 'own') if path == '/proc/self/cgroup' else path, *given, **more))

  def write(version, folders):
    limit_name, usage_name, prefix = files[version]
    for folder, (limit, usage, inactive) in folders.items():
      path = tmp_path / str(version) / folder
      path.mkdir(parents=True, exist_ok=True)
      (path / limit_name).write_text('{}\n'.format(limit))
      (path / usage_name).write_text('{}\n'.format(usage))
      (path / 'memory.stat').write_text('anon 5\n{}inactive_file {}\n'.format(prefix, inactive))

  return write


@pytest.mark.parametrize('version', [2, 1])
def test_the_lowest_limit_of_the_cgroups_of_this_process_counts(cgroups, version):
  cgroups(version, {'': (2 * GB, GB, GB // 2)})
  assert machine.bytes_left_under_limits() == 3 * GB // 2
  assert machine.available_bytes() <= 3 * GB // 2
  cgroups(version, {'job': (GB, 0, 0), 'job/step': (4 * GB, 0, 0), 'other': (300 * 10 ** 6, 0, 0)})
  assert machine.bytes_left_under_limits() == GB
  cgroups(version, {'': (GB, GB, 0)})  # Full: it leaves what a start takes.
  assert machine.available_bytes() == 0 and machine.bytes_left_under_limits() == 256 << 20
  for limit in ('max', 2 ** 63 - 4096):
    cgroups(version, dict.fromkeys(('', 'job', 'job/step'), (limit, 0, 0)))
    assert machine.bytes_left_under_limits() is None and machine.available_bytes() > 0


def test_address_space():
  code = ('import json; from estimator_train.system import machine; machine._CGROUPS = ();'
          'print(json.dumps(machine.bytes_left_under_limits()))')
  left = run(code, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * GB, 8 * GB)))
  assert 5 * GB < left < 8 * GB - 2 ** 31  # Python itself has taken a little.


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
  is_kept, resident_mb, returned_mb = run(ALLOCATES)
  assert is_kept and resident_mb > 50 and resident_mb - returned_mb > 40
  for name in ('MALLOC_ARENA_MAX', 'GLIBC_TUNABLES'):
    assert not machine.keep_freed_memory({name: '4'})  # What the user has set stays.


# What the program has set by the time that TensorFlow is imported.
ASKS = '''
import os, sys
from estimator_train import __main__, modes; from estimator_train.system import machine
modes.run = lambda settings: dict(
  {name: os.environ[name] for name in machine.ONEDNN_VARIABLE_NAMES if name in os.environ},
  tensorflow='tensorflow' in sys.modules)
sys.exit(__main__.main(['--model_dir=x', '--train_steps=1']))
'''


def test_variables_of_the_build_with_onednn(tmp_path, monkeypatch):
  for name in machine.ONEDNN_VARIABLE_NAMES:
    monkeypatch.delenv(name, raising=False)

  def asks(**given):
    return run(ASKS, env=dict(given, PYTHONPATH=str(tmp_path)))

  (tmp_path / 'tensorflow').mkdir()
  (tmp_path / 'tensorflow' / '__init__.py').write_text('raise SystemExit(9)\n')
  assert asks() == {'tensorflow': False}  # The stock build gets none.
  (tmp_path / 'intel_tensorflow-1.15.2.dist-info').mkdir()
  assert asks() == dict(machine.onednn_variables(), tensorflow=False)
  given = {'KMP_BLOCKTIME': '7', 'MKL_DEBUG_CPU_TYPE': '4', 'TF_MKL_ALLOC_MAX_BYTES': '5000000000'}
  assert asks(**given) == dict(given, tensorflow=False)  # What the user has set stays.


def test_tuning_for_a_processor(tmp_path, monkeypatch):
  monkeypatch.setattr(machine, '_CPU_INFO', str(tmp_path / 'cpuinfo'))
  monkeypatch.setattr(machine, 'keep_freed_memory', lambda: True)
  for vendor, cpu_flags, mkl_type, pads, limit in (
      (None, '', None, False, None), ('AuthenticAMD', 'avx2', '5', True, 2 ** 31),
      ('GenuineIntel', 'avx2', None, True, 9), ('AuthenticAMD', 'avx2 avx512f', '5', False, None)):
    if vendor:
      (tmp_path / 'cpuinfo').write_text('vendor_id\t: {}\nflags\t\t: fpu avx {}\n\nvendor_id\t: '
                                        'GenuineIntel\n'.format(vendor, cpu_flags))
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
