"""What the audit reports of single files."""

import numpy as np
from generated_data import awkward_images, encoded, exif
from PIL import Image

from estimator_train.data import bad_images
from estimator_train.modes.audit import file_issues

NOISE = Image.fromarray(np.random.RandomState(0).randint(0, 256, (50, 60, 3)).astype(np.uint8))
JPEG, PNG, GIF = (encoded(NOISE, form) for form in ('JPEG', 'PNG', 'GIF'))
ANIMATED_PNG, ANIMATED_GIF = (encoded(NOISE, form, save_all=True, append_images=[NOISE.rotate(90)])
                              for form in ('PNG', 'GIF'))
CUT_EXIF = encoded(NOISE, 'JPEG', exif=exif(6)[:20])
AWKWARD = awkward_images()
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
  file_issues.load_pillow()
  refusals = dict(bad_images.iter_undecodable_images(lambda index: ISSUES[index][0], len(ISSUES)))
  for index, (contents, path, expected) in enumerate(ISSUES):
    issues = dict(file_issues.find_issues(path, contents, refusals.get(index)))
    assert set(issues) == set(expected), (expected, issues)
    assert all(words in issues[kind] for kind, words in expected.items()), issues


def test_damaged_bytes_never_raise_or_warn(caplog, recwarn):
  random = np.random.RandomState(1)
  file_issues.load_pillow()
  for whole in (AWKWARD['exif_orientation_6.jpeg'], CUT_EXIF, ANIMATED_GIF,
                AWKWARD['png16_gray_renamed.jpeg'], encoded(NOISE, 'TIFF')):
    for _ in range(40):
      contents = np.frombuffer(whole, np.uint8).copy()
      contents[random.randint(0, min(200, len(whole)), 3)] = random.randint(0, 256, 3)
      for refusal in (None, 'refused'):
        list(file_issues.find_issues(b'a.jpeg', contents.tobytes(), refusal))
  assert [str(warning.message) for warning in recwarn] == [] and not caplog.records
