"""The memory that limits of cgroups, of either version, and of address space leave to a process."""

import json
import os
import resource
import subprocess
import sys

import pytest
from conftest import ROOT

from estimator_train.process import memory

GB = 10 ** 9


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
  """Writes the files of cgroups: `{folder: (limit, use, inactive_file)}`."""
  def write(v2=(), v1=()):
    names = (('', 'memory.max', 'memory.current', 'inactive_file'),
             ('memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'))
    monkeypatch.setattr(memory, '_CGROUPS', tuple(
        (str(tmp_path / folder), limit, usage) for folder, limit, usage, _ in names))
    for (root, limit_name, usage_name, statistic), groups in zip(names, (v2, v1)):
      for folder, (limit, usage, inactive) in dict(groups).items():
        path = tmp_path / root / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / limit_name).write_text('{}\n'.format(limit))
        (path / usage_name).write_text('{}\n'.format(usage))
        (path / 'memory.stat').write_text('anon 5\n{} {}\n'.format(statistic, inactive))
  return write


@pytest.fixture(autouse=True)
def no_address_limit(monkeypatch):
  monkeypatch.setattr(memory, '_address_bytes_left', lambda: None)


@pytest.mark.parametrize('version', ['v2', 'v1'])
def test_a_container_s_limit(cgroups, version):
  cgroups(**{version: {'': (2 * GB, GB, GB // 2)}})
  assert memory.bytes_left_under_limits() == 3 * GB // 2
  assert memory.available_bytes() <= 3 * GB // 2


@pytest.mark.parametrize('limit', ['max', 2 ** 63 - 4096])
def test_no_limit(cgroups, limit):
  cgroups(v2={'': (limit, 0, 0)}, v1={'': (limit, 0, 0)})
  assert memory.bytes_left_under_limits() is None
  assert memory.available_bytes() > 0


def test_the_lowest_limit_of_this_process_s_cgroups_counts(cgroups, monkeypatch):
  monkeypatch.setattr('builtins.open', opens('4:memory:/job/step\n3:cpu:/other\n'))
  cgroups(v1={'job': (GB, 0, 0), 'job/step': (4 * GB, 0, 0), 'other': (300 * 10 ** 6, 0, 0)})
  assert memory.bytes_left_under_limits() == GB


def opens(cgroup):
  really = open

  def replaced(path, *args, **kwargs):
    if path != '/proc/self/cgroup':
      return really(path, *args, **kwargs)
    read, write = os.pipe()
    os.write(write, cgroup.encode())
    os.close(write)
    return os.fdopen(read)
  return replaced


def test_a_cgroup_that_is_full_leaves_what_a_start_takes(cgroups):
  cgroups(v2={'': (GB, GB, 0)})
  assert memory.available_bytes() == 0
  assert memory.bytes_left_under_limits() == 256 << 20


def test_address_space():
  code = ('import json; from estimator_train.process import memory; memory._CGROUPS = ();'
          'print(json.dumps(memory.bytes_left_under_limits()))')
  done = subprocess.run(
      [sys.executable, '-c', code], cwd=str(ROOT), check=True, timeout=60, stdout=subprocess.PIPE,
      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * GB, 8 * GB)))
  # Python itself has taken a little.
  assert 5 * GB < json.loads(done.stdout) < 8 * GB - 2 ** 31
