"""Runs the parts of a mode that are not complete. A part is a training run in new processes."""

import logging
import signal
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

from estimator_train.errors import StoppedBySignal
from estimator_train.system.child_process import ChildRun
from estimator_train.system.formatting import format_number
from estimator_train.system.progress import make_bar

_LOG = logging.getLogger('estimator_train')
# A function such as `child_process.run_program`.
RunChild = Callable[..., ChildRun]


class Part(NamedTuple):
  """A training run, and the process that runs it.

  Attributes:
    log_path: the file for the standard error of the process.
    module: the program, or the launcher of a cluster.
    cores: the IDs of the cores that the process may use; empty: all cores of this process.
  """
  name: str
  description: str
  arguments: Sequence[str]
  log_path: str
  module: str = 'estimator_train'
  cores: Sequence[int] = ()


class PartResult(NamedTuple):
  """The result of a part.

  Attributes:
    reports: the contents of the reports, by their file names without extension, including
      `throughput`; None if the part failed.
    error: the reason why the part failed, in one line; None if the part is complete.
  """
  reports: Optional[Dict[str, Any]]
  exit_code: Optional[int] = 0
  error: Optional[str] = None


def run_parts(parts: Sequence[Part], noun: str,
              read_complete_reports: Callable[[str], Optional[Dict[str, Any]]],
              run_part: Callable[[Part], ChildRun],
              mark_as_complete: Callable[[str], Dict[str, Any]]) -> Dict[str, PartResult]:
  """Runs the incomplete parts in order, and returns the results of all parts by name.

  Args:
    noun: `part`, or another noun for the log.
    read_complete_reports: takes the name of a part. Returns its reports, or None if the part is
      incomplete.
    mark_as_complete: takes the name of a part. Records that the part is complete, and returns its
      reports.

  Raises:
    StoppedBySignal: a signal or Ctrl-C interrupted a part.
  """
  recorded_reports = {part.name: read_complete_reports(part.name) for part in parts}
  results = {name: PartResult(reports) for name, reports in recorded_reports.items()
             if reports is not None}
  if results:
    _LOG.info('%d of %d %ss are already complete%s', len(results), len(parts), noun,
              '; resuming with the others' if len(results) < len(parts) else '')
  try:
    with make_bar('measuring', len(parts), noun + 's', len(results)) as bar:
      for part in parts:
        if part.name in results:
          continue
        child = run_part(part)
        result = (PartResult(mark_as_complete(part.name)) if child.error is None
                  else PartResult(None, child.code, child.error))
        results[part.name] = result
        bar.update(1)
        if not bar.is_shown or result.reports is None:
          _LOG.info('%s %d/%d: %s: %s', noun, len(results), len(parts), part.description,
                    'failed: {}'.format(result.error) if result.reports is None else
                    '{} examples/sec'.format(format_number(
                        result.reports['throughput']['examples_per_sec'])))
  except (KeyboardInterrupt, StoppedBySignal) as stopped:
    signum = signal.Signals(getattr(stopped, 'signum', signal.SIGINT))
    raise StoppedBySignal(
        signum, 'stopped by {} with {} of {} {}s complete; the same command resumes from there'
        .format(signum.name, sum(result.error is None for result in results.values()),
                len(parts), noun)) from stopped
  return results
