"""Versions of an export: whole under a number that grows, or not there."""

import errno
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
  monkeypatch.setattr(versions.time, 'time', lambda: 1234.5)
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1234')
  assert (tmp_path / '1234' / 'file').read_text() == 'content'
  # Two in a second, and a clock that goes back: the later one is the larger one.
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1235')
  monkeypatch.setattr(versions.time, 'time', lambda: 1000.)
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1236')
  assert names(tmp_path) == ['1234', '1235', '1236']


def test_what_a_killed_export_left_is_removed(tmp_path):
  for name in ('temp-9999-1', 'temp-mine'):
    (tmp_path / name).mkdir()
  version = versions.write_version(str(tmp_path), fill)
  assert names(tmp_path) == [os.path.basename(version), 'temp-mine']


def test_what_another_process_writes_stays(tmp_path, monkeypatch):
  seen = []

  def fill_while_another_exports(folder):
    fill(folder)
    monkeypatch.setattr(versions.os, 'getpid', lambda: 4711)
    seen.append(versions.write_version(str(tmp_path), lambda other: None))
    assert os.listdir(folder) == ['file']

  version = versions.write_version(str(tmp_path), fill_while_another_exports)
  assert names(tmp_path) == sorted(map(os.path.basename, seen + [version]))


def test_others_are_passed_by(tmp_path, monkeypatch):
  monkeypatch.setattr(versions.time, 'time', lambda: 1234.5)
  (tmp_path / '1234').write_text('a file in the way')
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1235')
  assert (tmp_path / '1234').read_text() == 'a file in the way'


@pytest.mark.parametrize('in_the_way', ['folder', 'file'])
def test_another_process_is_quicker(tmp_path, monkeypatch, in_the_way):
  monkeypatch.setattr(versions.time, 'time', lambda: 1234.5)
  monkeypatch.setattr(versions.os, 'listdir', lambda folder: [])  # As it was a moment ago.
  if in_the_way == 'folder':
    (tmp_path / '1234').mkdir()
    (tmp_path / '1234' / 'file').write_text('theirs')
  else:
    (tmp_path / '1234').write_text('theirs')
  assert versions.write_version(str(tmp_path), fill) == str(tmp_path / '1235')
  assert names(tmp_path) == ['1234', '1235']


def test_serving_may_read_it(tmp_path):
  umask = os.umask(0o022)
  try:
    version = versions.write_version(str(tmp_path), fill)
  finally:
    os.umask(umask)
  assert os.stat(version).st_mode & 0o777 == 0o755


def test_it_has_no_final_name_before_it_is_whole(tmp_path):
  def look(folder):
    fill(folder)
    (name,) = names(tmp_path)
    assert name.startswith('temp-') and os.path.samefile(folder, str(tmp_path / name))

  versions.write_version(str(tmp_path), look)
  assert names(tmp_path)[0].isdigit()


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
