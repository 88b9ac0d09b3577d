"""What the audit says of a file, by the bytes of it; the decoder is that of training."""

import io
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from estimator_train.errors import UserError
from estimator_train.inputs import bad_images, image_headers


@pytest.fixture(scope='module')
def decoder():
  image_headers.load_pillow()
  decoder = bad_images.Decoder()
  yield decoder
  decoder.close()


@pytest.fixture
def found(decoder):
  """Returns the issues of a file with these contents, reason by kind."""
  def find(contents, path=b'some.jpeg'):
    try:
      decoder.decode_shape(contents)
      refusal = None
    except ValueError as error:
      refusal = str(error)
    return dict(image_headers.find_issues(path, contents, refusal))

  return find


def pixels(mode='RGB', size=(60, 50)):
  noise = np.random.RandomState(0).randint(0, 256, size[::-1] + (3,)).astype(np.uint8)
  return Image.fromarray(noise).convert(mode)


def encoded(form, mode='RGB', **options):
  file = io.BytesIO()
  pixels(mode).save(file, form, **options)
  return file.getvalue()


def exif(orientation):
  """EXIF data with an orientation: a TIFF of one entry."""
  return (b'Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0' + bytes([orientation])
          + b'\0\0\0\0\0\0')


def several_frames(form):
  return encoded(form, save_all=True, append_images=[pixels().rotate(90)])


def jpeg_of_12_bits():
  contents = bytearray(encoded('JPEG'))
  frame = contents.index(b'\xff\xc0')
  contents[frame + 1], contents[frame + 4] = 0xc1, 12
  return bytes(contents)


def png_of_16_bits():
  file = io.BytesIO()
  Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100).save(file, 'PNG')
  return file.getvalue()


def png_with_a_broken_chunk():
  contents = encoded('PNG')
  at = contents.index(b'IDAT') + 40
  return contents[:at] + b'\0' * 20 + contents[at + 20:]


# Named here, as pytest would name the cases by all of their bytes.
FILES = {
    'empty': b'',
    'text': b'this is text',
    'jpeg': encoded('JPEG'),
    'grey jpeg': encoded('JPEG', 'L'),
    'progressive jpeg': encoded('JPEG', progressive=True),
    'jpeg with orientation 0': encoded('JPEG', exif=exif(0)),
    'jpeg with orientation 1': encoded('JPEG', exif=exif(1)),
    'jpeg with orientation 6': encoded('JPEG', exif=exif(6)),
    'jpeg with cut exif data': encoded('JPEG', exif=exif(6)[:20]),
    'png with odd exif data': encoded('PNG', exif=b'Exif\0\0XX*\0' + b'\0' * 20),
    'jpeg with bytes after its end': encoded('JPEG') + b'\0' * 100,
    'cmyk jpeg': encoded('JPEG', 'CMYK'),
    'truncated cmyk jpeg': encoded('JPEG', 'CMYK')[:-2],
    '12-bit jpeg': jpeg_of_12_bits(),
    'padded 12-bit jpeg': jpeg_of_12_bits().replace(b'\xff\xdb', b'\xff\xff\xff\xdb', 1),
    'png': encoded('PNG'),
    'transparent png': encoded('PNG', 'RGBA'),
    '16-bit png': png_of_16_bits(),
    'broken png': png_with_a_broken_chunk(),
    'png of frames': several_frames('PNG'),
    'png with orientation 8': encoded('PNG', exif=exif(8)),
    'gif': encoded('GIF'),
    'gif of frames': several_frames('GIF'),
    'bmp': encoded('BMP'),
    'tiff': encoded('TIFF'),
    'webp': encoded('WEBP'),
}


@pytest.mark.parametrize('names, path', [
    (['jpeg', 'grey jpeg', 'progressive jpeg', 'jpeg with orientation 0', 'jpeg with orientation 1',
      'jpeg with cut exif data', 'jpeg with bytes after its end'], b'a.jpeg'),
    (['jpeg'], b'no extension'), (['jpeg'], b'a.JPG'), (['png'], b'a.numbers'),
    (['png', 'transparent png', 'png with odd exif data'], b'a.PNG'), (['gif'], b'a.gif')])
def test_nothing_to_say(found, names, path):
  assert [found(FILES[name], path) for name in names] == [{}] * len(names)


ISSUES = [
    ('empty', b'a.jpeg', 'empty', 'no bytes'),
    ('text', b'a.jpeg', 'not_an_image', 'this is text'),
    ('12-bit jpeg', b'a.jpeg', 'cannot_be_decoded', '12-bit'),
    ('padded 12-bit jpeg', b'a.jpeg', 'cannot_be_decoded', '12-bit'),
    ('truncated cmyk jpeg', b'a.jpeg', 'truncated', 'Invalid JPEG data'),
    ('broken png', b'a.png', 'cannot_be_decoded', 'Invalid PNG data'),
    ('bmp', b'a.bmp', 'cannot_be_decoded', 'a BMP image'),
    ('webp', b'a.jpeg', 'cannot_be_decoded', 'a WEBP image'),
    ('tiff', b'a.jpeg', 'cannot_be_decoded', 'a TIFF image'),
    ('png', b'a.jpeg', 'wrong_extension', 'a PNG file with extension .jpeg'),
    ('gif', b'a.JPG', 'wrong_extension', 'a GIF file with extension .jpg'),
    ('jpeg', b'a.png', 'wrong_extension', 'a JPEG file with extension .png'),
    ('jpeg', b'a.bmp', 'wrong_extension', 'a JPEG file with extension .bmp'),
    ('cmyk jpeg', b'a.jpeg', 'cmyk', 'CMYK'),
    ('16-bit png', b'a.png', '16_bit', '8 of 16 bits'),
    ('jpeg with orientation 6', b'a.jpeg', 'exif_rotated', 'orientation 6'),
    ('png with orientation 8', b'a.png', 'exif_rotated', 'orientation 8'),
    ('png of frames', b'a.png', 'animated', 'the first frame')]


def test_one_issue(found):
  for name, path, kind, words in ISSUES:
    issues = found(FILES[name], path)
    assert list(issues) == [kind] and words in issues[kind], name


def test_several_issues(found):
  assert set(found(FILES['16-bit png'], b'a.jpeg')) == {'16_bit', 'wrong_extension'}
  assert set(found(FILES['png'][:500], b'a.jpeg')) == {'truncated', 'wrong_extension'}
  issues = found(FILES['gif of frames'], b'a.gif')
  assert set(issues) == {'animated', 'cannot_be_decoded'}
  assert 'Got 2 frames' in issues['cannot_be_decoded']


@pytest.mark.parametrize('form', ['JPEG', 'PNG', 'GIF'])
def test_truncated(found, form):
  for end in (16, 30, 100, 700, 2000, -12, -4, -2):
    issues = found(encoded(form)[:end], b'a.' + form.lower().encode())
    assert list(issues) == ['truncated'] and 'Invalid ' + form in issues['truncated']


def test_a_truncated_jpeg_with_a_whole_thumbnail(found):
  """The thumbnail's end is not the image's."""
  thumbnail = encoded('JPEG')
  segment = b'\xff\xe1' + (2 + len(thumbnail)).to_bytes(2, 'big') + thumbnail
  contents = encoded('JPEG')
  whole = contents[:2] + b'\xff' + segment + contents[2:]
  assert found(whole) == {}
  assert list(found(whole[:-2])) == ['truncated']
  assert list(found(whole[:5 + len(segment)])) == ['truncated']


@pytest.fixture
def warned():
  """What is warned of after Pillow is loaded."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    image_headers.load_pillow()
    yield caught


def test_damaged_bytes_never_raise_or_warn(warned, caplog):
  random = np.random.RandomState(1)
  for name in ('jpeg with orientation 6', 'jpeg with cut exif data', '16-bit png',
               'png with orientation 8', 'gif of frames', 'webp', 'tiff'):
    for _ in range(40):
      for refusal in (None, 'refused'):
        list(image_headers.find_issues(b'a.jpeg', damaged(FILES[name], random), refusal))
  assert [str(warning.message) for warning in warned] == [] and not caplog.records


def damaged(whole, random):
  contents = bytearray(whole)
  for at in random.randint(0, min(200, len(whole)), 3):
    contents[at] = random.randint(256)
  return bytes(contents)


def test_a_decompression_bomb_is_no_matter_here(warned):
  contents = bytearray(FILES['bmp'])
  contents[18:26] = b'\xff\xff\0\0' * 2  # 65,535 pixels each way.
  (issue,) = image_headers.find_issues(b'a.bmp', bytes(contents), 'refused')
  assert issue.reason == 'a BMP image: refused' and not warned


def test_without_pillow(monkeypatch):
  monkeypatch.setitem(sys.modules, 'PIL', None)
  with pytest.raises(UserError, match='pip install Pillow'):
    image_headers.load_pillow()
