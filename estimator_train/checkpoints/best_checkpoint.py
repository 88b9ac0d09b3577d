"""Compares checkpoints by a metric, and stores the best one in `model_dir/best/`.

    best/best.json     the path and metrics of the best checkpoint, written after its files
    best/STEP/         the files of the best checkpoint, of one being evaluated, or of a stale one
    best/STEP-TASK/    like best/STEP/, for a checkpoint that another task than the chief evaluates

`model_dir/best.h5` is the Keras model of the best checkpoint. It is removed before another
checkpoint becomes the best one, and written at the end of the run. It is therefore never the model
of another checkpoint.
"""

import contextlib
import errno
import glob
import logging
import os
import re
import shutil
from typing import Any, BinaryIO, Dict, Iterator, NamedTuple, Optional

from estimator_train.system import json_values, locks, storage

BEST_FOLDER = 'best'
MODEL_FILE = 'best.h5'
_RECORD_FILE = 'best.json'
# The keys of best.json that are not metrics.
RECORD_KEYS = frozenset(('checkpoint', 'global_step', 'metric', 'value', 'last_evaluated',
                         'examples_digest', 'compared_since', 'improved_at'))
# Of checkpoints whose values of the metric are equal, the one with the lowest loss is the best.
_TIE_METRIC = 'average_loss'
# The path of a checkpoint relative to `best/`. Absolute paths become invalid if a run is moved.
_BEST_PATH = re.compile(r'(?:^|/)(\d[\w-]*/model\.ckpt-\d+)$')
_LOG = logging.getLogger('estimator_train')
# The values of metrics by name; None for a metric without a value.
Metrics = Dict[str, Optional[float]]


class BestMetric(NamedTuple):
  """The metric by which checkpoints are compared.

  Attributes:
    name: the key of the metric in the result of an evaluation.
  """
  name: str
  larger_is_better: bool

  def has_improved(self, metrics: Metrics, best_metrics: Metrics) -> bool:
    """Returns whether the metric is better than the best so far. None is the worst value."""
    return _is_better(metrics.get(self.name), best_metrics.get(self.name), self.larger_is_better)

  def is_better(self, metrics: Metrics, best_metrics: Metrics) -> bool:
    """Returns whether the metrics are better than the best so far. The loss breaks ties."""
    if metrics.get(self.name) == best_metrics.get(self.name):
      return _is_better(metrics.get(_TIE_METRIC), best_metrics.get(_TIE_METRIC), False)
    return self.has_improved(metrics, best_metrics)

  def __str__(self) -> str:
    return self.name.replace('_', ' ')


def _is_better(value: Optional[float], best_value: Optional[float], larger_is_better: bool) -> bool:
  if value is None or best_value is None:
    return value is not None and best_value is None
  return value > best_value if larger_is_better else value < best_value


def select_metric_values(metrics: Dict[str, Any]) -> Metrics:
  """Selects the results of an evaluation by which checkpoints can be compared."""
  return {name: value for name, value in metrics.items()
          if value is None or isinstance(value, float)}


class BestCheckpoint(NamedTuple):
  """The best checkpoint so far.

  Attributes:
    metrics: the metrics by name; a metric without a value is None.
    last_evaluated_step: the global step of the last evaluated checkpoint, best or not.
    examples_digest: the digest of the test examples that the metrics are computed from; None if it
      is unknown.
    compared_since: the global step of the first checkpoint that was evaluated on these examples.
      Early stopping counts from this step.
    improved_at: the global step of the first checkpoint with this value of the metric. Later ones
      with the same value and a lower loss become the best one, but are no improvement for early
      stopping.
  """
  path: str
  global_step: int
  metrics: Metrics
  last_evaluated_step: int
  examples_digest: Optional[str] = None
  compared_since: int = 0
  improved_at: int = 0

  def as_result(self) -> Dict[str, Any]:
    """Returns the value of `best` in the result of an evaluation."""
    return {'global_step': self.global_step, 'checkpoint': self.path, **self.metrics}


def read_best(model_dir: str) -> Optional[BestCheckpoint]:
  """Returns the best checkpoint; None if there is none.

  If best.json is damaged or a file of the checkpoint is missing, the function logs a warning and
  returns None.
  """
  path = os.path.join(model_dir, BEST_FOLDER, _RECORD_FILE)
  best = _read_record(path)
  while best is not None and not _is_complete(best.path):
    # Another task may have replaced the checkpoint after this task read best.json.
    previous, best = best, _read_record(path)
    if best == previous:
      _LOG.warning('%s names %s, whose files are missing: continuing without a best checkpoint',
                   path, best.path)
      return None
  return best


def _read_record(path: str) -> Optional[BestCheckpoint]:
  """Returns the checkpoint that best.json names; None if the file is missing or damaged."""
  folder = os.path.dirname(path)

  def parse(file: BinaryIO) -> BestCheckpoint:
    record = storage.parse_json(file, json_values.fields({
        'checkpoint': json_values.text, 'global_step': json_values.integer(),
        'last_evaluated': json_values.integer()}, {
            'examples_digest': json_values.optional(json_values.text),
            'compared_since': json_values.integer(), 'improved_at': json_values.integer()}))
    match = _BEST_PATH.search(record['checkpoint'])
    if match is None:
      raise ValueError('no path of a checkpoint: {}'.format(record['checkpoint']))
    return BestCheckpoint(os.path.join(folder, match.group(1)), record['global_step'], {
        name: None if value is None else float(json_values.number()(value))
        for name, value in record.items() if name not in RECORD_KEYS}, record['last_evaluated'],
                          record.get('examples_digest'), record.get('compared_since', 0),
                          record.get('improved_at', record['global_step']))

  return storage.load_or_warn(path, parse, 'continuing without a best checkpoint')


def pin_for_evaluation(checkpoint: str, model_dir: str, task_type: Optional[str] = None) -> str:
  """Protects a checkpoint from deletion by links to its files in a new folder.

  Args:
    task_type: the type of the task that pins the checkpoint; None for the chief or a single
      process.

  Returns:
    The path of the pinned checkpoint.

  Raises:
    FileNotFoundError: another process has deleted files of the checkpoint.
  """
  step, suffix = checkpoint.rpartition('-')[2], '-' + task_type if task_type else ''
  with _locked_best_folder(model_dir) as best_folder:
    best = read_best(model_dir)
    folder_to_keep = None if best is None else os.path.dirname(best.path)
    _remove_folders(best_folder, folder_to_keep, task_type)
    new_folder = os.path.join(best_folder, step + suffix)
    if new_folder == folder_to_keep:
      # A resumed run has saved the step of the best checkpoint again. The files of the best
      # checkpoint must not change.
      new_folder = os.path.join(best_folder, step + '-again' + suffix)
    os.makedirs(new_folder)
    for path in glob.glob(glob.escape(checkpoint) + '.*'):
      _link_or_copy(path, os.path.join(new_folder, os.path.basename(path)))
  pinned_path = os.path.join(new_folder, os.path.basename(checkpoint))
  if not _is_complete(pinned_path):
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), checkpoint)
  return pinned_path


def promote_if_better(pinned_path: str, global_step: int, metrics: Metrics,
                      best_metric: BestMetric, model_dir: str,
                      examples_digest: Optional[str] = None) -> BestCheckpoint:
  """Compares a pinned checkpoint with the best checkpoint so far, and removes the worse one.

  Args:
    pinned_path: the return value of `pin_for_evaluation`.
    metrics: the metrics of the pinned checkpoint, by name.
    examples_digest: the digest of the test examples. The best checkpoint so far must have been
      evaluated on these examples, too; see update_metrics.

  Returns:
    The best checkpoint after the comparison.
  """
  with _locked_best_folder(model_dir) as best_folder:
    best = read_best(model_dir)
    previous_folder = os.path.dirname(best.path) if best is not None else None
    # If the previous run had another --best_metric, the best checkpoint may lack this metric.
    if best is None or best_metric.is_better(metrics, best.metrics):
      compared_since, improved_at, reason = 0, global_step, ''
      if best is not None:
        compared_since = best.compared_since
        if not best_metric.has_improved(metrics, best.metrics):
          improved_at = best.improved_at
          reason = ', the same as at step {}, with a lower loss'.format(best.global_step)
      _LOG.info('best %s so far%s', best_metric, reason)
      best = BestCheckpoint(pinned_path, global_step, metrics, global_step, examples_digest,
                            compared_since, improved_at)
      remove_model_file(model_dir)
    best = best._replace(last_evaluated_step=global_step)
    _write_record(best_folder, best, best_metric.name)
    # The replaced checkpoint is removed even if another task wrote its folder.
    _remove_folders(best_folder, os.path.dirname(best.path),
                    _find_task_type(os.path.dirname(pinned_path)), previous_folder)
  return best


def update_metrics(best: BestCheckpoint, metrics: Metrics,
                   best_metric: BestMetric, model_dir: str, examples_digest: str,
                   compared_since: int) -> None:
  """Replaces the metrics of the best checkpoint by its metrics on other test examples.

  The other arguments are attributes of BestCheckpoint.

  Args:
    best: the return value of `read_best`. If another task has replaced this checkpoint meanwhile,
      the function does nothing.
  """
  with _locked_best_folder(model_dir) as best_folder:
    if read_best(model_dir) == best:
      _write_record(best_folder, best._replace(
          metrics=metrics, examples_digest=examples_digest, compared_since=compared_since),
                    best_metric.name)


def replace_model_file(new_path: str, checkpoint: str, model_dir: str) -> bool:
  """Moves a file to `best.h5` if a checkpoint is still the best one, and returns whether it is."""
  with _locked_best_folder(model_dir):
    best = read_best(model_dir)
    if best is None or best.path != checkpoint:
      return False
    os.replace(new_path, os.path.join(model_dir, MODEL_FILE))
  return True


def remove_model_file(model_dir: str) -> None:
  """Removes `best.h5` if it exists."""
  with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(model_dir, MODEL_FILE))


def _write_record(best_folder: str, best: BestCheckpoint, metric_name: str) -> None:
  """Writes best.json with all metrics, because the next run may have another --best_metric."""
  storage.write_json(os.path.join(best_folder, _RECORD_FILE), {
      'checkpoint': os.path.relpath(best.path, best_folder), 'global_step': best.global_step,
      'metric': metric_name, 'value': best.metrics.get(metric_name), **best.metrics,
      'last_evaluated': best.last_evaluated_step, 'examples_digest': best.examples_digest,
      'compared_since': best.compared_since, 'improved_at': best.improved_at})


@contextlib.contextmanager
def _locked_best_folder(model_dir: str) -> Iterator[str]:
  """Yields the path of `model_dir/best/`, and locks this folder until the end of the `with` block.

  The lock is necessary because two tasks may evaluate at the same time: the evaluator, and a chief
  whose TF_CONFIG does not list the evaluator.
  """
  folder = os.path.join(model_dir, BEST_FOLDER)
  storage.check_guards(folder)
  os.makedirs(folder, exist_ok=True)
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    with contextlib.suppress(OSError):  # The file system may not support locks.
      locks.wait_for_lock(descriptor, folder)
    yield folder
  finally:
    os.close(descriptor)


def _is_complete(checkpoint: str) -> bool:
  """Returns whether the index and all N files `.data-I-of-N` of a checkpoint exist."""
  data_files = glob.glob(glob.escape(checkpoint) + '.data-*-of-*')
  return (os.path.exists(checkpoint + '.index') and bool(data_files)
          and len(data_files) == int(data_files[0].rpartition('-of-')[2]))


def _remove_folders(best_folder: str, folder_to_keep: Optional[str], task_type: Optional[str],
                    previous_folder: Optional[str] = None) -> None:
  """Removes `previous_folder` and the folders of a type of task, except `folder_to_keep`.

  Folders of other types of tasks are not removed, because these tasks may be reading the files.
  """
  for name in os.listdir(best_folder):
    path = os.path.join(best_folder, name)
    if os.path.isdir(path) and path != folder_to_keep and (
        _find_task_type(path) == task_type or path == previous_folder):
      shutil.rmtree(path)


def _find_task_type(folder: str) -> Optional[str]:
  """Returns the type of the task that wrote a folder; None for the chief or a single process."""
  return re.sub(r'^\d+(-again)?-?', '', os.path.basename(folder)) or None


def _link_or_copy(path: str, target: str) -> None:
  # The index must be copied. When a resumed run saves the step again, TensorFlow replaces the data
  # files but overwrites the index in place, so a linked index would no longer fit the linked data.
  if not path.endswith('.index'):
    with contextlib.suppress(OSError):  # The file system may not support hard links.
      os.link(path, target)
      return
  with open(path, 'rb') as source, storage.open_atomic(target) as copy:
    for content in iter(lambda: source.read(1 << 20), b''):
      copy.write(content)
