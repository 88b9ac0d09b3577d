"""What tells a list of files from another, without reading them."""

import hashlib
import os
from typing import Sequence, Union


def of_files(paths: Sequence[Union[str, bytes]]) -> str:
  """Returns a digest of the files' paths, sizes and times of change, in their order."""
  digest = hashlib.md5()
  for path in paths:
    try:
      status = os.stat(path)
      size, changed = status.st_size, status.st_mtime_ns
    except OSError:  # A link to nowhere, say; whoever reads it will tell.
      size = changed = -1
    digest.update(b'%s\0%d\0%d\0' % (os.path.abspath(os.fsencode(path)), size, changed))
  return digest.hexdigest()
