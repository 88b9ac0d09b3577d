"""Versions of an export: complete under a number that grows, or not there."""

import errno
import os
import shutil
import subprocess

import pytest

from estimator_train.errors import UserError
from estimator_train.exporting import export
from estimator_train.system import temporary_files


def fill(folder):
  with open(os.path.join(folder, 'file'), 'w') as file:
    file.write('content')


def test_the_time_is_the_number(tmp_path, monkeypatch):
  (tmp_path / '1234').write_text('a file in the way')
  (tmp_path / '1238').mkdir()
  (tmp_path / '1238' / 'file').write_text('theirs')
  # Two in a second, and a clock that goes back: the later one is the larger one. Then another
  # process is quicker.
  for secs, version in ((1234.5, '1239'), (1239.9, '1240'), (1000., '1241'), (5000., '5000'),
                        (1234.5, '1235'), (1238.5, '1242')):
    monkeypatch.setattr(export.time, 'time', lambda secs=secs: secs)
    if version == '1235':
      monkeypatch.setattr(export.os, 'listdir', lambda folder: [])  # As it was a moment ago.
    assert export.write_version(str(tmp_path), fill) == str(tmp_path / version)
    assert (tmp_path / version / 'file').read_text() == 'content'
    assert subprocess.call(['sha256sum', '--check', '--strict', '--quiet', 'SHA256SUMS'],
                           cwd=str(tmp_path / version)) == 0
    sums = (tmp_path / version / 'SHA256SUMS').read_text().splitlines()
    assert [line.split('  ')[1] for line in sums] == ['file']
    # Who may read other folders, such as the server, may read it.
    assert (tmp_path / version).stat().st_mode == (tmp_path / '1238').stat().st_mode
  assert (tmp_path / '1234').read_text() == 'a file in the way'
  assert (tmp_path / '1238' / 'file').read_text() == 'theirs'


def test_what_others_write_stays_and_what_a_killed_export_left_goes(tmp_path, monkeypatch):
  with temporary_files.make_folder(str(tmp_path / 'version')) as left:
    shutil.copytree(left, left[:-5].replace('.', '.of_a_killed_export.', 1) + '.part')
  (tmp_path / 'temp-mine').mkdir()
  seen = []

  def fill_while_another_exports(folder):
    fill(folder)
    before = os.listdir(str(tmp_path))  # The version has no final name before it is complete.
    assert len(before) == 2 and 'temp-mine' in before
    temporary_files._cleaned_folders.clear()  # As in another process, with the same PID and time.
    seen.append(export.write_version(str(tmp_path), lambda other: None))
    assert os.listdir(folder) == ['file']

  monkeypatch.setattr(temporary_files, '_cleaned_folders', set())
  monkeypatch.setattr(export.time, 'time', lambda: 1234.)
  monkeypatch.setattr(os, 'getpid', lambda: 1)
  version = export.write_version(str(tmp_path), fill_while_another_exports)
  assert set(os.listdir(str(tmp_path))) == {*map(os.path.basename, [*seen, version]), 'temp-mine'}


def test_what_fails_leaves_nothing(tmp_path):
  def fail(folder):
    fill(folder)
    raise OSError(errno.ENOSPC, 'No space left on device')

  with pytest.raises(UserError, match='--export_dir cannot be written to: .*No space left'):
    export.write_version(str(tmp_path), fail)
  assert os.listdir(str(tmp_path)) == []
