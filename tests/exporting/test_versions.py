"""Versions of an export: complete under a number that grows, or not there."""

import errno
import fcntl
import os

import pytest

from estimator_train.errors import UserError
from estimator_train.exporting import versions


def fill(folder):
  with open(os.path.join(folder, 'file'), 'w') as file:
    file.write('content')


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_the_time_is_the_number(tmp_path, monkeypatch):
  (tmp_path / '1234').write_text('a file in the way')
  umask = os.umask(0o022)
  try:
    # Two in a second, and a clock that goes back: the later one is the larger one.
    for secs, version in ((1234.5, '1235'), (1234.5, '1236'), (1000., '1237')):
      monkeypatch.setattr(versions.time, 'time', lambda secs=secs: secs)
      assert versions.write_version(str(tmp_path), fill) == str(tmp_path / version)
      assert (tmp_path / version / 'file').read_text() == 'content'
      assert (tmp_path / version).stat().st_mode & 0o777 == 0o755  # The server may read it.
  finally:
    os.umask(umask)
  assert (tmp_path / '1234').read_text() == 'a file in the way'
  monkeypatch.setattr(versions.time, 'time', lambda: 5000.)
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '5000')


def test_what_others_write_stays_and_what_a_killed_export_left_goes(tmp_path, monkeypatch):
  for name in ('temp-9999-1', 'temp-mine'):
    (tmp_path / name).mkdir()
  seen = []

  def fill_while_another_exports(folder):
    fill(folder)
    before = names(tmp_path)  # The version has no final name before it is complete.
    assert len(before) == 2 and 'temp-mine' in before
    descriptor = os.open(str(tmp_path), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # Its lock is not exclusive.
    os.close(descriptor)
    monkeypatch.setattr(versions.os, 'getpid', lambda: 4711)
    seen.append(versions.write_version(str(tmp_path), lambda other: None))
    assert os.listdir(folder) == ['file']

  version = versions.write_version(str(tmp_path), fill_while_another_exports)
  assert names(tmp_path) == sorted(map(os.path.basename, seen + [version])) + ['temp-mine']


@pytest.mark.parametrize('is_folder', [True, False])
def test_another_process_is_quicker(tmp_path, monkeypatch, is_folder):
  monkeypatch.setattr(versions.time, 'time', lambda: 1234.5)
  monkeypatch.setattr(versions.os, 'listdir', lambda folder: [])  # As it was a moment ago.
  theirs = tmp_path / '1234'
  if is_folder:
    theirs.mkdir()
    theirs = theirs / 'file'
  theirs.write_text('theirs')
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1235')
  assert names(tmp_path) == ['1234', '1235'] and theirs.read_text() == 'theirs'


@pytest.mark.parametrize('error, raised', [
    (KeyboardInterrupt(), KeyboardInterrupt),
    (OSError(errno.ENOSPC, 'No space left on device'), UserError),
])
def test_what_fails_leaves_nothing(tmp_path, error, raised):
  def fail(folder):
    fill(folder)
    raise error

  with pytest.raises(raised) as caught:
    versions.write_version(str(tmp_path), fail)
  assert names(tmp_path) == []
  if raised is UserError:
    assert '--export_dir cannot be written to: {} ('.format(tmp_path) in str(caught.value)
    assert 'No space left' in str(caught.value)
