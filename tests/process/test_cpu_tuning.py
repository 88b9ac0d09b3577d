"""What the program sets for TensorFlow before it imports it."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from estimator_train.process import cpu_tuning, malloc, memory

INTEL = 'vendor_id\t: GenuineIntel\nflags\t\t: fpu avx avx2\n\nvendor_id\t: GenuineIntel\n'
AMD = INTEL.replace('GenuineIntel', 'AuthenticAMD')

# What the program has set by the time that TensorFlow is imported.
ASKS = '''
import os, sys
from estimator_train import __main__, modes; from estimator_train.process import cpu_tuning
modes.run = lambda settings: dict(
  {name: os.environ.get(name) for name in cpu_tuning.VARIABLE_NAMES},
  tensorflow='tensorflow' in sys.modules)
sys.exit(__main__.main(['--model_dir=x', '--train_steps=1']))
'''


@pytest.fixture
def asks(tmp_path):
  """Runs a process that has a `tensorflow` beside others, by their names; returns what it has set.

  Neither is imported: that would end it.
  """
  def run(*beside, **given):
    for name in ('tensorflow', *beside):
      (tmp_path / name).mkdir()
      (tmp_path / name / '__init__.py').write_text('raise SystemExit(9)\n')
    environment = {name: text for name, text in os.environ.items()
                   if name not in cpu_tuning.VARIABLE_NAMES}
    done = subprocess.run([sys.executable, '-c', ASKS], cwd=str(ROOT), timeout=60, check=True,
                          env=dict(environment, PYTHONPATH=str(tmp_path), **given),
                          stdout=subprocess.PIPE, universal_newlines=True)
    found = json.loads(done.stdout)
    assert not found.pop('tensorflow')
    return {name: value for name, value in found.items() if value is not None}
  return run


def test_the_stock_build_gets_no_variable(asks):
  assert asks() == {}


def test_the_build_with_onednn_gets_threads_that_soon_sleep(asks):
  found = asks('intel_tensorflow-1.15.2.dist-info')
  assert found == cpu_tuning.onednn_variables() and found['KMP_BLOCKTIME'] == '30'


def test_what_the_user_has_set_stays(asks):
  given = {'KMP_BLOCKTIME': '7', 'MKL_DEBUG_CPU_TYPE': '4', 'TF_MKL_ALLOC_MAX_BYTES': '5000000000'}
  assert asks('intel_tensorflow-1.15.2.dist-info', **given) == given


@pytest.mark.parametrize('cpu_info, names', [
    (AMD, {'KMP_BLOCKTIME', 'MKL_DEBUG_CPU_TYPE'}),
    (AMD.replace('avx2', 'sse4a'), {'KMP_BLOCKTIME'}),
    (INTEL, {'KMP_BLOCKTIME'}),
    (None, {'KMP_BLOCKTIME'}),
])
def test_mkl_is_told_of_avx2_on_amd_only(tmp_path, monkeypatch, cpu_info, names):
  monkeypatch.setattr(memory, 'bytes_left_under_limits', lambda: None)
  path = tmp_path / 'cpuinfo'
  if cpu_info is not None:
    path.write_text(cpu_info)
  monkeypatch.setattr(cpu_tuning, '_CPU_INFO', str(path))
  assert set(cpu_tuning.onednn_variables()) == names


@pytest.mark.parametrize('cpu_info, has_onednn, expected', [
    (AMD, True, True), (INTEL, True, True), (AMD, False, False),
    (AMD.replace('avx2', 'avx2 avx512f'), True, False), (AMD.replace('avx2', ''), True, False),
    (None, True, False)])
def test_gradients_are_padded_for_avx2_without_avx512(tmp_path, monkeypatch, cpu_info, has_onednn,
                                                      expected):
  path = tmp_path / 'cpuinfo'
  if cpu_info is not None:
    path.write_text(cpu_info)
  monkeypatch.setattr(cpu_tuning, '_CPU_INFO', str(path))
  monkeypatch.setattr(cpu_tuning, 'has_onednn', lambda: has_onednn)
  assert cpu_tuning.needs_padded_gradients() == expected


@pytest.mark.parametrize('limit, expected', [(None, None), (2 ** 31, str(2 ** 31))])
def test_onednn_allocates_within_the_limits_of_the_process(monkeypatch, limit, expected):
  monkeypatch.setattr(memory, 'bytes_left_under_limits', lambda: limit)
  assert cpu_tuning.onednn_variables().get('TF_MKL_ALLOC_MAX_BYTES') == expected


@pytest.mark.parametrize('has_onednn', [False, True])
@pytest.mark.parametrize('has_driver', [False, True])
def test_malloc_keeps_memory_for_the_stock_build_without_gpus(monkeypatch, has_onednn, has_driver):
  monkeypatch.setattr(cpu_tuning, 'has_onednn', lambda: has_onednn)
  monkeypatch.setattr(os.path, 'exists', lambda path: has_driver)
  monkeypatch.setattr(malloc, 'keep_freed_memory', lambda: True)
  assert cpu_tuning.tune_cpu() == (not has_onednn and not has_driver)
