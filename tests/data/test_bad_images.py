"""Images that cannot be decoded: found, named and left out."""

import json
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from generated_data import encoded
from PIL import Image

from estimator_train.data import DataSpec, ImageSplit, Role, bad_images
from estimator_train.data.image_source import ImageFileSource
from estimator_train.data.opening import make_source
from estimator_train.errors import UserError
from estimator_train.settings.flags import InputFlags

NOISE = Image.fromarray(np.random.RandomState(0).randint(0, 256, (50, 60, 3)).astype(np.uint8))
JPEG, GIF = (encoded(NOISE, form) for form in ('JPEG', 'GIF'))


def source_of(paths):
  split = ImageSplit([bytes(path) for path in paths], np.arange(len(paths), dtype=np.int32) % 2)
  return make_source(split, DataSpec('image_folder', ('A', 'B'), (8, 8, 3)), Role.TRAIN)


@pytest.fixture
def files(image_folders):
  """Eleven good ones and, in the middle, four bad ones."""
  good = sorted((image_folders / 'train').glob('*/*.jpeg'))[:11]
  bad = [image_folders / name for name in ('cut.jpeg', 'text.jpeg', 'empty.jpeg', 'link "1".jpeg')]
  for path, content in zip(bad, (JPEG[:700], b'this is not an image', b'')):
    path.write_bytes(content)
  bad[3].symlink_to('nowhere')
  return good[:5] + bad + good[5:]


def test_pipes_and_devices_are_not_read(tmp_path):
  """Reading the one would wait for ever, and the other would fill the memory."""
  os.mkfifo(str(tmp_path / 'pipe.jpeg'))
  (tmp_path / 'zero.jpeg').symlink_to('/dev/zero')
  source = source_of([tmp_path / 'pipe.jpeg', tmp_path / 'zero.jpeg'])
  assert list(bad_images.iter_undecodable_images(source.read_content, 2)) == [
          (0, 'not a regular file'), (1, 'not a regular file')]


def test_pixels_that_a_header_promises_take_no_memory():
  """60,000 x 60,000 would be 3.6 GB, by a PNG, a GIF or a JPEG of some hundred bytes."""
  start, grey = JPEG.index(b'\xff\xc0') + 5, encoded(NOISE.convert('L'), 'PNG')
  size = struct.pack('<2H', 60000, 60000)
  header = b'IHDR' + struct.pack('>2I', 60000, 60000) + grey[24:29]
  contents = [
      grey[:12] + header + struct.pack('>I', zlib.crc32(header)) + grey[33:],
      JPEG[:start] + struct.pack('>2H', 60000, 60000) + JPEG[start + 4:],
      GIF[:6] + size + b'\x80\0\0' + bytes(6) + b',' + bytes(4) + size + b'\0\2\2\x4c\1\0;']
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  found = bad_images.iter_undecodable_images(lambda index: contents[index], len(contents))
  assert [index for index, _ in found] == [0, 1, 2]
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB.


def without_bad(paths, folder, fraction):
  return source_of(paths).exclude_bad_images(InputFlags(max_bad_images=fraction), str(folder))


def test_skip_until_a_file_changes(files, tmp_path, monkeypatch):
  searched, search = [], bad_images.iter_undecodable_images
  monkeypatch.setattr(bad_images, 'iter_undecodable_images',
                      lambda *given: searched.append(1) or search(*given))
  source, skipped = without_bad(files, tmp_path, 0.3)
  assert source.split.files == [bytes(path) for path in files[:5] + files[9:]]
  assert source.split.classes.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
  assert [image.file for image in skipped] == [str(path) for path in files[5:9]]
  assert all(reason in image.reason for image, reason in zip(skipped, (
      'Invalid JPEG data', 'unknown format', 'empty file')))
  assert skipped[3].reason == 'No such file or directory'
  assert without_bad(files, tmp_path, 0.3)[1] == skipped and len(searched) == 1
  assert set(json.loads((tmp_path / 'skipped_images.json').read_text())) == {'train'}
  files[6].write_bytes(files[0].read_bytes())
  assert len(without_bad(files, tmp_path, 0.3)[1]) == 3 and len(searched) == 2


def test_more_than_allowed(files, tmp_path, monkeypatch):
  with pytest.raises(UserError, match='4 of 15 with --max_bad_images=0.2, the first is .*cut.jpeg '
                                      '.Invalid JPEG data'):
    without_bad(files, tmp_path, 0.2)
  with pytest.raises(UserError, match='a class has no training images: B'):
    without_bad([files[0], files[5]], tmp_path, 0.5)
  monkeypatch.setattr(ImageFileSource, 'files_fingerprint', lambda source: str(len(source)))
  monkeypatch.setattr(bad_images, 'iter_undecodable_images', lambda *unused: [(0, '')] * 29)
  assert len(without_bad(files[:1] * 100, tmp_path, .29)[1]) == 29
  with pytest.raises(UserError, match='exceeds --max_bad_images'):
    without_bad(files[:1] * 99, tmp_path, .29)
