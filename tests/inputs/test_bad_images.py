"""Images that cannot be decoded: found, named, and left out."""

import json
import os
import resource
import struct
import zlib

import numpy as np
import pytest

from estimator_train.datasets.description import DataSet, ImageSplit
from estimator_train.errors import UserError
from estimator_train.inputs import bad_images, factory
from estimator_train.inputs.image_files import ImageFileSource
from estimator_train.settings import groups


def source_of(files):
  return ImageFileSource(DataSet('any', ('a', 'b'), (8, 8, 3)),
                         ImageSplit(files, np.zeros(len(files), np.int32)))


@pytest.fixture
def files(image_folders):
  """Eleven good ones and, in the middle, four bad ones."""
  paths = sorted((image_folders / 'train').glob('*/*.jpeg'))[:11]
  whole = paths[0].read_bytes()
  bad = [image_folders / 'train' / 'A' / name for name in ('cut.jpeg', 'text.jpeg', 'empty.jpeg',
                                                           'gone "1".jpeg')]
  for path, content in zip(bad, (whole[:len(whole) // 2], b'this is not an image', b'')):
    path.write_bytes(content)
  bad[3].symlink_to(image_folders / 'nowhere')
  return [str(path).encode() for path in paths[:5] + bad + paths[5:]]


def test_find(files):
  found = dict(bad_images.find_undecodable(source_of(files)))
  assert sorted(found) == [5, 6, 7, 8]
  assert 'Invalid JPEG data' in found[5] and 'unknown format' in found[6]
  assert 'empty file' in found[7] and found[8] == 'No such file or directory'


def test_pipes_and_devices_are_not_read(tmp_path):
  """Reading the one would wait for ever, and the other would fill the memory."""
  os.mkfifo(str(tmp_path / 'pipe.jpeg'))
  (tmp_path / 'zero.jpeg').symlink_to('/dev/zero')
  paths = [str(tmp_path / name).encode() for name in ('pipe.jpeg', 'zero.jpeg')]
  assert list(bad_images.find_undecodable(source_of(paths))) == [
      (0, 'not a regular file'), (1, 'not a regular file')]


def png(width, height):
  """Returns a PNG of that size, as its header says, and hardly any pixels."""
  chunks = ((b'IHDR', struct.pack('>2I5B', width, height, 8, 0, 0, 0, 0)),
            (b'IDAT', zlib.compress(b'\0')), (b'IEND', b''))
  return b'\x89PNG\r\n\x1a\n' + b''.join(
      struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
      for kind, data in chunks)


def test_pixels_that_a_header_promises_take_no_memory(tmp_path, image_folders):
  """60,000 x 60,000 would be 3.6 GB, by a PNG, a GIF or a JPEG of some hundred bytes."""
  jpeg = bytearray((image_folders / 'train' / 'A' / '0.jpeg').read_bytes())
  start = jpeg.index(b'\xff\xc0') + 5
  jpeg[start:start + 4] = struct.pack('>2H', 60000, 60000)
  gif = (b'GIF89a' + struct.pack('<2H', 60000, 60000) + b'\x80\0\0' + bytes(6) + b','
         + struct.pack('<4H', 0, 0, 60000, 60000) + b'\0\2\2\x4c\1\0;')
  paths = []
  for name, content in (('a', png(60000, 60000)), ('b', bytes(jpeg)), ('c', gif),
                        ('d', png(2 ** 31 - 1, 2 ** 31 - 1))):
    paths.append(str(tmp_path / name).encode())
    (tmp_path / name).write_bytes(content)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert [index for index, _ in bad_images.find_undecodable(source_of(paths))] == [0, 1, 2, 3]
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB.


@pytest.mark.parametrize('name, is_bad', [
    ('broken_png_renamed', True), ('jpeg_12bit', True), ('text_renamed', True),
    ('truncated_half', True), ('zero_bytes', True), ('cmyk', False),
    ('exif_orientation_6', False), ('gif_renamed', False), ('png16_gray_renamed', False),
    ('progressive', False)])
def test_awkward_files(awkward_images, name, is_bad):
  path = awkward_images / (name + '.jpeg')
  assert bool(list(bad_images.find_undecodable(source_of([str(path).encode()])))) == is_bad


def without_bad(files, tmp_path, **given):
  split = ImageSplit(files, np.arange(len(files), dtype=np.int32) % 2)
  dataset = DataSet('image_folder', ('A', 'B'), (8, 8, 3), train=split, test=None, files=())
  return factory.skip_bad_examples(dataset, groups.Input(**given), str(tmp_path))


def test_skip(files, tmp_path):
  dataset, skipped = without_bad(files, tmp_path, max_bad_images=0.3)
  assert dataset.train.files == files[:5] + files[9:]
  assert dataset.train.classes.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
  assert [image.file for image in skipped] == [path.decode() for path in files[5:9]]


def test_more_than_allowed(files, tmp_path):
  with pytest.raises(UserError, match='4 of 15 with --max_bad_images=0.2, the first is .*cut.jpeg '
                                      '.Invalid JPEG data'):
    without_bad(files, tmp_path, max_bad_images=0.2)


@pytest.mark.parametrize('fraction, count', [(0.29, 100), (0.07, 100), (0.1, 30), (1e-05, 100000)])
def test_exactly_as_many_as_allowed(fraction, count):
  bad = [bad_images.BadImage('x', 'any')] * round(fraction * count)
  bad_images.check_fraction(bad, count, groups.Input(max_bad_images=fraction))
  with pytest.raises(UserError):
    bad_images.check_fraction(bad, count - 1, groups.Input(max_bad_images=fraction))


def test_a_class_of_bad_ones_only(files, tmp_path):
  with pytest.raises(UserError, match='a class has no training images: B'):
    without_bad([files[0], files[5]], tmp_path, max_bad_images=0.5)


def test_the_outcome_is_remembered_until_a_file_changes(files, tmp_path, monkeypatch):
  searched = []
  find = bad_images.find_undecodable
  monkeypatch.setattr(bad_images, 'find_undecodable',
                      lambda files: searched.append(1) or find(files))
  _, first = without_bad(files, tmp_path, max_bad_images=0.3)
  _, again = without_bad(files, tmp_path, max_bad_images=0.3)
  assert first == again and len(searched) == 1
  with open(files[6], 'wb') as text, open(files[0], 'rb') as image:
    text.write(image.read())
  _, mended = without_bad(files, tmp_path, max_bad_images=0.3)
  assert len(searched) == 2 and len(mended) == 3
  assert set(json.loads((tmp_path / 'skipped_images.json').read_text())) == {
      'train', 'digest'}


def test_a_damaged_memory_is_no_memory(files, tmp_path):
  (tmp_path / 'skipped_images.json').write_text('{')
  assert len(without_bad(files, tmp_path, max_bad_images=0.3)[1]) == 4
