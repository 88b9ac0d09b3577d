"""unpack.unpack_zip with regular, unusual, malicious, damaged and partly unpacked archives."""

import logging
import os
import re
import resource
import shutil
import stat
import struct
import sys
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings, strategies

from estimator_train.datasets import unpack
from estimator_train.errors import UserError

FILES = {'a/1.jpeg': b'one', 'a/2.jpeg': b'two' * 1000, 'b/c/3.jpeg': b'', '4': os.urandom(5000)}
LINK = stat.S_IFLNK | 0o777
DEVICE = stat.S_IFCHR | 0o666


def member(name, mode=0):
  """Returns a member whose name may be any, as those of another program may be."""
  info = zipfile.ZipInfo('x')
  info.filename, info.external_attr = name, mode << 16
  return info


@pytest.fixture
def archive(tmp_path):
  return lambda members=None: make_archive(tmp_path, members or FILES.items())


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  return caplog


def make_archive(folder, members, compression=zipfile.ZIP_DEFLATED):
  path = folder / 'archive.zip'
  with zipfile.ZipFile(str(path), 'w', compression) as file:
    for name, data in members:
      info = name if isinstance(name, zipfile.ZipInfo) else member(name)
      file.writestr(info, data, compression)
  return str(path)


def content(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


def test_plain(archive, tmp_path, log):
  folder = tmp_path / 'made' / 'on the way'
  assert unpack.unpack_zip(archive(), str(folder)) == (4, 0, 0)
  assert content(folder) == FILES
  assert log.messages == ['unpacking: 37 %', 'unpacking: 100 %']


def test_bar_on_a_terminal(archive, tmp_path, monkeypatch, log, capsys):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
  unpack.unpack_zip(archive(), str(tmp_path / 'out'))
  out, err = capsys.readouterr()
  assert not out and not log.messages
  assert 'unpacking: 100%' in err and '8.00k/8.00k' in err


def test_umask_and_not_the_archive_says_the_rights(archive, tmp_path):
  before = os.umask(0o027)
  try:
    unpack.unpack_zip(archive([(member('a/setuid', 0o104777), b'')]), str(tmp_path / 'out'))
  finally:
    os.umask(before)
  assert stat.S_IMODE((tmp_path / 'out' / 'a' / 'setuid').stat().st_mode) == 0o640
  assert stat.S_IMODE((tmp_path / 'out' / 'a').stat().st_mode) == 0o750


def test_repeated_writes_nothing(archive, tmp_path):
  path = archive()
  unpack.unpack_zip(path, str(tmp_path / 'out'))
  inodes = {file: file.stat().st_ino for file in (tmp_path / 'out').rglob('*')}
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (0, 4, 0)
  assert inodes == {file: file.stat().st_ino for file in (tmp_path / 'out').rglob('*')}


@pytest.mark.parametrize('data', [b'', b'onE', b'more'])
def test_other_file_of_that_name_is_replaced(archive, tmp_path, data):
  (tmp_path / 'out' / 'a').mkdir(parents=True)
  (tmp_path / 'out' / 'a' / '1.jpeg').write_bytes(data)
  (tmp_path / 'out' / 'mine').write_bytes(b'stays')
  assert unpack.unpack_zip(archive(), str(tmp_path / 'out')).written == 4
  assert content(tmp_path / 'out') == {'mine': b'stays', **FILES}


def test_killed_half_way_and_repeated(archive, tmp_path):
  """A child that is killed while it writes the second file."""
  path = archive()
  child = os.fork()
  if not child:
    def die(source, target, unused_size):
      data = source.read()
      target.write(data[:2500])
      target.flush()
      if len(data) == 3000:
        os.kill(os.getpid(), 9)
    shutil.copyfileobj = die
    unpack.unpack_zip(path, str(tmp_path / 'out'))
    os._exit(0)
  assert os.waitpid(child, 0)[1] == 9
  assert content(tmp_path / 'out') == {'a/1.jpeg': b'one', 'a/.unpacking': (b'two' * 1000)[:2500]}
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (3, 1, 0)
  assert content(tmp_path / 'out') == FILES


def test_interrupt_leaves_whole_files_only(archive, tmp_path, monkeypatch):
  def interrupt(source, target, unused_size):
    data = source.read()
    target.write(data[:2500])
    if len(data) == 3000:
      raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(shutil, 'copyfileobj', interrupt)
    with pytest.raises(KeyboardInterrupt):
      unpack.unpack_zip(archive(), str(tmp_path / 'out'))
  assert content(tmp_path / 'out') == {'a/1.jpeg': b'one'}


@pytest.mark.parametrize('name', [
    '/absolute', '//host/file', '../above', 'a/../../above', 'a/..', '..', 'C:/drive', 'c:relative',
    'a\\..\\..\\above', '\\root', 'nul\0.jpeg', '.', './', '', 'a/../b', '../folder/',
])
def test_member_that_would_leave_the_folder(archive, tmp_path, name):
  path = archive([('fine', b''), (name, b'data')])
  if name in ('./',):  # A folder that is the folder itself.
    assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (1, 0, 1)
    return
  with pytest.raises(UserError, match='path outside of its folder: ' + re.escape(path)):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert list(content(tmp_path)) == ['archive.zip']


@pytest.mark.parametrize('name, expected', [
    ('./a', 'a'), ('a//b', 'a/b'), ('a/./b', 'a/b'), ('a..b/...', 'a..b/...'), ('a:b', 'a:b'),
    ('a ', 'a '), ('OCT2017 /train/x', 'OCT2017 /train/x'), ('größe', 'größe'), ('a\nb', 'a\nb'),
])
def test_odd_names(archive, tmp_path, name, expected):
  if name == 'a:b':
    name = expected = 'aa:b'  # A single letter would be a drive's.
  unpack.unpack_zip(archive([(name, b'data')]), str(tmp_path / 'out'))
  assert content(tmp_path / 'out') == {expected: b'data'}


def test_links_devices_and_clutter_are_left_out(archive, tmp_path, log):
  path = archive([
      ('a/1', b'one'), (member('a/link', LINK), b'/etc'), (member('null', DEVICE), b''),
      (member('a/regular', stat.S_IFREG | 0o644), b'two'), ('__MACOSX/a/._1', b''),
      ('__MACOSX/b', b''), ('a/.DS_Store', b''), ('a/._1', b''), ('empty/', b'')])
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (2, 0, 7)
  assert content(tmp_path / 'out') == {'a/1': b'one', 'a/regular': b'two'}
  assert sorted(os.listdir(str(tmp_path / 'out'))) == ['a']
  assert path + ': skipped links and devices (2), macOS metadata (4)' in log.messages


def test_member_through_a_link_of_the_archive(archive, tmp_path):
  outside = tmp_path / 'outside'
  outside.mkdir()
  path = archive([(member('link', LINK), str(outside).encode()), ('link/file', b'data')])
  unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert content(tmp_path / 'out') == {'link/file': b'data'} and not content(outside)


@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_first_of_the_same_name_stays(archive, tmp_path, log):
  path = archive([('a/x', b'1'), ('a/x', b'22'), ('A/X', b'333'), ('./a/x', b'4'), ('b', b'5')])
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (2, 0, 3)
  assert content(tmp_path / 'out') == {'a/x': b'1', 'b': b'5'}
  assert path + ': skipped files of the same name (3)' in log.messages


def test_second_copy_is_left_out(archive, tmp_path, log):
  path = archive([
      ('copy/A /1', b'one'), ('A /1', b'one'), ('copy/A /2', b'other'), ('A /2', b'two'),
      ('copy/A /3', b'only here'), ('copy/copy/A /3', b'only here')])
  assert unpack.unpack_zip(path, str(tmp_path / 'out'), 'copy/').skipped == 1
  assert content(tmp_path / 'out') == {'A /1': b'one', 'A /2': b'two', 'copy/A /2': b'other',
                                       'copy/A /3': b'only here', 'copy/copy/A /3': b'only here'}
  assert path + ': skipped second copies (1)' in log.messages


def test_second_copy_of_a_link_stays(archive, tmp_path):
  unpack.unpack_zip(archive([(member('1', LINK), b'one'), ('copy/1', b'one')]),
                    str(tmp_path / 'out'), 'copy/')
  assert content(tmp_path / 'out') == {'copy/1': b'one'}


@pytest.mark.parametrize('bound, value', [('MAX_FILES', 3), ('MAX_BYTES', 8002), ('MAX_RATIO', 1)])
def test_bomb(archive, tmp_path, monkeypatch, bound, value):
  path = archive()
  monkeypatch.setattr(unpack, bound, value)
  with pytest.raises(UserError, match=r'the allowed size: .* \(4 files and 8,003 bytes from'):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()


def test_bomb_of_zeros(archive, tmp_path):
  with pytest.raises(UserError, match='more than the allowed size'):
    unpack.unpack_zip(archive([('zeros', bytes(10000000))]), str(tmp_path / 'out'))


def test_bomb_of_members_that_share_their_bytes(archive, tmp_path):
  """Each of them is a plain file; together they are 200 times as large as the archive."""
  path = archive([('0000', os.urandom(100000))])
  with open(path, 'rb') as file:
    data = file.read()
  start = data.index(b'PK\1\2')
  entry, end = data[start:data.index(b'PK\5\6')], data[data.index(b'PK\5\6'):]
  with open(path, 'wb') as file:
    file.write(data[:start] + 200 * entry + end[:8]
               + struct.pack('<2HL', 200, 200, 200 * len(entry)) + end[16:])
  with pytest.raises(UserError, match=r'allowed size: .* \(200 files and 20,000,000 bytes from 11'):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()


def test_bomb_that_lies_about_its_size(archive, tmp_path):
  path = archive([('zeros', bytes(10000000))])
  with open(path, 'r+b') as file:
    data = file.read()
    file.seek(0)
    file.write(data.replace(struct.pack('<L', 10000000), struct.pack('<L', 1000)))
  with pytest.raises(UserError, match='damaged'):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert not content(tmp_path / 'out')


def damage_data(data):
  place = data.index(FILES['4'][1000:1100])
  return data[:place] + b'!!' + data[place + 2:]


@pytest.mark.parametrize('damage, written', [
    pytest.param(damage_data, 3, id='a byte of the data'),
    pytest.param(lambda data: data[:-10], 0, id='cut at the end'),
    pytest.param(lambda data: data[:len(data) // 2], 0, id='cut in the middle'),
    pytest.param(lambda data: b'', 0, id='empty'),
    pytest.param(lambda data: b'<html>' * 100, 0, id='a page'),
    pytest.param(lambda data: data.replace(b'PK\3\4', b'PK\3\5'), 0, id='headers'),
    pytest.param(lambda data: data[100:], 0, id='begins later'),
    pytest.param(lambda data: data[:-6] + b'\xff\xff\xff\x7f' + data[-2:], 0, id='offset'),
])
def test_damage(tmp_path, damage, written):
  path = make_archive(tmp_path, FILES.items(), zipfile.ZIP_STORED)
  with open(path, 'rb') as file:
    data = damage(file.read())
  with open(path, 'wb') as file:
    file.write(data)
  with pytest.raises(UserError, match='damaged, or not a zip file: {} .*remove it'.format(path)):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  there = content(tmp_path / 'out')
  assert len(there) == written and there.items() <= FILES.items()


@pytest.mark.parametrize('compression', [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damage_of_compressed_data(tmp_path, compression):
  path = make_archive(tmp_path, [('a', os.urandom(1000))], compression)
  with open(path, 'r+b') as file:
    file.seek(31 + 9)  # After the member's header, and LZMA's properties.
    file.write(b'\xff' * 100)
  with pytest.raises(UserError, match='damaged, or not a zip file: {} .*remove it'.format(path)):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert not content(tmp_path / 'out')


def test_encrypted(archive, tmp_path):
  path = archive([('a', b'data')])
  with open(path, 'rb') as file:
    data = bytearray(file.read())
  data[6] |= 1
  data[data.index(b'PK\1\2') + 8] |= 1
  with open(path, 'wb') as file:
    file.write(data)
  with pytest.raises(UserError, match='encrypted'):
    unpack.unpack_zip(path, str(tmp_path / 'out'))


def test_no_archive(tmp_path):
  with pytest.raises(UserError, match='cannot unpack {0}: {0}: No such file'.format(
      tmp_path / 'none.zip')):
    unpack.unpack_zip(str(tmp_path / 'none.zip'), str(tmp_path / 'out'))


@pytest.mark.parametrize('members', [
    pytest.param([('a', b''), ('a/b', b'')], id='below a file'),
    pytest.param([('a/b', b''), ('a', b'1')], id='over a folder'),
    pytest.param([('n' * 300, b'')], id='long name'),
])
def test_members_that_cannot_be(archive, tmp_path, members):
  path = archive(members)
  with pytest.raises(UserError, match='cannot unpack {}: .*choose a writable folder'.format(path)):
    unpack.unpack_zip(path, str(tmp_path / 'out'))


def test_disk_too_small(archive, tmp_path, monkeypatch):
  path = archive()
  (tmp_path / 'out').mkdir()
  (tmp_path / 'out' / '4').write_bytes(FILES['4'])
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=3002))
  with pytest.raises(UserError, match='3,002 bytes free, 3,003 are required: free some'):
    unpack.unpack_zip(path, str(tmp_path / 'out'))
  assert content(tmp_path / 'out') == {'4': FILES['4']}
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=3003))
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (3, 1, 0)


def test_full_disk(archive, tmp_path):
  path = archive()
  # The limit on the size of a file stands for the disk: writing fails in the middle likewise.
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
  try:
    with pytest.raises(UserError, match='File too large: choose .* with 8,003 bytes of free'):
      unpack.unpack_zip(path, str(tmp_path / 'out'))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert content(tmp_path / 'out') == {'a/1.jpeg': b'one'}
  assert unpack.unpack_zip(path, str(tmp_path / 'out')) == (3, 1, 0)


# Names of what matters to paths, put together at random.
PIECES = strategies.sampled_from(
    ['/', '/', '..', '.', '\\', ':', 'C', 'a', 'A', 'b', ' ', '\0', '~', '\n', 'é', '__MACOSX',
     '._', '.DS_Store', '$HOME', '*'])
NAMES = strategies.lists(PIECES, max_size=6).map(''.join)
MODES = strategies.sampled_from([0, stat.S_IFREG | 0o644, LINK, DEVICE, stat.S_IFDIR | 0o777])


@pytest.mark.filterwarnings('ignore:Duplicate name')
@settings(max_examples=300, deadline=None, database=None)
@given(members=strategies.lists(strategies.tuples(NAMES, MODES), min_size=1, max_size=5))
def test_no_member_leaves_the_folder(tmp_path_factory, members):
  top, names = tmp_path_factory.mktemp('top'), [name for name, _ in members]
  path = make_archive(top, [(member(*given), given[0].encode()) for given in members])
  (top / 'a').write_bytes(b'mine')
  folder = top / 'b' / 'out'
  try:
    done = unpack.unpack_zip(path, str(folder))
  except UserError as error:
    assert '\n' not in str(error)
    done = None
  outside = {name for name in content(top) if not name.startswith('b/out/')}
  assert outside == {'a', 'archive.zip'} and (top / 'a').read_bytes() == b'mine'
  inside = content(folder)
  assert not [path for path in folder.rglob('*') if path.is_symlink()]
  for name, data in inside.items():
    assert os.path.normpath(data.decode()) == name
    assert not any(unpack.is_macos_metadata(part) for part in name.split('/'))
  if done:
    assert len(inside) == done.written and sum(done) == len(names)
    assert not [name for name in names if name.startswith('/') or '..' in name.split('/')]


@settings(max_examples=200, deadline=None, database=None)
@given(place=strategies.floats(0, 1), byte=strategies.integers(1, 255))
def test_no_byte_breaks_it(tmp_path_factory, place, byte):
  """A flipped byte anywhere: what is written is of the archive."""
  top = tmp_path_factory.mktemp('top')
  path = make_archive(top, FILES.items())
  with open(path, 'rb') as file:
    data = bytearray(file.read())
  data[int(place * (len(data) - 1))] ^= byte
  with open(path, 'wb') as file:
    file.write(data)
  try:
    unpack.unpack_zip(path, str(top / 'out'))
  except UserError:
    pass
  # A name may have changed, the bytes under it may not.
  assert set(content(top / 'out').values()) <= set(FILES.values())


def test_memory_is_flat(tmp_path):
  path = make_archive(tmp_path, [('large', os.urandom(1 << 24))], zipfile.ZIP_STORED)
  tracemalloc.start()
  try:
    for expected in ((1, 0, 0), (0, 1, 0)):
      assert unpack.unpack_zip(path, str(tmp_path / 'out')) == expected
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
  finally:
    tracemalloc.stop()
