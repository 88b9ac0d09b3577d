"""Properties of what reads files of others, on damaged and odd ones.

A reader ends with a result or with a UserError of one line, in bounded time and memory. What an
idx check accepts is what the headers say, to the byte; nothing is unpacked outside of the folder.
"""

import collections
import contextlib
import io
import os
import resource
import signal
import stat
import struct
import tempfile
import warnings
import zipfile
import zlib

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from estimator_train.datasets import idx, unpack
from estimator_train.datasets.description import IdxSplit
from estimator_train.errors import UserError

EXAMPLES = max(300, settings.default.max_examples)  # --hypothesis-profile=long tries more.
TIMEOUT_SECS = 120  # For an input of some kB: against hangs, not for speed.
MAX_MORE_BYTES = 1 << 29
HEIGHT, WIDTH, CLASSES = 4, 3, 10
PAIRS = [(struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH)
          + bytes(index % 251 for index in range(count * HEIGHT * WIDTH)),
          struct.pack('>II', 0x801, count) + bytes(index % CLASSES for index in range(count)))
         for count in (1, 5, 300)]
IDX_CONTENTS = [content for pair in PAIRS for content in pair]
# What lengths, offsets and counts go wrong at.
NUMBERS = (0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff)
NAME_PARTS = ('/', '../', '..', '.', '\\', ':', 'C', 'a', 'A', 'b', ' ', '\0', '~', '\n',
              '\x1b[2J', 'é', '__MACOSX', '._', '.DS_Store', 'x' * 300, 'a/' * 3000, 'copy/',
              unpack.TEMPORARY_NAME)
NAMES = ('a', 'b', 'A', 'a/b', 'a/../b', '../b', '../../a', 'copy/a', 'copy/b', '.b', '__MACOSX/a')
KINDS = (0, 0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)
MEMBERS = (b'..', b'/', b'../outside', b'a', b'', b'zeros' * 1000, bytes(100), bytes(100000))
MAX_UNPACKED_BYTES = 1 << 22  # Of what some kB may become.

outcomes = collections.Counter()  # Of the inputs of a test: 'accepted', or what was wrong.


@st.composite
def damaged(draw, data, others):
  """One to three pieces of the bytes replaced, perhaps by nothing or by a piece of the others."""
  data = bytearray(data)
  for _ in range(draw(st.integers(1, 3))):
    start = draw(st.integers(0, len(data)))
    length = draw(st.sampled_from((0, 1, 1, 1, 4, 4, 200, len(data))))
    other = draw(st.sampled_from(others))
    piece = draw(st.integers(0, len(other)))
    data[start:start + length] = draw(st.one_of(
        st.just(b''), st.binary(min_size=min(length, 8), max_size=min(length, 200)),
        st.just(other[piece:piece + length]),
        st.builds(struct.pack, st.sampled_from(('>I', '<I')), st.sampled_from(NUMBERS))))
  return bytes(data)


@st.composite
def idx_files(draw):
  """The files of images and of labels, damaged within gzip, outside of it, both, or not at all."""
  files = []
  for good in draw(st.sampled_from(PAIRS)):
    content = draw(st.one_of(st.just(good), damaged(good, IDX_CONTENTS)))
    file = compress(content, draw(st.sampled_from((0, 1, 9)))) + draw(st.sampled_from(
        (b'', b'', b'', compress(IDX_CONTENTS[0], 1))))
    files.append(draw(st.one_of(st.just(file), st.just(file), damaged(file, IDX_CONTENTS))))
  return files


def compress(content, level):
  gzip = zlib.compressobj(level, zlib.DEFLATED, 31)
  return gzip.compress(content) + gzip.flush()


@st.composite
def archives(draw):
  """Archives of odd members, half of them damaged."""
  file = io.BytesIO()
  with warnings.catch_warnings(), zipfile.ZipFile(file, 'w') as archive:
    warnings.simplefilter('ignore')  # Names that are there twice.
    for _ in range(draw(st.integers(0, 5))):
      info = zipfile.ZipInfo('x')
      info.filename = draw(st.one_of(
          st.sampled_from(NAMES), st.lists(st.sampled_from(NAME_PARTS), max_size=5).map(''.join)))
      info.external_attr = (draw(st.sampled_from(KINDS)) | draw(st.integers(0, 0o7777))) << 16
      archive.writestr(info, draw(st.sampled_from(MEMBERS)), draw(st.sampled_from(
          (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))))
  data = file.getvalue()
  return draw(st.one_of(st.just(data), damaged(data, [data])))


@contextlib.contextmanager
def reading():
  """Yields a folder to read in; fails unless it goes well, or ends as an error of the user's."""
  def fail(*_):
    pytest.fail('longer than {} s'.format(TIMEOUT_SECS))

  memory = peak_bytes()
  before = signal.signal(signal.SIGALRM, fail)
  signal.alarm(TIMEOUT_SECS)
  try:
    with tempfile.TemporaryDirectory() as folder:
      yield folder
    outcomes['accepted'] += 1
  except UserError as error:
    assert len(str(error).splitlines()) == 1
    outcomes[error.what.replace(folder, '')] += 1
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
  assert peak_bytes() - memory <= MAX_MORE_BYTES


def peak_bytes():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(folder, name, data):
  path = os.path.join(folder, name)
  with open(path, 'wb') as file:
    file.write(data)
  return path


def check_idx(files):
  with reading() as folder:
    split = IdxSplit(*(write(folder, name, data) for name, data in zip('il', files)))
    count = idx.check_split(split, (HEIGHT, WIDTH, 1), CLASSES, checksummed=False)
    images, labels = (zlib.decompressobj(31).decompress(data) for data in files)
    assert images[:16] == struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH)
    assert labels[:8] == struct.pack('>II', 0x801, count)
    assert len(images) == 16 + count * HEIGHT * WIDTH and len(labels) == 8 + count
    assert count > 0 and max(labels[8:]) < CLASSES


def check_unpack(data):
  with reading() as folder:
    path = write(folder, 'archive.zip', data)
    write(folder, 'outside', b'mine')
    inside = os.path.join(folder, 'far', 'down', 'be', 'low')  # A name goes up by five at most.
    try:
      first = unpack.unpack_zip(path, inside, second_copy='copy/')
      again = unpack.unpack_zip(path, inside, second_copy='copy/')
      assert again == (0, first.written + first.present, first.skipped)
    finally:  # Also where it was refused.
      check_unpacked(folder, inside)


def check_unpacked(folder, inside):
  for parent, _, files in os.walk(folder):
    if parent != inside and not parent.startswith(inside + os.sep):
      assert sorted(files) == (['archive.zip', 'outside'] if parent == folder else []), parent
  with open(os.path.join(folder, 'outside'), 'rb') as outside:
    assert outside.read() == b'mine'
  total = 0
  for parent, folders, files in os.walk(inside):
    for name in folders + files:
      status = os.lstat(os.path.join(parent, name))
      assert stat.S_ISDIR(status.st_mode) if name in folders else stat.S_ISREG(status.st_mode)
      assert not unpack.is_macos_metadata(name) and not status.st_mode & stat.S_ISUID
      if name in files:  # A name may have changed, the bytes under it may not.
        with open(os.path.join(parent, name), 'rb') as file:
          assert file.read() in MEMBERS
        total += status.st_size
  assert total <= MAX_UNPACKED_BYTES


@pytest.mark.parametrize('check, inputs', [(check_idx, idx_files()), (check_unpack, archives())])
def test_damaged_files(check, inputs):
  outcomes.clear()
  settings(max_examples=EXAMPLES, deadline=None, database=None, report_multiple_bugs=False,
           suppress_health_check=[HealthCheck.too_slow])(given(inputs)(check))()
  # Neither all good nor all bad, and bad in several ways.
  assert 0.05 < outcomes['accepted'] / sum(outcomes.values()) < 0.95
  assert len(outcomes) >= 4
