"""Makes examples/oct2017_sample.zip from the published images of OCT2017.

  python scripts/make_oct2017_sample.py PUBLISHED_IMAGES examples/oct2017_sample.zip

PUBLISHED_IMAGES contains the folders `train` and `val`. The sample has all images in `val`, and
from `train` the first image of each of the first patients of a class, without patients in `val`.
The images have a quarter of their height and width. The same input gives the same file.
"""

import io
import os
import sys
import zipfile
from pathlib import Path

from PIL import Image

TRAIN_COUNTS = {'CNV': 50, 'DME': 25, 'DRUSEN': 20, 'NORMAL': 75}
REDUCTION, JPEG_QUALITY = 4, 75
LICENSE = """\
A sample of the optical coherence tomography (OCT) images in

  Kermany, Daniel; Zhang, Kang; Goldbaum, Michael (2018), "Labeled Optical Coherence Tomography
  (OCT) and Chest X-Ray Images for Classification", Mendeley Data, doi: 10.17632/rscbjbr9sj

Licensed under CC BY 4.0, https://creativecommons.org/licenses/by/4.0/

Changes: 202 of the images; reduced to a quarter of their height and width, and compressed again.
The names of the files are the original ones. Not for diagnosis.
"""


def make(source, target):
  with zipfile.ZipFile(str(target), 'w') as archive:
    _add(archive, 'LICENSE.txt', LICENSE.encode())
    for path in _choose(Path(source)):
      _add(archive, path.relative_to(source).as_posix(), _reduce(path))


def _choose(source):
  """Returns the paths of the images in the sample."""
  evaluated = sorted(source.glob('val/*/*.jpeg'))
  seen = {_patient(path) for path in evaluated}
  chosen = []
  for label, count in TRAIN_COUNTS.items():
    paths = []
    for path in sorted((source / 'train' / label).glob('*.jpeg')):
      if _patient(path) not in seen and len(paths) < count:
        seen.add(_patient(path))
        paths.append(path)
    assert len(paths) == count, label
    chosen += paths
  return chosen + evaluated


def _patient(path):
  """Returns the number of the patient in a name such as CNV-1016042-1.jpeg."""
  return path.name.split('-')[1]


def _reduce(path):
  with Image.open(str(path)) as image:
    size = tuple(length // REDUCTION for length in image.size)
    content = io.BytesIO()
    image.convert('L').resize(size, Image.LANCZOS).save(
        content, 'JPEG', quality=JPEG_QUALITY, optimize=True)
  return content.getvalue()


def _add(archive, name, content):
  archive.writestr(zipfile.ZipInfo(os.path.join('oct2017', name)), content)  # With a fixed time.


if __name__ == '__main__':
  if len(sys.argv) != 3:
    sys.exit(__doc__)
  make(*sys.argv[1:])
