"""Computes fingerprints, with which a cache detects that files or arrays have changed."""

import hashlib
import os
from typing import Any, Sequence, Union

import numpy as np


def of_files(paths: Sequence[Union[str, bytes]]) -> str:
  """Returns an MD5 digest of the paths, sizes and modification times of the files, in order."""
  digest = hashlib.md5()
  for path in paths:
    try:
      status = os.stat(path)
      size, modified = status.st_size, status.st_mtime_ns
    except OSError:  # For example a broken link. The error is reported when the file is read.
      size = modified = -1
    digest.update(b'%s\0%d\0%d\0' % (os.path.abspath(os.fsencode(path)), size, modified))
  return digest.hexdigest()


def of_arrays(arrays: Sequence[Any]) -> str:
  """Returns an MD5 digest of the dtypes, shapes and values of the arrays, in order."""
  digest = hashlib.md5()
  for array in arrays:
    digest.update('{} {}\0'.format(array.dtype, array.shape).encode('ascii'))
    # Hash chunks of the array, because a memory-mapped array may not fit into memory.
    for chunk in np.array_split(array, max(1, array.nbytes >> 24)):
      digest.update(np.ascontiguousarray(chunk))
  return digest.hexdigest()
