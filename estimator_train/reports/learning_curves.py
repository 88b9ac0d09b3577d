"""Reads loss, accuracy and learning rate from event files and writes `report/curves.json`."""

import glob
import logging
import math
import os
import re
import struct
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.reports import report_files
from estimator_train.system import record_framing, storage

_LOG = logging.getLogger('estimator_train')
# The Estimator of a Keras model writes `loss_1`, because its graph has a scope named `loss`.
_LOSS_TAG = r'loss(_\d+)?'
# (pattern of folders with event files, pattern of the tag, name of the curve). A curve listed twice
# is read from the first folder and tag that have events. For evaluations, `average_loss` is listed
# first, because `loss`, which all Estimators write, is a mean over batches and depends on the batch
# size.
_CURVES = (('', _LOSS_TAG, 'train_loss'),
           ('', 'accuracy', 'train_accuracy'),
           ('', 'learning_rate', 'learning_rate'),
           ('eval*', 'average_loss', 'eval_loss'),
           ('eval*', 'loss', 'eval_loss'),
           ('eval*', 'accuracy', 'eval_accuracy'),
           ('eval*', 'acc', 'eval_accuracy'))
_MAX_POINTS = 1000
_OMITTED = 'its points are omitted'
_TAG_PATTERNS = tuple(dict.fromkeys(tag_pattern for _, tag_pattern, _ in _CURVES))
_DT_FLOAT = 1  # In tensorflow/core/framework/types.proto.

Curve = List[Tuple[int, float]]  # (global step, value)


class _Point(NamedTuple):
  """A number in an event file, the pattern of its tag in _CURVES, and its time in seconds."""
  tag_pattern: str
  step: int
  value: float
  wall_time: float


class LossCurve:
  """The training loss, as means over intervals of equal numbers of steps.

  The intervals become longer during a long training, so that there are never more points than a
  page shows. Losses that are not finite do not count.

  Attributes:
    points: the last step of each interval, with the mean loss.
  """

  def __init__(self) -> None:
    self.points: Curve = []
    self._steps_per_point, self._num_steps, self._sum = 1, 0, 0.

  def add(self, step: int, loss: float) -> None:
    """Adds a step; a step that is added again takes the place of all points from it on."""
    if not math.isfinite(loss):
      return
    self._num_steps, self._sum = self._num_steps + 1, self._sum + loss
    if self._num_steps < self._steps_per_point:
      return
    _append_point(self.points, step, self._sum / self._num_steps)
    self._num_steps, self._sum = 0, 0.
    if len(self.points) == _MAX_POINTS:
      self.points = [(step, (first + second) / 2) for (_, first), (step, second) in zip(
          self.points[::2], self.points[1::2])]
      self._steps_per_point *= 2


def write_learning_curves(model_dir: str, losses: Sequence[Tuple[int, float]] = ()) -> None:
  """Writes the curves of this run and of all earlier runs in the same `model_dir`.

  Args:
    losses: points of the training loss, instead of those in the event files from the first of
      these steps on.
  """
  curves = read_learning_curves(model_dir)
  if losses:
    curves['train_loss'] = _downsample([
        point for point in curves['train_loss'] if point[0] < losses[0][0]] + list(losses))
  report_files.write(model_dir, 'curves', curves)


def read_learning_curves(model_dir: str) -> Dict[str, Curve]:
  """Returns the curves by their names in _CURVES; a curve without events is empty."""
  by_folder: Dict[str, Dict[str, Curve]] = {}
  curves: Dict[str, Curve] = {}
  for folder_pattern, tag_pattern, name in _CURVES:
    for folder in _find_folders(model_dir, folder_pattern):
      if not curves.get(name):
        if folder not in by_folder:
          by_folder[folder] = _read_curves(folder)
        curves[name] = _downsample(by_folder[folder].get(tag_pattern, []))
  return {name: curves.get(name, []) for _, _, name in _CURVES}


def read_last_evaluation(model_dir: str) -> Dict[str, float]:
  """Returns the last evaluation in the event files, by the keys of evaluation.json.

  A figure that the Estimator does not log is left out.
  """
  newest: Dict[str, float] = {}
  for folder in _find_folders(model_dir, 'eval*'):
    curves = _read_curves(folder)
    points = {key: curves[tag][-1] for tag, key in (
        ('acc', 'accuracy'), ('accuracy', 'accuracy'), ('average_loss', 'average_loss'),
        ('loss', 'loss')) if tag in curves}
    step = max((point[0] for point in points.values()), default=-1)
    if step > newest.get('global_step', -1):
      newest = {key: value for key, (at_step, value) in points.items() if at_step == step}
      newest.pop('loss', None)  # A mean over batches, which is only used to find the last step.
      newest['global_step'] = step
  return newest


def _find_folders(model_dir: str, pattern: str) -> List[str]:
  return sorted(glob.glob(os.path.join(glob.escape(model_dir), pattern)))


def has_event_files(model_dir: str) -> bool:
  """Returns whether the folder has TensorBoard event files of a training run."""
  return bool(_event_files(model_dir))


def read_steps_per_sec(model_dir: str) -> Optional[float]:
  """Returns the rate of the last run that logged its loss at least twice; None without such a run.

  The rate is steps ÷ wall time between the first and the last logged loss. The wall time includes
  checkpoints and evaluations.
  """
  for points in reversed(_read_event_files(model_dir)):
    logged: List[_Point] = []
    for point in points:
      if point.tag_pattern == _LOSS_TAG:
        if logged and point.step <= logged[-1].step:
          logged = []  # Training has resumed from an earlier step.
        logged.append(point)
    if len(logged) > 1 and logged[-1].wall_time > logged[0].wall_time:
      return (logged[-1].step - logged[0].step) / (logged[-1].wall_time - logged[0].wall_time)
  return None


def _event_files(folder: str) -> List[str]:
  return sorted(glob.glob(os.path.join(glob.escape(folder), 'events.out.tfevents.*')))


def _read_curves(folder: str) -> Dict[str, Curve]:
  """Returns the curves of a folder by the patterns of their tags in _CURVES."""
  curves: Dict[str, Curve] = {}
  for points in _read_event_files(folder):
    for point in points:
      _append_point(curves.setdefault(point.tag_pattern, []), point.step, point.value)
  return curves


def _read_event_files(folder: str) -> List[List[_Point]]:
  """Returns the points of the event files of a folder that have any, in the order of the runs.

  The name of an event file begins with the time. If the clock was set back, or another host resumed
  the run, the names have another order than the runs. The steps correct this order: a run resumes
  at a step that an earlier run has reached.
  """
  remaining = list(filter(None, (storage.load_or_warn(path, _read_points, _OMITTED)
                                 for path in _event_files(folder))))
  ordered: List[List[_Point]] = []
  reached = -math.inf  # The first run begins at the lowest step.
  while remaining:
    # A run logs only some of its steps, so the next run may begin a few steps after the last one.
    following = [points for points in remaining if points[0].step <= reached + max(
        [1, *(later.step - point.step for point, later in zip(points, points[1:]))])]
    points = following[0] if following else min(remaining, key=lambda points: points[0].step)
    remaining.remove(points)
    ordered.append(points)
    reached = max(reached, *(point.step for point in points))
  return ordered


def _read_points(file: BinaryIO) -> List[_Point]:
  """Returns the numbers in an event file that belong to a curve, up to the first damaged record.

  The last record may be truncated, because a killed run leaves such a file.
  """
  points, count = [], 0
  try:
    for event in _read_events(file):
      count += 1
      for value in event.summary.value:
        # With loss scaling, training may continue after a loss that is not finite. Such a loss is
        # omitted, because JSON cannot represent it.
        number = _scalar(value)
        points += [_Point(pattern, event.step, number, event.wall_time)
                   for pattern in _TAG_PATTERNS
                   if math.isfinite(number) and re.fullmatch(pattern, value.tag)]
  except record_framing.TruncatedRecord:
    pass
  except record_framing.DamagedRecord as damage:
    _LOG.warning('%s is damaged from its record %d on (%s): its later points are omitted',
                 file.name, count, damage)
  return points


def _scalar(value: Any) -> float:
  """Returns the number in a summary; nan if it is no float32 scalar."""
  if value.WhichOneof('value') == 'simple_value':
    return value.simple_value
  tensor = value.tensor
  if len(tensor.float_val) == 1:
    return tensor.float_val[0]
  return struct.unpack('<f', tensor.tensor_content)[0] if (
      tensor.dtype == _DT_FLOAT and len(tensor.tensor_content) == 4) else math.nan


def _read_events(file: BinaryIO) -> Iterator[Any]:
  """Yields the `Event` messages of an event file.

  `Event` comes from TensorBoard, whose import takes 0.1 s. To import TensorFlow takes much longer.

  Raises:
    DamagedRecord: the rest of the file is damaged or truncated.
  """
  from google.protobuf.message import DecodeError
  from tensorboard.compat.proto.event_pb2 import Event

  for record in record_framing.iter_records(file):
    try:
      yield Event.FromString(record)
    except DecodeError as error:
      raise record_framing.DamagedRecord('not an event') from error


def _append_point(curve: Curve, step: int, value: float) -> None:
  # A killed run may have logged steps after its last checkpoint. The resumed run repeats these
  # steps, so the points of the killed run are removed.
  while curve and curve[-1][0] >= step:
    curve.pop()
  curve.append((step, value))


def _downsample(curve: Curve) -> Curve:
  """Returns at most _MAX_POINTS points at equal intervals, including the last point."""
  interval = -(-len(curve) // _MAX_POINTS) or 1
  return curve[::-1][::interval][::-1]
