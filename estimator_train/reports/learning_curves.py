"""`report/curves.json`: loss, accuracy and learning rate over the steps, by TensorBoard's files."""

import glob
import math
import os
import struct
from typing import Any, Dict, Iterator, List, Tuple

from estimator_train.files import atomic
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import groups

FILE = os.path.join('report', 'curves.json')
# (folder of events, tag there, name of the curve). The evaluation's `loss` goes by the batch size.
_CURVES = (('', 'loss', 'train_loss'),
           ('', 'learning_rate', 'learning_rate'),
           ('eval', 'average_loss', 'eval_loss'),
           ('eval', 'accuracy', 'eval_accuracy'))
_MAX_POINTS = 1000

Curve = List[Tuple[int, float]]


def write(settings: groups.Run) -> None:
  """Writes the curves of all runs in the `model_dir`."""
  run_dir = RunDir(settings.model_dir)
  path = run_dir.file(FILE)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  atomic.write_json(path, read(run_dir.path))


def read(model_dir: str) -> Dict[str, Curve]:
  """Returns (global step, value) by curve: those of _CURVES."""
  return {name: _thinned(_read(os.path.join(model_dir, folder), tag))
          for folder, tag, name in _CURVES}


def _read(folder: str, tag: str) -> Curve:
  curve: Curve = []
  for path in sorted(glob.glob(os.path.join(glob.escape(folder), 'events.out.tfevents.*'))):
    for event in _events(path):
      for value in event.summary.value:
        # Loss scaling may go on after a loss that is not finite, which JSON does not know.
        if value.tag == tag and math.isfinite(value.simple_value):
          _append(curve, event.step, value.simple_value)
  return curve


def _events(path: str) -> Iterator[Any]:
  """Yields the `Event` messages of an event file, up to where its writer was killed.

  TensorBoard's messages are those of TensorFlow, and import in a tenth of a second. A record is its
  length, uint64, a checksum of that, uint32, the message, and a checksum of that.
  """
  from google.protobuf.message import DecodeError
  from tensorboard.compat.proto.event_pb2 import Event

  with open(path, 'rb') as file:
    size = os.fstat(file.fileno()).st_size
    while True:
      header = file.read(12)
      if len(header) < 12:
        return
      length, _ = struct.unpack('<QI', header)
      if file.tell() + length + 4 > size:
        return
      try:
        event = Event.FromString(file.read(length))
      except DecodeError:
        return
      file.seek(4, os.SEEK_CUR)
      yield event


def _append(curve: Curve, step: int, value: float) -> None:
  # A run that was killed may have got further than the one that went on from its checkpoint.
  while curve and curve[-1][0] >= step:
    curve.pop()
  curve.append((step, value))


def _thinned(curve: Curve) -> Curve:
  """Returns at most so many points, the last one among them."""
  every = -(-len(curve) // _MAX_POINTS) or 1
  return curve[::-1][::every][::-1]
