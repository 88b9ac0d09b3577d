"""Properties of what reads files of others, on damaged and odd ones.

A reader ends with a result or with a UserError of one line. What an idx check accepts is what the
headers say, to the byte; nothing is unpacked outside of the folder.
"""

import collections
import io
import os
import stat
import struct
import tempfile
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from estimator_train.data import download, idx, oct2017
from estimator_train.data.description import IdxSplit
from estimator_train.errors import UserError

EXAMPLES = max(300, settings.default.max_examples)  # --hypothesis-profile=long tries more.
HEIGHT, WIDTH, CLASSES = 4, 3, 10
PAIRS = [(struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH)
          + bytes(index % 251 for index in range(count * HEIGHT * WIDTH)),
          struct.pack('>II', 0x801, count) + bytes(index % CLASSES for index in range(count)))
         for count in (1, 5, 300)]
IDX_CONTENTS = [content for pair in PAIRS for content in pair]
# What lengths, offsets and counts go wrong at.
NUMBERS = (0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff)
NAME_PARTS = ('/', '../', '..', '.', '\\', ':', 'C', 'a', 'A', 'b', ' ', '\0', '~', '\n', 'é',
              '__MACOSX', '._', '.DS_Store', 'x' * 300, 'a/' * 3000, 'copy/', '.unpacking')
NAMES = ('F/a', 'F/b', 'F/A', 'F/a/b', 'F/a/../b', '../b', '../../a', 'F/F/a', 'F/.b', 'a')
KINDS = (0, 0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO)
MEMBERS = (b'..', b'/', b'../outside', b'a', b'', b'zeros' * 1000, bytes(100), bytes(100000))
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)


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
    file = compress(content) + draw(st.sampled_from((b'', b'', b'', compress(IDX_CONTENTS[0]))))
    files.append(draw(st.one_of(st.just(file), st.just(file), damaged(file, IDX_CONTENTS))))
  return files


def compress(content):
  gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
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
      archive.writestr(info, draw(st.sampled_from(MEMBERS)), draw(st.sampled_from(METHODS)))
  data = file.getvalue()
  return draw(st.one_of(st.just(data), damaged(data, [data])))


def check_idx(folder, files):
  split = IdxSplit(str(folder / 'images'), str(folder / 'labels'))
  for path, data in zip(split, files):
    Path(path).write_bytes(data)
  count = idx.check_split(split, (HEIGHT, WIDTH, 1), CLASSES, checksummed=False)
  images, labels = (zlib.decompressobj(31).decompress(data) for data in files)
  assert images[:16] == struct.pack('>IIII', 0x803, count, HEIGHT, WIDTH)
  assert labels[:8] == struct.pack('>II', 0x801, count)
  assert len(images) == 16 + count * HEIGHT * WIDTH and len(labels) == 8 + count
  assert count > 0 and max(labels[8:]) < CLASSES


def check_unpack(folder, data):
  (folder / 'archive.zip').write_bytes(data)
  (folder / 'outside').write_bytes(b'mine')
  inside = folder / 'far' / 'down' / 'be' / 'low'  # A name goes up by five at most.
  inside.mkdir(parents=True)
  try:
    with download.storing_in(str(inside), 0):
      oct2017.unpack_folder(str(folder / 'archive.zip'), lambda names: 'F/', str(inside / 'target'))
  finally:  # Also where it was refused.
    assert (folder / 'outside').read_bytes() == b'mine'
    assert set(os.listdir(str(inside))) <= {'target'}
    for path in folder.rglob('*'):
      mode = path.lstat().st_mode
      assert not mode & stat.S_ISUID and (stat.S_ISDIR(mode) or stat.S_ISREG(mode))
      if inside in path.parents:
        # A name may have changed, the bytes under it may not.
        assert path.is_dir() or path.read_bytes() in MEMBERS
      else:
        assert path.is_dir() or path in (folder / 'archive.zip', folder / 'outside')


@pytest.mark.parametrize('check, inputs, kinds', [
    (check_idx, idx_files(), 4), (check_unpack, archives(), 4)])
def test_damaged_files(check, inputs, kinds):
  outcomes = collections.Counter()

  @settings(max_examples=EXAMPLES, deadline=None, database=None, report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow])
  @given(inputs)
  def run(data):
    with tempfile.TemporaryDirectory() as folder:
      try:
        check(Path(folder), data)
        outcomes['accepted'] += 1
      except UserError as error:
        assert len(str(error).splitlines()) == 1
        outcomes[error.what.replace(folder, '')] += 1

  run()
  # Neither all good nor all bad, and bad in several ways.
  assert 0 < outcomes['accepted'] / sum(outcomes.values()) < 0.95 and len(outcomes) >= kinds
