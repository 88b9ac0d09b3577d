"""Archives, regular, unusual, malicious or damaged, are unpacked as a whole, or not at all."""

import os
import re
import shutil
import stat
import struct
import tracemalloc
import zipfile

import pytest
from conftest import contents_of

from estimator_train.data import download, oct2017
from estimator_train.errors import UserError

FILES = {name: name.encode() * 1000 for name in (
    'a/1.jpeg', 'a/2.jpeg', 'b/c/3.jpeg', '4', 'a..b/c...', 'aa:b', 'a ', 'größe', 'a\nb')}
# Of another folder, and hidden ones.
OTHERS = dict.fromkeys(['other/1', 'copy/F /1', '__MACOSX/F /._1', 'F /.DS_Store', 'F /a/._1',
                        'F /empty/'], b'')
LINK, DEVICE, SET_USER_ID = stat.S_IFLNK | 0o777, stat.S_IFCHR | 0o666, stat.S_IFREG | 0o4777
STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def make_archive(folder, files=FILES, method=DEFLATED, mode=0, change=None, prefix='F /'):
  """Writes an archive, and perhaps changes its bytes; returns its path."""
  path = folder / 'archive.zip'
  with zipfile.ZipFile(str(path), 'w') as file:
    for name, data in files.items():
      member = zipfile.ZipInfo('x')  # Whose name may be any, as those of another program may be.
      member.filename, member.external_attr = prefix + name, mode << 16
      file.writestr(member, data, method)
    if files is FILES:
      for name, data in OTHERS.items():
        file.writestr(name, data)
  if change:
    path.write_bytes(change(path.read_bytes()))
  return str(path)


@pytest.fixture
def unpack(tmp_path):
  """Unpacks an archive and returns its folder, or checks the error and that nothing is left."""
  (tmp_path / 'out' / '.unpacking' / 'F ').mkdir(parents=True)  # As a killed run leaves it.
  (tmp_path / 'out' / '.unpacking' / 'F ' / 'old').touch()

  def unpack(path, message=None):
    target = tmp_path / 'out' / 'F '
    if message is None:
      oct2017.unpack_folder(path, lambda names: 'F /', str(target))
      assert os.listdir(str(target.parent)) == ['F ']
    else:
      with pytest.raises(UserError, match=message.format(path)) as caught, \
          download.storing_in(str(target.parent), 0):
        oct2017.unpack_folder(path, lambda names: 'F /', str(target))
      assert '\n' not in str(caught.value)
      assert not contents_of(target.parent) and set(contents_of(tmp_path)) <= {'archive.zip'}
    return target

  return unpack


@pytest.mark.parametrize('method', [STORED, DEFLATED])
def test_what_is_unpacked(tmp_path, unpack, caplog, method):
  caplog.set_level('INFO', 'estimator_train')
  found = unpack(make_archive(tmp_path, method=method, mode=SET_USER_ID))
  assert contents_of(found) == FILES and caplog.messages[-1] == 'unpacking: 100 %'
  assert not [path for path in found.rglob('*') if path.name == 'empty'
              or path.is_file() and path.stat().st_mode & 0o7111]


@pytest.mark.parametrize('fault, expected', [
    (KeyboardInterrupt(), KeyboardInterrupt), (OSError(28, 'No space left'), UserError)])
def test_stopped_half_way_and_repeated(tmp_path, unpack, monkeypatch, fault, expected):
  """The fixture `unpack` has what a killed process leaves."""
  path, target = make_archive(tmp_path), str(tmp_path / 'out' / 'F ')

  def stop(source, target, *unused):
    target.write(source.read()[:2500])
    if target.name.endswith('2.jpeg'):
      raise fault

  with monkeypatch.context() as patch, pytest.raises(expected), download.storing_in(target, 0):
    patch.setattr(shutil, 'copyfileobj', stop)
    oct2017.unpack_folder(path, lambda names: 'F /', target)
  assert not contents_of(tmp_path / 'out') and contents_of(unpack(path)) == FILES


def test_names_and_kinds_that_are_refused(tmp_path, unpack):
  for name in ('/absolute', '//host/file', '../above', 'a/../../above', '..', 'C:/drive',
               'c:relative', 'a\\..\\..\\above', '\\root', 'nul\0.jpeg', 'a/../b', '../folder/'):
    unpack(make_archive(tmp_path, {'F /fine': b'', name: b'data'}, prefix=''),
           'files in its folder only: {} .' + re.escape(repr(name)).replace('{', '{{'))
  for options in ({'mode': LINK}, {'mode': DEVICE}, {'method': zipfile.ZIP_LZMA}):
    unpack(make_archive(tmp_path, {'a': b'/etc'}, **options), "only: {} .'F /a'.: download it")


def repeat_entry(data):
  start, end = data.index(b'PK\1\2'), data.index(b'PK\5\6')
  return (data[:start] + 200 * data[start:end] + data[end:end + 8]
          + struct.pack('<2HL', 200, 200, 200 * (end - start)) + data[end + 16:])


def test_bombs(tmp_path, unpack, monkeypatch):
  """Also of members that share their bytes: together they are 200 times as large."""
  unpack(make_archive(tmp_path, {'0000': os.urandom(100000)}, change=repeat_entry),
         r'allowed size: .* \(200 files and 20,000,000 bytes from 11')
  path = make_archive(tmp_path)
  total = sum(map(len, FILES.values()))
  for bound, value in (('MAX_FILES', len(FILES) + len(OTHERS) - 1), ('MAX_BYTES', total - 1),
                       ('MAX_RATIO', 1)):
    with monkeypatch.context() as patch:
      patch.setattr(oct2017, bound, value)
      unpack(path, r'the allowed size: .* \({} files and {:,} bytes from'.format(
          len(FILES) + len(OTHERS), total))
  monkeypatch.setattr(oct2017, 'MAX_FILES', len(FILES) + len(OTHERS))
  monkeypatch.setattr(oct2017, 'MAX_BYTES', total)
  assert contents_of(unpack(path)) == FILES


def damage_data(data):
  return data[:100] + b'!!' + data[102:]


def encrypt(data):
  place = data.index(b'PK\1\2') + 8
  return (data[:6] + bytes([data[6] | 1]) + data[7:place] + bytes([data[place] | 1])
          + data[place + 1:])


@pytest.mark.parametrize('method, change', [
    (STORED, damage_data), (DEFLATED, damage_data), (STORED, lambda data: data[:-10]),
    (STORED, encrypt), (STORED, lambda data: data.replace(b'PK\3\4', b'PK\3\5')),
    (STORED, lambda data: data[100:]),
    # It states less than it has.
    (DEFLATED, lambda data: data.replace(struct.pack('<L', 100000), struct.pack('<L', 10000)))])
def test_damage(tmp_path, unpack, method, change):
  files = {'a': bytes(range(256)) * 400 if method == STORED else os.urandom(1000) * 100}
  unpack(make_archive(tmp_path, files, method, change=change),
         'damaged, or not a zip file: {} .*' + 'encrypted.*' * (change is encrypt) + 'remove it')


def test_what_cannot_be_stored(tmp_path, unpack, monkeypatch):
  for files in ({'a': b'', 'a/b': b''}, {'n' * 300: b''}):
    unpack(make_archive(tmp_path, files), 'cannot store the data set: .*: choose a writable')
  total = sum(map(len, FILES.values()))
  usages = iter([shutil.disk_usage('/')._replace(free=free) for free in (total - 1, total)])
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: next(usages))
  path = make_archive(tmp_path)
  unpack(path, '{:,} bytes free, {:,} are required: free some'.format(total - 1, total))
  assert contents_of(unpack(path)) == FILES


def test_memory_is_bounded(tmp_path, unpack):
  """A file of 100 MB."""
  path = make_archive(tmp_path, {'a': b''.join(os.urandom(1000) + bytes(50000)
                                               for _ in range(2000))})
  tracemalloc.start()
  assert (unpack(path) / 'a').stat().st_size == 2000 * 51000
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 20e6
