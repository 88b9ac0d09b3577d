"""Finds the command that TensorFlow Lite's converter starts."""

import contextlib
import os
import sys
from typing import Iterator


@contextlib.contextmanager
def converter_on_path() -> Iterator[None]:
  """Puts the folder of this Python, which contains the converter's command, first in PATH.

  Defect: tensorflow_core/lite/python/convert.py:49 names the command `toco_from_protos` without a
  folder, so the shell that runs the command (line 175) searches PATH. Symptom: if the virtual
  environment is not activated, the shell prints `toco_from_protos: not found`, or runs the command
  of another TensorFlow.
  """
  old_path = os.environ.get('PATH', os.defpath)
  os.environ['PATH'] = os.path.dirname(sys.executable) + os.pathsep + old_path
  try:
    yield
  finally:
    os.environ['PATH'] = old_path
