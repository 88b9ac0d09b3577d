"""Archives that are regular, unusual, malicious, damaged or partly unpacked; see
test_damaged_files.py for random ones."""

import logging
import os
import re
import shutil
import stat
import struct
import zipfile

import pytest

from estimator_train.datasets import unpack
from estimator_train.errors import UserError

FILES = {'a/1.jpeg': b'one', 'a/2.jpeg': b'two' * 1000, 'b/c/3.jpeg': b'', '4': os.urandom(5000)}
LINK, DEVICE = stat.S_IFLNK | 0o777, stat.S_IFCHR | 0o666


def member(name, mode=0):
  """Returns a member whose name may be any, as those of another program may be."""
  info = zipfile.ZipInfo('x')
  info.filename, info.external_attr = name, mode << 16
  return info


def make_archive(folder, members=None, compression=zipfile.ZIP_DEFLATED, change=None):
  """Writes an archive, and perhaps changes its bytes; returns its path."""
  path = folder / 'archive.zip'
  with zipfile.ZipFile(str(path), 'w', compression) as file:
    for name, data in members or FILES.items():
      file.writestr(name if isinstance(name, zipfile.ZipInfo) else member(name), data, compression)
  if change:
    path.write_bytes(change(path.read_bytes()))
  return str(path)


def content(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def out(tmp_path):
  return tmp_path / 'made' / 'on the way'


ODD_NAMES = {name: name.encode() for name in (
    'a..b/...', 'aa:b', 'a ', 'OCT2017 /train/x', 'größe', 'a\nb')}


@pytest.mark.filterwarnings('ignore:Duplicate name')
@pytest.mark.parametrize('members, num_skipped, expected, skipped', [
    (FILES.items(), 0, FILES, None), (ODD_NAMES.items(), 0, ODD_NAMES, None),
    ([('./a', b'1'), ('b//b', b'2'), ('c/./b', b'3'), ('./', b'')], 1,
     {'a': b'1', 'b/b': b'2', 'c/b': b'3'}, None),
    ([('a/1', b'one'), (member('a/link', LINK), b'/etc'), (member('null', DEVICE), b''),
      (member('a/regular', stat.S_IFREG | 0o4777), b'two'), ('__MACOSX/a/._1', b''),
      ('__MACOSX/b', b''), ('a/.DS_Store', b''), ('a/._1', b''), ('empty/', b'')], 7,
     {'a/1': b'one', 'a/regular': b'two'}, 'links and devices (2), macOS metadata (4)'),
    ([('a/x', b'1'), ('a/x', b'22'), ('A/X', b'333'), ('./a/x', b'4'), ('b', b'5')], 3,
     {'a/x': b'1', 'b': b'5'}, 'files of the same name (3)'),
    ([('copy/A /1', b'one'), ('A /1', b'one'), ('copy/A /2', b'other'), ('A /2', b'two'),
      ('copy/A /3', b'only here'), ('copy/copy/A /3', b'only here')], 1,
     {'A /1': b'one', 'A /2': b'two', 'copy/A /2': b'other', 'copy/A /3': b'only here',
      'copy/copy/A /3': b'only here'}, 'second copies (1)'),
    ([(member('1', LINK), b'one'), ('copy/1', b'one'), (member('link', LINK), b'/tmp'),
      ('link/file', b'data')], 2, {'copy/1': b'one', 'link/file': b'data'},
     'links and devices (2)')])
def test_what_is_unpacked(tmp_path, out, caplog, members, num_skipped, expected, skipped):
  caplog.set_level(logging.INFO, 'estimator_train')
  path = make_archive(tmp_path, members)
  assert unpack.unpack_zip(path, str(out), 'copy/') == (len(expected), 0, num_skipped)
  assert content(out) == expected
  assert not [path for path in out.rglob('*') if path.is_symlink() or path.name == 'empty'
              or path.is_file() and path.stat().st_mode & 0o7111]
  assert caplog.messages[0] == '{}: skipped {}'.format(path, skipped) or not skipped
  assert caplog.messages[-1] == 'unpacking: 100 %'
  inodes = {file: file.stat().st_ino for file in out.rglob('*')}
  assert unpack.unpack_zip(path, str(out), 'copy/') == (0, len(expected), num_skipped)
  assert inodes == {file: file.stat().st_ino for file in out.rglob('*')}


def test_other_files_of_that_name_are_replaced(tmp_path, out):
  (out / 'a').mkdir(parents=True)
  for name, data in {'a/1.jpeg': b'onE', 'a/2.jpeg': b'', '4': b'more', 'mine': b'stays'}.items():
    (out / name).write_bytes(data)
  assert unpack.unpack_zip(make_archive(tmp_path), str(out)).written == 4
  assert content(out) == {'mine': b'stays', **FILES}


@pytest.mark.parametrize('fault', ['killed', 'interrupted', 'disk'])
def test_stopped_half_way_and_repeated(tmp_path, out, fault):
  """A child that stops while it writes the second file."""
  path = make_archive(tmp_path)
  child = os.fork()
  if not child:
    def stop(source, target, unused_size):
      data = source.read()
      target.write(data[:2500])
      target.flush()
      if len(data) == 3000 and fault == 'killed':
        os.kill(os.getpid(), 9)
      if len(data) == 3000:
        raise KeyboardInterrupt if fault == 'interrupted' else OSError(28, 'No space left')

    shutil.copyfileobj, code = stop, 3
    try:
      unpack.unpack_zip(path, str(out))
    except KeyboardInterrupt:
      code = 1
    except UserError as error:
      code = 2 if 'No space left: choose a writable folder with 8,003 bytes' in str(error) else 3
    finally:
      os._exit(code)
  assert os.waitpid(child, 0)[1] == {'killed': 9, 'interrupted': 1 << 8, 'disk': 2 << 8}[fault]
  left = {'a/.unpacking': FILES['a/2.jpeg'][:2500]} if fault == 'killed' else {}
  assert content(out) == {'a/1.jpeg': b'one', **left}
  assert unpack.unpack_zip(path, str(out)) == (3, 1, 0) and content(out) == FILES


@pytest.mark.parametrize('name', [
    '/absolute', '//host/file', '../above', 'a/../../above', 'a/..', '..', 'C:/drive', 'c:relative',
    'a\\..\\..\\above', '\\root', 'nul\0.jpeg', '.', '', 'a/../b', '../folder/'])
def test_member_that_would_leave_the_folder(tmp_path, out, name):
  path = make_archive(tmp_path, [('fine', b''), (name, b'data')])
  with pytest.raises(UserError, match='path outside of its folder: ' + re.escape(path)):
    unpack.unpack_zip(path, str(out))
  assert list(content(tmp_path)) == ['archive.zip']


def repeat_entry(data):
  start, end = data.index(b'PK\1\2'), data.index(b'PK\5\6')
  return (data[:start] + 200 * data[start:end] + data[end:end + 8]
          + struct.pack('<2HL', 200, 200, 200 * (end - start)) + data[end + 16:])


def test_bomb_of_members_that_share_their_bytes(tmp_path, out, monkeypatch):
  """Each of them is a plain file; together they are 200 times as large as the archive."""
  path = make_archive(tmp_path, [('0000', os.urandom(100000))], change=repeat_entry)
  with pytest.raises(UserError, match=r'allowed size: .* \(200 files and 20,000,000 bytes from 11'):
    unpack.unpack_zip(path, str(out))
  for bound, value in (('MAX_FILES', 3), ('MAX_BYTES', 8002), ('MAX_RATIO', 1)):
    with monkeypatch.context() as patch, pytest.raises(
        UserError, match=r'the allowed size: .* \(4 files and 8,003 bytes from'):
      patch.setattr(unpack, bound, value)
      unpack.unpack_zip(make_archive(tmp_path), str(out))
  assert not out.exists()


def damage_data(data):
  place = data.index(FILES['4'][1000:1100])
  return data[:place] + b'!!' + data[place + 2:]


def encrypt(data):
  place = data.index(b'PK\1\2') + 8
  return (data[:6] + bytes([data[6] | 1]) + data[7:place] + bytes([data[place] | 1])
          + data[place + 1:])


def damage_packed(data):
  """Changes what follows the member's header, and LZMA's properties."""
  return data[:40] + b'\xff' * 100 + data[140:]


def understate(data):
  return data.replace(struct.pack('<L', 10000000), struct.pack('<L', 1000))


STORED, RANDOM = (None, zipfile.ZIP_STORED), [('a', os.urandom(1000))]


@pytest.mark.parametrize('made, change, written', [
    (STORED, damage_data, 3), (STORED, lambda data: data[:-10], 0), (STORED, lambda data: b'', 0),
    (STORED, lambda data: b'<html>' * 100, 0),
    (STORED, lambda data: data.replace(b'PK\3\4', b'PK\3\5'), 0),
    (STORED, lambda data: data[100:], 0),
    (STORED, lambda data: data[:-6] + b'\xff\xff\xff\x7f' + data[-2:], 0),
    ((RANDOM, zipfile.ZIP_DEFLATED), damage_packed, 0),
    ((RANDOM, zipfile.ZIP_LZMA), damage_packed, 0),
    ((RANDOM, zipfile.ZIP_BZIP2), damage_packed, 0), ((RANDOM,), encrypt, 0),
    (([('zeros', bytes(10000000))],), understate, 0)])
def test_damage(tmp_path, out, made, change, written):
  path = make_archive(tmp_path, *made, change=change)
  with pytest.raises(UserError, match='damaged, or not a zip file: {} .*{}remove it'.format(
      path, 'encrypted.*' if change is encrypt else '')):
    unpack.unpack_zip(path, str(out))
  assert len(content(out)) == written and content(out).items() <= FILES.items()


@pytest.mark.parametrize('members', [
    [('a', b''), ('a/b', b'')], [('a/b', b''), ('a', b'1')], [('n' * 300, b'')], None])
def test_what_cannot_be_stored(tmp_path, out, members):
  path = make_archive(tmp_path, members) if members else str(tmp_path / 'none.zip')
  with pytest.raises(UserError, match='cannot unpack {}: .*{}: choose a writable folder'.format(
      path, '' if members else path + ': No such file or directory')):
    unpack.unpack_zip(path, str(out))


def test_disk_too_small(tmp_path, out, monkeypatch):
  out.mkdir(parents=True)
  (out / '4').write_bytes(FILES['4'])
  usages = iter([shutil.disk_usage('/')._replace(free=free) for free in (3002, 3003)])
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: next(usages))
  with pytest.raises(UserError, match='3,002 bytes free, 3,003 are required: free some'):
    unpack.unpack_zip(make_archive(tmp_path), str(out))
  assert unpack.unpack_zip(make_archive(tmp_path), str(out)) == (3, 1, 0)
