"""Properties of what reads files of others, on damaged ones.

A reader ends with a result or with a UserError of one line. What an idx check accepts is what the
headers say, to the byte; nothing is unpacked outside of the folder.
"""

import collections
import io
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path

import pytest
from file_server import content
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
MEMBERS = {'F/a': b'zeros' * 1000, 'F/b/c': bytes(100000), 'F/d': b'', '../outside': b'', 'e': b'e'}


def compress(content):
  gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
  return gzip.compress(content) + gzip.flush()


def archive(method, names):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', method) as archive:
    for name in names:
      archive.writestr(name, MEMBERS[name])
  return file.getvalue()


ARCHIVES = [archive(method, names) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            for names in (['F/a', 'F/b/c', 'F/d', 'e'], ['F/b/c', '../outside'])]


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
  (folder / 'inside').mkdir()
  (folder / 'archive.zip').write_bytes(data)
  try:
    with download.storing_in(str(folder / 'inside'), 0):
      oct2017.unpack_folder(str(folder / 'archive.zip'), lambda names: 'F/',
                            str(folder / 'inside' / 'target'))
  finally:  # Also where it was refused. A name may have changed, the bytes under it may not.
    found = content(folder)
    assert found.pop('archive.zip') == data and set(found.values()) <= set(MEMBERS.values())
    assert all(path.startswith('inside/target/') for path in found)


@pytest.mark.parametrize('check, inputs', [
    (check_idx, idx_files()),
    (check_unpack, st.sampled_from(ARCHIVES).flatmap(
        lambda data: st.one_of(st.just(data), damaged(data, ARCHIVES))))])
def test_damaged_files(check, inputs):
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
  assert 0 < outcomes['accepted'] / sum(outcomes.values()) < 0.95 and len(outcomes) >= 3, outcomes
