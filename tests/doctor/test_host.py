"""CPU, cores, memory, limits and folders, from facts."""

import os

import pytest

from estimator_train.doctor import folders, host
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.settings import Settings

STOCK = TensorFlowBuild('tensorflow', '1.15.0')
AVX512 = TensorFlowBuild('intel-tensorflow-avx512', '1.15.2')
GOOD = host.Host('a CPU', frozenset(('avx', 'avx2')), 4, None, 8 << 30, 1024)


@pytest.mark.parametrize('change, build, name, level', [
    ({}, STOCK, None, 'ok'),
    ({'cpu_flags': frozenset(('sse4_2',))}, STOCK, 'cpu', 'error'),
    ({'cpu_flags': frozenset()}, STOCK, 'cpu', 'warning'),
    ({}, AVX512, 'cpu', 'error'),
    ({'cpu_flags': frozenset(('avx', 'avx2', 'avx512f'))}, AVX512, None, 'ok'),
    ({'quota_cores': 1.5}, STOCK, 'cores', 'warning'),
    ({'quota_cores': 4.}, None, None, 'ok'),
    ({'memory_bytes': 1 << 30}, STOCK, 'memory', 'warning'),
    ({'max_open_files': 256}, STOCK, 'open files', 'warning'),
    ({'max_open_files': None}, STOCK, None, 'ok'),
])
def test_host(change, build, name, level):
  findings = host.check_host(GOOD._replace(**change), build)
  assert len(findings) == 4
  assert {finding.name: finding.level for finding in findings if finding.level != 'ok'} == (
      {name: level} if name else {})


@pytest.mark.parametrize('build, remedy', [
    (STOCK, 'give --inter_op_parallelism_threads=1 '),
    (TensorFlowBuild('intel-tensorflow', '1.15.2'), 'set `OMP_NUM_THREADS=1` and give '),
])
def test_fewer_threads_where_the_quota_is_less_than_a_core(build, remedy):
  (_, finding, _, _) = host.check_host(GOOD._replace(quota_cores=.5), build)
  assert 'the CPU time of 0.5' in finding.found and finding.remedy == (
      remedy + '--intra_op_parallelism_threads=1 --num_parallel_calls=1')


@pytest.mark.parametrize('text, cores', [
    ('150000 100000\n', 1.5), ('max 100000\n', None), ('-1\n 100000\n', None), (' ', None),
    ('200000\n 100000\n', 2.)])
def test_quota(text, cores):
  assert host.parse_quota(text) == cores


def test_this_host():
  found = host.inspect_host()
  assert 'avx' in found.cpu_flags and found.cores == len(os.sched_getaffinity(0))
  assert found.memory_bytes > 1 << 28


FOLDER = folders.Folder('--model_dir', '/a/b', '/a/b', True, True, True, 10**10)


@pytest.mark.parametrize('change, level, text', [
    ({}, 'ok', '/a/b, 10.0 GB free'),
    ({'existing_path': '/a'}, 'ok', '/a/b (does not exist yet), 10.0 GB free'),
    ({'free_bytes': 10**6}, 'error', '0.0 GB free'),
    ({'free_bytes': 10**9}, 'warning', '1.0 GB free'),
    ({'is_writable': False}, 'error', 'cannot be written to'),
    ({'is_folder': False}, 'error', 'is not a folder'),
    ({'flag': '--cache', 'free_bytes': 10**6}, 'error', '0.0 GB free'),
    ({'flag': '--data_dir'}, 'ok', '10.0 GB free'),
    ({'flag': '--data_dir', 'free_bytes': 0}, 'warning', 'downloading'),
    ({'flag': '--data_dir', 'is_writable': False}, 'ok', 'read-only'),
    ({'flag': '--data_dir', 'is_readable': False}, 'error', 'cannot be read'),
    ({'flag': '--data_dir', 'existing_path': '/a', 'is_writable': False}, 'error',
     'cannot be written'),
])
def test_folder(change, level, text):
  (finding,) = folders.check_folders([FOLDER._replace(**change)])
  assert finding.level == level and text in finding.format_line()


def test_folders_that_the_settings_name(tmp_path):
  (tmp_path / 'file').write_text('')
  found = folders.inspect_folders(Settings(
      mode='doctor', model_dir=str(tmp_path / 'new' / 'run'), data_dir=str(tmp_path / 'file'),
      cache=str(tmp_path)))
  assert [(folder.flag, folder.existing_path, folder.is_folder) for folder in found] == [
      ('--model_dir', str(tmp_path), True), ('--data_dir', str(tmp_path / 'file'), False),
      ('--cache', str(tmp_path), True)]
  assert all(folder.is_writable and folder.free_bytes > 0 for folder in found[::2])
  assert folders.inspect_folders(Settings(mode='doctor', cache='memory')) == []


def test_read_only_mount():
  # Not writable for root either.
  (folder,) = folders.inspect_folders(Settings(mode='doctor', model_dir='/proc/sys/none'))
  assert folder.existing_path == '/proc/sys' and folder.free_bytes == 0
