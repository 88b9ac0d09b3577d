"""Images that cannot be decoded: found, named and left out; and what else the audit reports."""

import contextlib
import io
import json
import os
import resource
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from estimator_train.data import DataSet, ImageSplit, image_checks, images, run_data
from estimator_train.data.image_source import ImageFileSource
from estimator_train.errors import UserError
from estimator_train.settings.flags import InputFlags


def dataset_of(paths):
  split = ImageSplit([bytes(path) for path in paths], np.arange(len(paths), dtype=np.int32) % 2)
  return DataSet('image_folder', ('A', 'B'), (8, 8, 3), split)


def undecodable(paths):
  """Returns the indices of the images that cannot be decoded, and the reasons."""
  dataset = dataset_of(paths)
  return list(image_checks.find_undecodable(
      ImageFileSource(dataset, dataset.train).read_content, len(paths)))


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


def test_find(files):
  found = dict(undecodable(files))
  assert sorted(found) == [5, 6, 7, 8]
  assert 'Invalid JPEG data' in found[5] and 'unknown format' in found[6]
  assert 'empty file' in found[7] and found[8] == 'No such file or directory'


def test_pipes_and_devices_are_not_read(tmp_path):
  """Reading the one would wait for ever, and the other would fill the memory."""
  os.mkfifo(str(tmp_path / 'pipe.jpeg'))
  (tmp_path / 'zero.jpeg').symlink_to('/dev/zero')
  assert undecodable([tmp_path / 'pipe.jpeg', tmp_path / 'zero.jpeg']) == [
      (0, 'not a regular file'), (1, 'not a regular file')]


def test_pixels_that_a_header_promises_take_no_memory(tmp_path):
  """60,000 x 60,000 would be 3.6 GB, by a PNG, a GIF or a JPEG of some hundred bytes."""
  start, size = JPEG.index(b'\xff\xc0') + 5, struct.pack('<2H', 60000, 60000)
  png = b'\x89PNG\r\n\x1a\n' + b''.join(
      struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
      for kind, data in ((b'IHDR', struct.pack('>2I5B', 60000, 60000, 8, 0, 0, 0, 0)),
                         (b'IDAT', zlib.compress(b'\0')), (b'IEND', b'')))
  paths = [tmp_path / name for name in ('a', 'b', 'c')]
  for path, content in zip(paths, (
      png, JPEG[:start] + struct.pack('>2H', 60000, 60000) + JPEG[start + 4:],
      b'GIF89a' + size + b'\x80\0\0' + bytes(6) + b',' + bytes(4) + size + b'\0\2\2\x4c\1\0;')):
    path.write_bytes(content)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert [index for index, _ in undecodable(paths)] == [0, 1, 2]
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB.


def without_bad(paths, folder, fraction):
  return run_data.skip_bad_examples(dataset_of(paths), InputFlags(max_bad_images=fraction),
                                    str(folder))


def test_skip_until_a_file_changes(files, tmp_path, monkeypatch):
  searched, search = [], image_checks.find_undecodable
  monkeypatch.setattr(image_checks, 'find_undecodable',
                      lambda *given: searched.append(1) or search(*given))
  dataset, skipped = without_bad(files, tmp_path, 0.3)
  assert dataset.train.files == [bytes(path) for path in files[:5] + files[9:]]
  assert dataset.train.classes.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
  assert [image.file for image in skipped] == [str(path) for path in files[5:9]]
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
  monkeypatch.setattr(ImageFileSource, 'cache_key', lambda source: str(len(source)))
  monkeypatch.setattr(image_checks, 'find_undecodable', lambda *unused: [(0, '')] * 29)
  assert len(without_bad(files[:1] * 100, tmp_path, .29)[1]) == 29
  with pytest.raises(UserError, match='exceeds --max_bad_images'):
    without_bad(files[:1] * 99, tmp_path, .29)


@pytest.fixture(scope='module')
def found():
  """Returns the issues of a file with these contents, reason by kind."""
  def find(contents, path):
    refusal = None
    try:
      decoder.decode(contents)
    except ValueError as error:
      refusal = str(error)
    return dict(image_checks.find_issues(path, contents, refusal))

  image_checks.load_pillow()
  with contextlib.closing(images.make_shape_decoder()) as decoder:
    yield find


NOISE = np.random.RandomState(0).randint(0, 256, (50, 60, 3)).astype(np.uint8)
FRAMES = {'save_all': True, 'append_images': [Image.fromarray(NOISE[::-1])]}


def encoded(form, mode='RGB', image=None, **options):
  file = io.BytesIO()
  (image or Image.fromarray(NOISE).convert(mode)).save(file, form, **options)
  return file.getvalue()


def exif(orientation):
  """EXIF data with an orientation: a TIFF of one entry."""
  return (b'Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0' + bytes([orientation])
          + b'\0\0\0\0\0\0')


JPEG, PNG, GIF, CMYK = encoded('JPEG'), encoded('PNG'), encoded('GIF'), encoded('JPEG', 'CMYK')
FRAME = JPEG.index(b'\xff\xc0')
JPEG_12 = JPEG[:FRAME + 1] + b'\xc1' + JPEG[FRAME + 2:FRAME + 4] + b'\x0c' + JPEG[FRAME + 5:]
PNG_16 = encoded('PNG', image=Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)))
BROKEN = PNG[:PNG.index(b'IDAT') + 40] + b'\0' * 20 + PNG[PNG.index(b'IDAT') + 60:]
ROTATED, CUT_EXIF = encoded('JPEG', exif=exif(6)), encoded('JPEG', exif=exif(6)[:20])
ISSUES = [
    *((content, b'a.jpeg', {}) for content in (
        JPEG, encoded('JPEG', 'L'), encoded('JPEG', progressive=True), CUT_EXIF,
        encoded('JPEG', exif=exif(1)), JPEG + bytes(100))),
    (JPEG, b'no extension', {}), (JPEG, b'a.JPG', {}), (PNG, b'a.numbers', {}), (GIF, b'a.gif', {}),
    (encoded('PNG', 'RGBA'), b'a.PNG', {}),
    (b'', b'a.jpeg', {'empty': 'no bytes'}),
    (b'this is text', b'a.jpeg', {'not_an_image': 'this is text'}),
    (JPEG_12, b'a.jpeg', {'cannot_be_decoded': '12-bit'}),
    (CMYK[:-2], b'a.jpeg', {'truncated': 'Invalid JPEG data'}),
    (BROKEN, b'a.png', {'cannot_be_decoded': 'Invalid PNG data'}),
    (BROKEN[:-12] + b'text', b'a.png', {'truncated': 'Invalid PNG data'}),
    *((encoded(form), b'a.jpeg', {'cannot_be_decoded': 'a {} image'.format(form)})
      for form in ('BMP', 'WEBP', 'TIFF')),
    (GIF, b'a.JPG', {'wrong_extension': 'a GIF file with extension .jpg'}),
    (CMYK, b'a.jpeg', {'cmyk': 'CMYK'}),
    (PNG_16, b'a.png', {'16_bit': '8 of 16 bits'}),
    (ROTATED, b'a.jpeg', {'exif_rotated': 'orientation 6'}),
    (encoded('PNG', exif=exif(8)), b'a.png', {'exif_rotated': 'orientation 8'}),
    (encoded('PNG', **FRAMES), b'a.png', {'animated': 'the first frame'}),
    (encoded('GIF', **FRAMES), b'a.gif', {'animated': '', 'cannot_be_decoded': 'Got 2 frames'}),
    (PNG[:500], b'a.jpeg', {'truncated': '', 'wrong_extension': ''}),
    *((whole[:end], b'a.' + form.lower().encode(), {'truncated': 'Invalid ' + form})
      for form, whole in (('JPEG', JPEG), ('PNG', PNG), ('GIF', GIF)) for end in (16, 700, -2))]


def test_issues(found):
  for contents, path, expected in ISSUES:
    issues = found(contents, path)
    assert set(issues) == set(expected), (expected, issues)
    assert all(words in issues[kind] for kind, words in expected.items()), issues
  # The end of a thumbnail is not that of the image.
  segment = b'\xff\xe1' + (2 + len(JPEG)).to_bytes(2, 'big') + JPEG
  whole = JPEG[:2] + b'\xff' + segment + JPEG[2:]
  assert [list(found(whole[:end], b'a.jpeg')) for end in (None, -2, 5 + len(segment))] == [
      [], ['truncated'], ['truncated']]


def test_damaged_bytes_never_raise_or_warn(caplog):
  random = np.random.RandomState(1)
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    image_checks.load_pillow()
    for whole in (ROTATED, CUT_EXIF, PNG_16, encoded('GIF', **FRAMES), encoded('TIFF')):
      for _ in range(40):
        contents = bytearray(whole)
        for at in random.randint(0, min(200, len(whole)), 3):
          contents[at] = random.randint(256)
        for refusal in (None, 'refused'):
          list(image_checks.find_issues(b'a.jpeg', bytes(contents), refusal))
  assert [str(warning.message) for warning in caught] == [] and not caplog.records
