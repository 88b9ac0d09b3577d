"""Fuzzes the unpacking of archives: nothing is written outside of the folder, nor links into it.

    .venv/bin/python tests/fuzz/fuzz_unpack.py --secs=300 [--seed=1]
"""

import io
import os
import stat
import warnings
import zipfile

import fuzzing

from estimator_train.datasets import unpack

PIECES = ('/', '/', '../', '../', '..', '.', '\\', ':', 'C', 'a', 'A', 'b', ' ', '\0', '~', '\n',
          '\x1b[2J', 'é', '__MACOSX', '._', '.DS_Store', 'x' * 300, 'a/' * 3000, 'copy/',
          unpack.ASIDE)
KINDS = (0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK)
TARGETS = (b'..', b'/', b'../outside', b'a', b'', b'zeros' * 1000)
MAX_BYTES = 1 << 22  # Of what some kB may become.


def make(rng):
  """Returns the bytes of an archive of odd members; half of them changed afterwards."""
  file = io.BytesIO()
  with warnings.catch_warnings(), zipfile.ZipFile(file, 'w') as archive:
    warnings.simplefilter('ignore')  # Names that are there twice.
    for _ in range(rng.randint(0, 5)):
      info = zipfile.ZipInfo('x')
      info.filename = ''.join(rng.choice(PIECES) for _ in range(rng.randint(0, 5)))
      info.external_attr = (rng.choice(KINDS) | rng.randrange(0o10000)) << 16
      info.compress_type = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA,
                                       zipfile.ZIP_BZIP2))
      archive.writestr(info, rng.choice(TARGETS + (bytes(rng.randint(0, 100000)),)),
                       info.compress_type)
  data = file.getvalue()
  return fuzzing.mutate(rng, data, [data]) if rng.random() < 0.5 else data


def check(data, folder):
  """Unpacks the archive, twice, and looks at what is there, also where it was refused."""
  path = fuzzing.write(folder, 'archive.zip', data)
  fuzzing.write(folder, 'outside', b'mine')
  inside = os.path.join(folder, 'far', 'down', 'be', 'low')  # A name goes up by five at most.
  try:
    first = unpack.unpack(path, inside, second_copy='copy/')
    again = unpack.unpack(path, inside, second_copy='copy/')
    assert again == (0, first.written + first.present, first.skipped)
  finally:
    for parent, _, files in os.walk(folder):
      if parent != inside and not parent.startswith(inside + os.sep):
        assert sorted(files) == (['archive.zip', 'outside'] if parent == folder else []), parent
    with open(os.path.join(folder, 'outside'), 'rb') as outside:
      assert outside.read() == b'mine'
    total = 0
    for parent, folders, files in os.walk(inside):
      for name in folders + files:
        status = os.lstat(os.path.join(parent, name))
        assert stat.S_ISDIR(status.st_mode) if name in folders else stat.S_ISREG(status.st_mode)
        assert not unpack.is_clutter(name) and not status.st_mode & stat.S_ISUID
        total += status.st_size if name in files else 0
    assert total <= MAX_BYTES


if __name__ == '__main__':
  fuzzing.main(make, check)
