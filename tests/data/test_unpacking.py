"""Archives of oct2017, unusual, malicious or damaged, are unpacked as a whole, or not at all."""

import os
import shutil
import stat
import struct
import tracemalloc
import zipfile
from unittest import mock

import pytest
from conftest import contents_of
from file_server import write_files

from estimator_train.data import oct2017
from estimator_train.errors import UserError

COUNTS = {'train': (2, 1, 1, 1), 'val': (1, 1, 1, 1), 'test': (1, 1, 1, 1)}
FILES = {'{}/{}/{}-{}.jpeg'.format(split, label, label, number):
         '{} {} {}'.format(split, label, number).encode() * 1000
         for split, counts in COUNTS.items()
         for label, count in zip(oct2017.CLASS_NAMES, counts) for number in range(count)}
FIRST = min(FILES)
LINK, SET_USER_ID = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o4777
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
# Nothing of this is unpacked, nor the second copy.
OTHERS = ('other/1', '__MACOSX/F /train/CNV/._CNV-0.jpeg', 'F /train/CNV/.hidden.jpeg',
          'F /train/CNV/a.txt', 'F /train/CNV/', 'F /mine/CNV/a.jpeg', '/absolute', '../above',
          'F /train/CNV/../../../above.jpeg', 'C:/drive', 'a\\..\\..\\above', '/train/CNV/..',
          'F /train/CNV/nul\0.jpeg', 'copy/F /' + FIRST)


def make_archive(folder, files=FILES, method=DEFLATED, mode=0, change=None, prefix='F /'):
  """Writes an archive, and perhaps changes its bytes; returns its path."""
  path = folder / 'archive.zip'
  with zipfile.ZipFile(str(path), 'w') as file:
    for name, data in [*((prefix + name, data) for name, data in files.items()),
                       *((name, b'clutter') for name in OTHERS)]:
      member = zipfile.ZipInfo('x')  # Whose name may be any, as those of another program may be.
      member.filename, member.external_attr = name, mode << 16
      file.writestr(member, data, method)
  if change:
    path.write_bytes(change(path.read_bytes()))
  return str(path)


def overwrite(data, place, new):
  return data[:place] + new + data[place + len(new):]


@pytest.fixture
def unpack(tmp_path, monkeypatch):
  """Unpacks an archive and returns its folder, or checks the error and that nothing is left."""
  monkeypatch.setattr(oct2017, 'IMAGE_COUNTS', COUNTS)
  write_files(tmp_path / 'out' / '.unpacking', {'F /old': b''})  # As a killed run leaves it.

  def unpack(path, message=None):
    target = tmp_path / 'out' / 'F '
    if message is None:
      oct2017.unpack_images(path, str(target))
      assert os.listdir(str(target.parent)) == ['F ']
    else:
      with pytest.raises(UserError, match=message.format(path)) as caught:
        oct2017.unpack_images(path, str(target))
      assert '\n' not in str(caught.value) and set(contents_of(tmp_path)) == {'archive.zip'}
    return target

  return unpack


@pytest.mark.parametrize('method, mode, prefix', [
    (STORED, SET_USER_ID, 'F /'), (DEFLATED, LINK, ''), (DEFLATED, 0, '../../')])
def test_what_is_unpacked(tmp_path, unpack, caplog, method, mode, prefix):
  """Also a link becomes an ordinary file, and no name leads out of the folder."""
  caplog.set_level('INFO', 'estimator_train')
  found = unpack(make_archive(tmp_path, method=method, mode=mode, prefix=prefix))
  assert contents_of(found) == FILES and caplog.messages[-1] == 'unpacking: 100 %'
  assert not [path for path in found.rglob('*') if path.is_symlink()
              or path.is_file() and path.stat().st_mode & 0o7111]
  assert set(os.listdir(str(tmp_path))) == {'archive.zip', 'out'}


def test_stopped_and_repeated(tmp_path, unpack):
  """The fixture `unpack` has what a killed process leaves."""
  path = make_archive(tmp_path)
  with mock.patch('os.rename', side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
    unpack(path)
  assert not contents_of(tmp_path / 'out') and contents_of(unpack(path)) == FILES


def test_bombs(tmp_path, unpack):
  """Many files, or more than fits on the disk; zipfile stops at the size in the header."""
  unpack(make_archive(tmp_path, {**FILES, 'train/CNV/another.jpeg': b''}), 'train/CNV: 3 of 2')

  # The size that the directory at the end states for the first image.
  path = make_archive(tmp_path, change=lambda data: overwrite(
      data, data.index(b'PK\1\2') + 24, struct.pack('<L', 2 ** 32 - 2)))
  usage = shutil.disk_usage('/')._replace(free=10 ** 9)
  with mock.patch('shutil.disk_usage', return_value=usage):
    unpack(path, '1.00 GB free, 4.30 GB are required: free some')


def encrypt(data):
  for flags in (6, data.index(b'PK\1\2') + 8):
    data = overwrite(data, flags, bytes([data[flags] | 1]))
  return data


@pytest.mark.parametrize('method, change', [
    *((method, lambda data: overwrite(data, 100, b'!!')) for method in (STORED, DEFLATED)),
    (STORED, lambda data: data[:-10]), (STORED, encrypt),
    (STORED, lambda data: data.replace(b'PK\3\4', b'PK\3\5')),
    # It states less than it has.
    (DEFLATED, lambda data: data.replace(struct.pack('<L', 100000), struct.pack('<L', 10000)))])
def test_damaged_archives_are_refused(tmp_path, unpack, method, change):
  first = bytes(range(256)) * 400 if method == STORED else os.urandom(1000) * 100
  unpack(make_archive(tmp_path, {**FILES, FIRST: first}, method, change=change),
         'damaged, or not a zip file: {} .*' + 'encrypted.*' * (change is encrypt) + 'remove it')


def test_memory_is_bounded(tmp_path, unpack):
  """A file of 100 MB."""
  path = make_archive(tmp_path, {**FILES, FIRST: b''.join(os.urandom(1000) + bytes(50000)
                                                          for _ in range(2000))})
  tracemalloc.start()
  assert (unpack(path) / FIRST).stat().st_size == 2000 * 51000
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 20e6
