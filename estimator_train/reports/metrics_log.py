"""Appends the metrics of a run to `metrics.jsonl`, one JSON object per line."""

import json
import logging
import math
import os
import re
import time
from typing import Any, Callable, Dict, Iterator, Tuple

from estimator_train.errors import RunLockLost
from estimator_train.system import json_values, storage

METRICS_FILE = 'metrics.jsonl'
_LINE = json_values.fields({'global_step': json_values.integer()})
_STEP_IN_LINE = re.compile(br'"global_step": (\d+)[,}]')
_FIRST_TAIL_BYTES = 1 << 13
_LOG = logging.getLogger('estimator_train')


def append(model_dir: str, kind: str, step: int, metrics: Dict[str, Any]) -> None:
  """Appends a line, and only logs a failure, because training does not need the file.

  A line of an evaluation replaces the line of an earlier evaluation at the same step.

  Args:
    kind: `train`, `epoch` or `evaluation`.
    metrics: the metrics by name. A metric that is None or not finite is omitted.
  """
  line = json.dumps({'kind': kind, 'global_step': step, 'time': round(time.time(), 3), **{
      name: value if isinstance(value, int) else float(value) for name, value in metrics.items()
      if value is not None and math.isfinite(value)}})
  path = os.path.join(model_dir, METRICS_FILE)
  try:
    storage.check_guards(path)
    if kind == 'evaluation' and _has_evaluation(path, step):
      _remove_lines(path, lambda other: (other.get('kind'), other['global_step']) == (kind, step))
    with open(path, 'a+b') as file:
      if os.path.getsize(path):  # After a full disk, the last line may be incomplete.
        file.seek(-1, os.SEEK_END)
        line = line if file.read() == b'\n' else '\n' + line
      file.write(line.encode('utf-8') + b'\n')
  except RunLockLost:
    pass  # This is reported when a checkpoint cannot be saved.
  except OSError as error:
    _LOG.warning('a line of %s could not be written: %s', path, error)


def remove_steps_after(model_dir: str, step: int) -> None:
  """Removes the lines of later steps, because a resumed run repeats these steps."""
  path = os.path.join(model_dir, METRICS_FILE)
  _remove_lines(path, lambda metrics: metrics['global_step'] > step)


def _has_evaluation(path: str, step: int) -> bool:
  """Returns whether a line of an evaluation at a step follows the last line of an earlier step.

  The function reads only the end of the file. Otherwise, the total time of the evaluations of a run
  would grow with the square of their number.
  """
  if not os.path.isfile(path):
    return False
  tail, num_bytes, size = b'', _FIRST_TAIL_BYTES, os.path.getsize(path)
  with open(path, 'rb') as file:
    while len(tail) < size and not any(int(found) < step for found in _STEP_IN_LINE.findall(tail)):
      file.seek(max(size - num_bytes, 0))
      tail, num_bytes = file.read(size), 2 * num_bytes
  return b'{"kind": "evaluation", "global_step": %d,' % step in tail


def _remove_lines(path: str, is_obsolete: Callable[[Dict[str, Any]], bool]) -> None:
  """Removes all incomplete lines, and the lines whose metrics are obsolete."""
  if os.path.isfile(path):
    lines = [line for line, metrics in _read_complete_lines(path) if not is_obsolete(metrics)]
    with open(path, 'rb') as file:
      is_changed = sum(1 for _ in file) != len(lines)
    if is_changed:
      storage.write_text(path, ''.join(lines))


def _read_complete_lines(path: str) -> Iterator[Tuple[str, Dict[str, Any]]]:
  """Yields (text, metrics) of each complete line."""
  with open(path, encoding='utf-8', errors='replace') as file:
    for line in file:
      try:
        yield line, json_values.parse(line, _LINE)
      except Exception as error:  # For example a RecursionError.
        # A killed run or a full disk can leave an incomplete line.
        if line.rstrip().endswith('}'):
          _LOG.warning('a damaged line of %s is removed: %s', path, error)
