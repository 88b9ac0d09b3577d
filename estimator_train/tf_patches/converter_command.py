"""The command of the converter to TensorFlow Lite."""

import contextlib
import os
import sys
from typing import Iterator


@contextlib.contextmanager
def own_commands_first() -> Iterator[None]:
  """Lets the converter's command be found, which a virtual environment has beside its Python.

  Defect: tensorflow_core/lite/python/convert.py:49 starts `toco_from_protos` by its name alone
  (line 175), by way of PATH. Symptom: in an environment that is not activated, `toco_from_protos:
  not found`, or the command of another TensorFlow.
  """
  before = os.environ.get('PATH', os.defpath)
  os.environ['PATH'] = os.path.dirname(sys.executable) + os.pathsep + before
  try:
    yield
  finally:
    os.environ['PATH'] = before
