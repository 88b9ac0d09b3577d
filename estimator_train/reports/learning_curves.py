"""Reads loss, accuracy and learning rate from event files, and writes `report/curves.json`."""

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
# (pattern of folders with event files, pattern of the tag, name of the curve). If several rows have
# the same name, the first one with events is used. `average_loss` therefore precedes `loss`, which
# all Estimators write, but which is a mean over batches.
_CURVES = (('', _LOSS_TAG, 'train_loss'),
           ('', 'accuracy', 'train_accuracy'),
           ('', 'learning_rate', 'learning_rate'),
           ('eval*', 'average_loss', 'eval_loss'),
           ('eval*', 'loss', 'eval_loss'),
           ('eval*', 'accuracy', 'eval_accuracy'),
           ('eval*', 'acc', 'eval_accuracy'))
# The name of the curve of the number of completed epochs, which StepClock makes.
EPOCH_CURVE = 'epoch'
_EVENT_FILES = 'events.out.tfevents.*'
_MAX_POINTS = 1000
_CONSEQUENCE_OF_DAMAGE = 'its points are omitted'
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

  When there are _MAX_POINTS points, the length of the intervals is doubled. Losses that are not
  finite are ignored.

  Attributes:
    points: the last step of each interval, with the mean loss.
  """

  def __init__(self) -> None:
    self.points: Curve = []
    self._steps_per_point, self._num_losses, self._loss_sum = 1, 0, 0.

  def add(self, step: int, loss: float) -> None:
    """Adds the loss of a step. Existing points at this step and at later steps are removed."""
    if not math.isfinite(loss):
      return
    self._num_losses, self._loss_sum = self._num_losses + 1, self._loss_sum + loss
    if self._num_losses < self._steps_per_point:
      return
    _append_point(self.points, step, self._loss_sum / self._num_losses)
    self._num_losses, self._loss_sum = 0, 0.
    if len(self.points) == _MAX_POINTS:
      self.points = [(step, (first + second) / 2) for (_, first), (step, second) in zip(
          self.points[::2], self.points[1::2])]
      self._steps_per_point *= 2


def write_learning_curves(model_dir: str, losses: Sequence[Tuple[int, float]] = (),
                          epochs: Optional[Curve] = None) -> None:
  """Writes the curves of this run and of all earlier runs in the same `model_dir`.

  Args:
    losses: points of the training loss, which replace the points in the event files from their
      first step on.
    epochs: see StepClock.epoch_curve. If it is None, an existing file keeps its epochs.
  """
  curves = read_learning_curves(model_dir)
  if epochs is not None:
    curves[EPOCH_CURVE] = epochs
  if losses:
    curves['train_loss'] = _downsample([
        point for point in curves['train_loss'] if point[0] < losses[0][0]] + list(losses))
  report_files.write(model_dir, 'curves', curves)


def read_learning_curves(model_dir: str) -> Dict[str, Curve]:
  """Returns the curves by their names in _CURVES; a curve without events is empty.

  If an earlier `report/curves.json` has the epochs of the steps, they are returned as EPOCH_CURVE.
  """
  curves_by_folder: Dict[str, Dict[str, Curve]] = {}
  curves: Dict[str, Curve] = {}
  for folder_pattern, tag_pattern, name in _CURVES:
    for folder in _find_paths(model_dir, folder_pattern):
      if not curves.get(name):
        if folder not in curves_by_folder:
          curves_by_folder[folder] = _read_curves(folder)
        curves[name] = _downsample(curves_by_folder[folder].get(tag_pattern, []))
  epochs = report_files.read_or_warn(model_dir, 'curves').get(EPOCH_CURVE)
  return {**{name: curves.get(name, []) for _, _, name in _CURVES},
          **({EPOCH_CURVE: epochs} if epochs else {})}


def read_last_evaluation(model_dir: str) -> Dict[str, float]:
  """Returns the last evaluation in the event files, by the keys of evaluation.json.

  Figures that the Estimator does not log are omitted.
  """
  last_evaluation: Dict[str, float] = {}
  for folder in _find_paths(model_dir, 'eval*'):
    curves = _read_curves(folder)
    points = {key: curves[tag][-1] for tag, key in (
        ('acc', 'accuracy'), ('accuracy', 'accuracy'), ('average_loss', 'average_loss'),
        ('loss', 'loss')) if tag in curves}
    step = max((point[0] for point in points.values()), default=-1)
    if step > last_evaluation.get('global_step', -1):
      last_evaluation = {key: value for key, (point_step, value) in points.items()
                         if point_step == step}
      # This loss is used only to find the last step, because it is a mean over batches.
      last_evaluation.pop('loss', None)
      last_evaluation['global_step'] = step
  return last_evaluation


def has_event_files(model_dir: str) -> bool:
  """Returns whether the folder has TensorBoard event files of a training run."""
  return bool(_find_paths(model_dir, _EVENT_FILES))


def _find_paths(folder: str, pattern: str) -> List[str]:
  return sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))


def read_steps_per_sec(model_dir: str) -> Optional[float]:
  """Returns the rate of the last run that logged its loss at least twice; None if there is none.

  The rate is steps ÷ wall time between the first and the last logged loss.
  """
  for points in reversed(_read_event_files(model_dir)):
    logged_losses: List[_Point] = []
    for point in points:
      if point.tag_pattern == _LOSS_TAG:
        if logged_losses and point.step <= logged_losses[-1].step:
          logged_losses = []  # Training has resumed from an earlier step.
        logged_losses.append(point)
    if len(logged_losses) > 1:
      first, last = logged_losses[0], logged_losses[-1]
      if last.wall_time > first.wall_time:
        return (last.step - first.step) / (last.wall_time - first.wall_time)
  return None


def _read_curves(folder: str) -> Dict[str, Curve]:
  """Returns the curves of a folder, by the patterns of their tags in _CURVES."""
  curves: Dict[str, Curve] = {}
  for points in _read_event_files(folder):
    for point in points:
      _append_point(curves.setdefault(point.tag_pattern, []), point.step, point.value)
  return curves


def _read_event_files(folder: str) -> List[List[_Point]]:
  """Returns the points of each event file of a folder, in the order of the runs.

  The name of an event file contains the time of its creation. The order of the names is wrong if
  the clock was set back, or if another host resumed the run. Therefore, the files are ordered by
  their steps: a run resumes at a step that an earlier run has reached. Files without points are
  omitted.
  """
  # The step after which each file may follow, with its points. A run logs only some steps, so the
  # next run may begin a few steps after the last logged step.
  unordered = [
      (points[0].step - max([1, *(later.step - point.step
                                  for point, later in zip(points, points[1:]))]), points)
      for points in (storage.load_or_warn(path, _read_points, _CONSEQUENCE_OF_DAMAGE)
                     for path in _find_paths(folder, _EVENT_FILES)) if points]
  ordered: List[List[_Point]] = []
  last_step = -math.inf  # The first run begins at the lowest step.
  while unordered:
    index = next((index for index, (previous_step, _) in enumerate(unordered)
                  if previous_step <= last_step), None)
    if index is None:
      index = min(range(len(unordered)), key=lambda index: unordered[index][1][0].step)
    _, points = unordered.pop(index)
    ordered.append(points)
    last_step = max(last_step, *(point.step for point in points))
  return ordered


def _read_points(file: BinaryIO) -> List[_Point]:
  """Returns the points of all curves in an event file, up to the first damaged record.

  A truncated last record is not logged as damage, because a killed run leaves such a file.
  """
  points, num_events = [], 0
  try:
    for event in _read_events(file):
      num_events += 1
      for value in event.summary.value:
        # With loss scaling, training may continue after a loss that is not finite. Such a loss is
        # omitted, because JSON cannot represent it.
        scalar = _read_scalar(value)
        points += [_Point(pattern, event.step, scalar, event.wall_time)
                   for pattern in _TAG_PATTERNS
                   if math.isfinite(scalar) and re.fullmatch(pattern, value.tag)]
  except record_framing.TruncatedRecord:
    pass
  except record_framing.DamagedRecord as damage:
    _LOG.warning('%s is damaged from its record %d on (%s): its later points are omitted',
                 file.name, num_events, damage)
  return points


def _read_scalar(value: Any) -> float:
  """Returns the float32 scalar in a summary value; nan if the value has another type or shape."""
  if value.WhichOneof('value') == 'simple_value':
    return value.simple_value
  tensor = value.tensor
  if len(tensor.float_val) == 1:
    return tensor.float_val[0]
  return struct.unpack('<f', tensor.tensor_content)[0] if (
      tensor.dtype == _DT_FLOAT and len(tensor.tensor_content) == 4) else math.nan


def _read_events(file: BinaryIO) -> Iterator[Any]:
  """Yields the `Event` messages of an event file.

  The class `Event` is imported from TensorBoard in 0.1 s. Importing TensorFlow takes much longer.

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
