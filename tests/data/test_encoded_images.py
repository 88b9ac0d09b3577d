"""Images that cannot be decoded: found, named, and left out."""

import json
import os
import resource
import struct
import zlib

import numpy as np
import pytest

from estimator_train.data import data, encoded_images
from estimator_train.data.description import DataSet, ImageSplit
from estimator_train.data.image_source import ImageFileSource
from estimator_train.errors import UserError
from estimator_train.settings import groups


def find(paths):
  """Returns the indices of the images that cannot be decoded, and the reasons."""
  return list(encoded_images.find_undecodable(ImageFileSource(
      DataSet('any', ('a', 'b'), (8, 8, 3)),
      ImageSplit([bytes(path) for path in paths], np.zeros(len(paths), np.int32)))))


@pytest.fixture
def files(image_folders):
  """Eleven good ones and, in the middle, four bad ones."""
  paths = sorted((image_folders / 'train').glob('*/*.jpeg'))[:11]
  whole = paths[0].read_bytes()
  bad = [image_folders / 'train' / 'A' / name for name in ('cut.jpeg', 'text.jpeg', 'empty.jpeg',
                                                           'link "1".jpeg')]
  for path, content in zip(bad, (whole[:len(whole) // 2], b'this is not an image', b'')):
    path.write_bytes(content)
  bad[3].symlink_to(image_folders / 'nowhere')
  return paths[:5] + bad + paths[5:]


def test_find(files, awkward_images):
  found = dict(find(files))
  assert sorted(found) == [5, 6, 7, 8]
  assert 'Invalid JPEG data' in found[5] and 'unknown format' in found[6]
  assert 'empty file' in found[7] and found[8] == 'No such file or directory'
  names = ['broken_png_renamed', 'jpeg_12bit', 'text_renamed', 'truncated_half', 'zero_bytes',
           'cmyk', 'exif_orientation_6', 'gif_renamed', 'png16_gray_renamed', 'progressive']
  found = find([awkward_images / (name + '.jpeg') for name in names])
  assert [index for index, _ in found] == [0, 1, 2, 3, 4]


def test_pipes_and_devices_are_not_read(tmp_path):
  """Reading the one would wait for ever, and the other would fill the memory."""
  os.mkfifo(str(tmp_path / 'pipe.jpeg'))
  (tmp_path / 'zero.jpeg').symlink_to('/dev/zero')
  assert find([tmp_path / 'pipe.jpeg', tmp_path / 'zero.jpeg']) == [
      (0, 'not a regular file'), (1, 'not a regular file')]


def test_pixels_that_a_header_promises_take_no_memory(tmp_path, image_folders):
  """60,000 x 60,000 would be 3.6 GB, by a PNG, a GIF or a JPEG of some hundred bytes."""
  jpeg = (image_folders / 'train' / 'A' / '0.jpeg').read_bytes()
  start = jpeg.index(b'\xff\xc0') + 5
  size = struct.pack('<2H', 60000, 60000)
  png = b'\x89PNG\r\n\x1a\n' + b''.join(
      struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
      for kind, data in ((b'IHDR', struct.pack('>2I5B', 60000, 60000, 8, 0, 0, 0, 0)),
                         (b'IDAT', zlib.compress(b'\0')), (b'IEND', b'')))
  paths = [tmp_path / name for name in ('a', 'b', 'c')]
  for path, content in zip(paths, (
      png, jpeg[:start] + struct.pack('>2H', 60000, 60000) + jpeg[start + 4:],
      b'GIF89a' + size + b'\x80\0\0' + bytes(6) + b',' + bytes(4) + size + b'\0\2\2\x4c\1\0;')):
    path.write_bytes(content)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert [index for index, _ in find(paths)] == [0, 1, 2]
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB.


def without_bad(files, tmp_path, fraction):
  split = ImageSplit([bytes(path) for path in files], np.arange(len(files), dtype=np.int32) % 2)
  dataset = DataSet('image_folder', ('A', 'B'), (8, 8, 3), train=split, test=None, files=())
  return data.skip_bad_examples(dataset, groups.Input(max_bad_images=fraction), str(tmp_path))


def test_skip_until_a_file_changes(files, tmp_path, monkeypatch):
  searched, search = [], encoded_images.find_undecodable
  monkeypatch.setattr(encoded_images, 'find_undecodable',
                      lambda files: searched.append(1) or search(files))
  dataset, skipped = without_bad(files, tmp_path, 0.3)
  assert dataset.train.files == [bytes(path) for path in files[:5] + files[9:]]
  assert dataset.train.classes.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
  assert [image.file for image in skipped] == [str(path) for path in files[5:9]]
  assert without_bad(files, tmp_path, 0.3)[1] == skipped and len(searched) == 1
  memory = tmp_path / 'skipped_images.json'
  assert set(json.loads(memory.read_text())) == {'train', 'digest'}
  files[6].write_bytes(files[0].read_bytes())
  assert len(without_bad(files, tmp_path, 0.3)[1]) == 3 and len(searched) == 2
  memory.write_text('{')
  assert len(without_bad(files, tmp_path, 0.3)[1]) == 3 and len(searched) == 3


def test_more_than_allowed(files, tmp_path):
  with pytest.raises(UserError, match='4 of 15 with --max_bad_images=0.2, the first is .*cut.jpeg '
                                      '.Invalid JPEG data'):
    without_bad(files, tmp_path, 0.2)
  with pytest.raises(UserError, match='a class has no training images: B'):
    without_bad([files[0], files[5]], tmp_path, 0.5)
  for fraction, count in ((0.29, 100), (0.07, 100), (0.1, 30), (1e-05, 100000)):
    bad = [encoded_images.BadImage('x', 'any')] * round(fraction * count)
    encoded_images.check_fraction(bad, count, groups.Input(max_bad_images=fraction))
    with pytest.raises(UserError):
      encoded_images.check_fraction(bad, count - 1, groups.Input(max_bad_images=fraction))
