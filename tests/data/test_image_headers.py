"""What the audit reports about a file, by its bytes; the decoder is that of training."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from estimator_train.data import encoded_images, image_headers


@pytest.fixture(scope='module')
def decoder():
  image_headers.load_pillow()
  decoder = encoded_images.Decoder()
  yield decoder
  decoder.close()


@pytest.fixture
def found(decoder):
  """Returns the issues of a file with these contents, reason by kind."""
  def find(contents, path):
    try:
      decoder.decode_shape(contents)
      refusal = None
    except ValueError as error:
      refusal = str(error)
    return dict(image_headers.find_issues(path, contents, refusal))

  return find


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
ODD_EXIF = encoded('PNG', exif=b'Exif\0\0XX*\0' + b'\0' * 20)


@pytest.mark.parametrize('path, files', [
    (b'a.jpeg', [JPEG, encoded('JPEG', 'L'), encoded('JPEG', progressive=True), CUT_EXIF,
                 encoded('JPEG', exif=exif(0)), encoded('JPEG', exif=exif(1)), JPEG + bytes(100)]),
    (b'no extension', [JPEG]), (b'a.JPG', [JPEG]), (b'a.numbers', [PNG]),
    (b'a.PNG', [PNG, encoded('PNG', 'RGBA'), ODD_EXIF]), (b'a.gif', [GIF])],
                         ids=lambda value: value.decode() if isinstance(value, bytes) else '')
def test_no_issues(found, path, files):
  assert [found(contents, path) for contents in files] == [{}] * len(files)


ISSUES = [
    (b'', b'a.jpeg', {'empty': 'no bytes'}),
    (b'this is text', b'a.jpeg', {'not_an_image': 'this is text'}),
    (JPEG_12, b'a.jpeg', {'cannot_be_decoded': '12-bit'}),
    (JPEG_12.replace(b'\xff\xdb', b'\xff\xff\xff\xdb', 1), b'a.jpeg',
     {'cannot_be_decoded': '12-bit'}),
    (CMYK[:-2], b'a.jpeg', {'truncated': 'Invalid JPEG data'}),
    (BROKEN, b'a.png', {'cannot_be_decoded': 'Invalid PNG data'}),
    (encoded('BMP'), b'a.bmp', {'cannot_be_decoded': 'a BMP image'}),
    (encoded('WEBP'), b'a.jpeg', {'cannot_be_decoded': 'a WEBP image'}),
    (encoded('TIFF'), b'a.jpeg', {'cannot_be_decoded': 'a TIFF image'}),
    (PNG, b'a.jpeg', {'wrong_extension': 'a PNG file with extension .jpeg'}),
    (GIF, b'a.JPG', {'wrong_extension': 'a GIF file with extension .jpg'}),
    (JPEG, b'a.bmp', {'wrong_extension': 'a JPEG file with extension .bmp'}),
    (CMYK, b'a.jpeg', {'cmyk': 'CMYK'}),
    (PNG_16, b'a.png', {'16_bit': '8 of 16 bits'}),
    (ROTATED, b'a.jpeg', {'exif_rotated': 'orientation 6'}),
    (encoded('PNG', exif=exif(8)), b'a.png', {'exif_rotated': 'orientation 8'}),
    (encoded('PNG', **FRAMES), b'a.png', {'animated': 'the first frame'}),
    (encoded('GIF', **FRAMES), b'a.gif', {'animated': '', 'cannot_be_decoded': 'Got 2 frames'}),
    (PNG_16, b'a.jpeg', {'16_bit': '', 'wrong_extension': ''}),
    (PNG[:500], b'a.jpeg', {'truncated': '', 'wrong_extension': ''})]


def test_issues(found):
  for contents, path, expected in ISSUES:
    issues = found(contents, path)
    assert set(issues) == set(expected), (expected, issues)
    assert all(words in issues[kind] for kind, words in expected.items()), issues


def test_truncated(found):
  for form, whole in (('JPEG', JPEG), ('PNG', PNG), ('GIF', GIF)):
    for end in (16, 30, 100, 700, 2000, -12, -4, -2):
      issues = found(whole[:end], b'a.' + form.lower().encode())
      assert list(issues) == ['truncated'] and 'Invalid ' + form in issues['truncated']
  # The end of a thumbnail is not that of the image.
  segment = b'\xff\xe1' + (2 + len(JPEG)).to_bytes(2, 'big') + JPEG
  whole = JPEG[:2] + b'\xff' + segment + JPEG[2:]
  assert found(whole, b'a.jpeg') == {}
  for end in (-2, 5 + len(segment)):
    assert list(found(whole[:end], b'a.jpeg')) == ['truncated']


def test_damaged_bytes_never_raise_or_warn(caplog):
  random, bomb = np.random.RandomState(1), bytearray(encoded('BMP'))
  bomb[18:26] = b'\xff\xff\0\0' * 2  # 65,535 pixels each way.
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    image_headers.load_pillow()
    for whole in (ROTATED, CUT_EXIF, PNG_16, encoded('GIF', **FRAMES), encoded('TIFF')):
      for _ in range(40):
        contents = bytearray(whole)
        for at in random.randint(0, min(200, len(whole)), 3):
          contents[at] = random.randint(256)
        for refusal in (None, 'refused'):
          list(image_headers.find_issues(b'a.jpeg', bytes(contents), refusal))
    (issue,) = image_headers.find_issues(b'a.bmp', bytes(bomb), 'refused')
  assert issue.reason == 'a BMP image: refused'
  assert [str(warning.message) for warning in caught] == [] and not caplog.records
