"""The command that converts to TensorFlow Lite."""

import contextlib
import os
import sys
from typing import Iterator


@contextlib.contextmanager
def converter_on_path() -> Iterator[None]:
  """Puts the folder of this Python, which contains the converter's command, first in PATH.

  Defect: tensorflow_core/lite/python/convert.py:49 starts `toco_from_protos` by its name (line
  175), which is searched in PATH. Symptom: in a virtual environment that is not activated,
  `toco_from_protos: not found`, or the command of another TensorFlow.
  """
  before = os.environ.get('PATH', os.defpath)
  os.environ['PATH'] = os.path.dirname(sys.executable) + os.pathsep + before
  try:
    yield
  finally:
    os.environ['PATH'] = before
