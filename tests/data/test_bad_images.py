"""Images that cannot be decoded: found, named and left out; and what else the audit reports."""

import json
import os
import resource
import struct
import zlib

import numpy as np
import pytest
from generated_data import awkward_images, encoded, exif
from PIL import Image

from estimator_train.data import DataSet, ImageSplit, bad_images, opening
from estimator_train.data.image_source import ImageFileSource
from estimator_train.errors import UserError
from estimator_train.settings.flags import InputFlags

NOISE = Image.fromarray(np.random.RandomState(0).randint(0, 256, (50, 60, 3)).astype(np.uint8))
JPEG, PNG, GIF = (encoded(NOISE, form) for form in ('JPEG', 'PNG', 'GIF'))
ANIMATED_PNG, ANIMATED_GIF = (encoded(NOISE, form, save_all=True, append_images=[NOISE.rotate(90)])
                              for form in ('PNG', 'GIF'))
CUT_EXIF = encoded(NOISE, 'JPEG', exif=exif(6)[:20])
AWKWARD = awkward_images()


def dataset_of(paths):
  split = ImageSplit([bytes(path) for path in paths], np.arange(len(paths), dtype=np.int32) % 2)
  return DataSet('image_folder', ('A', 'B'), (8, 8, 3), split)


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
  dataset = dataset_of([tmp_path / 'pipe.jpeg', tmp_path / 'zero.jpeg'])
  assert list(bad_images.find_undecodable(
      ImageFileSource(dataset, dataset.train).read_content, 2)) == [
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
  found = bad_images.find_undecodable(lambda index: contents[index], len(contents))
  assert [index for index, _ in found] == [0, 1, 2]
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500e3  # kB.


def without_bad(paths, folder, fraction):
  return opening.skip_bad_examples(dataset_of(paths), InputFlags(max_bad_images=fraction),
                                    str(folder))


def test_skip_until_a_file_changes(files, tmp_path, monkeypatch):
  searched, search = [], bad_images.find_undecodable
  monkeypatch.setattr(bad_images, 'find_undecodable',
                      lambda *given: searched.append(1) or search(*given))
  dataset, skipped = without_bad(files, tmp_path, 0.3)
  assert dataset.train.files == [bytes(path) for path in files[:5] + files[9:]]
  assert dataset.train.classes.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]
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
  monkeypatch.setattr(ImageFileSource, 'cache_key', lambda source: str(len(source)))
  monkeypatch.setattr(bad_images, 'find_undecodable', lambda *unused: [(0, '')] * 29)
  assert len(without_bad(files[:1] * 100, tmp_path, .29)[1]) == 29
  with pytest.raises(UserError, match='exceeds --max_bad_images'):
    without_bad(files[:1] * 99, tmp_path, .29)


BROKEN, CMYK = AWKWARD['broken_png_renamed.jpeg'], AWKWARD['cmyk.jpeg']
SEGMENT = b'\xff\xe1' + (2 + len(JPEG)).to_bytes(2, 'big') + JPEG
THUMBNAIL = JPEG[:2] + b'\xff' + SEGMENT + JPEG[2:]  # Its end is not that of the image.
ISSUES = [  # Besides those of `awkward_images`, which --mode=audit reports.
    *((content, b'a.jpeg', {}) for content in (
        JPEG, encoded(NOISE.convert('L'), 'JPEG'), CUT_EXIF,
        encoded(NOISE, 'JPEG', exif=exif(1)), JPEG + bytes(100), THUMBNAIL)),
    (JPEG, b'no extension', {}), (JPEG, b'a.JPG', {}), (PNG, b'a.numbers', {}), (GIF, b'a.gif', {}),
    *((encoded(NOISE.convert(mode), 'PNG'), b'a.PNG', {'transparent': 'ignores the transparency'})
      for mode in ('RGBA', 'LA')),
    *((encoded(NOISE.convert(mode), form, transparency=color), b'a.' + form.lower().encode(), {
        'transparent': ''}) for mode, form, color in (
            ('P', 'PNG', 0), ('RGB', 'PNG', (1, 2, 3)), ('P', 'GIF', 0))),
    (GIF[:6] + b'\1\1\1\1' + GIF[10:], b'a.gif', {
        'gif_canvas': 'only the frame of {}x{} of the canvas of 257x257'.format(*NOISE.size)}),
    (BROKEN[:-12] + b'text', b'a.png', {'truncated': 'Invalid PNG data'}),
    *((encoded(NOISE, form), b'a.jpeg', {'cannot_be_decoded': 'a {} image'.format(form)})
      for form in ('BMP', 'WEBP', 'TIFF')),
    (GIF, b'a.JPG', {'wrong_extension': 'a GIF file with extension .jpg'}),
    (encoded(NOISE, 'PNG', exif=exif(8)), b'a.png', {'exif_rotated': 'orientation 8'}),
    (ANIMATED_PNG, b'a.png', {'animated': 'the first frame'}),
    (ANIMATED_GIF, b'a.gif', {'animated': '', 'cannot_be_decoded': 'Got 2 frames'}),
    (PNG[:500], b'a.jpeg', {'truncated': '', 'wrong_extension': ''}),
    *((content, b'a.jpeg', {'truncated': 'Invalid JPEG data'})
      for content in (CMYK[:-2], THUMBNAIL[:-2], THUMBNAIL[:5 + len(SEGMENT)])),
    *((whole[:end], b'a.' + form.lower().encode(), {'truncated': 'Invalid ' + form})
      for form, whole in (('JPEG', JPEG), ('PNG', PNG), ('GIF', GIF)) for end in (16, 700, -2))]


def test_issues():
  bad_images.load_pillow()
  refusals = dict(bad_images.find_undecodable(lambda index: ISSUES[index][0], len(ISSUES)))
  for index, (contents, path, expected) in enumerate(ISSUES):
    issues = dict(bad_images.find_issues(path, contents, refusals.get(index)))
    assert set(issues) == set(expected), (expected, issues)
    assert all(words in issues[kind] for kind, words in expected.items()), issues


def test_damaged_bytes_never_raise_or_warn(caplog, recwarn):
  random = np.random.RandomState(1)
  bad_images.load_pillow()
  for whole in (AWKWARD['exif_orientation_6.jpeg'], CUT_EXIF, ANIMATED_GIF,
                AWKWARD['png16_gray_renamed.jpeg'], encoded(NOISE, 'TIFF')):
    for _ in range(40):
      contents = np.frombuffer(whole, np.uint8).copy()
      contents[random.randint(0, min(200, len(whole)), 3)] = random.randint(0, 256, 3)
      for refusal in (None, 'refused'):
        list(bad_images.find_issues(b'a.jpeg', contents.tobytes(), refusal))
  assert [str(warning.message) for warning in recwarn] == [] and not caplog.records
