"""`--mode=reproduce`: runs a published workload, and compares measured and published figures.

The comparison is called the ledger, and is written as `ledger.json` and as `ledger.md`.
"""

import functools
import json
import logging
import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence

from estimator_train import settings as settings_lib
from estimator_train.errors import UserError
from estimator_train.modes.parts import Part, PartResult, RunChild, run_parts
from estimator_train.reports import page, report_files
from estimator_train.run_dir import RunDir
from estimator_train.settings import Settings, workloads
from estimator_train.settings.flag_type import all_flags
from estimator_train.settings.flags import OUTPUT_FLAGS
from estimator_train.settings.workloads import (
  WORKLOADS,
  PublishedValue,
  RunResults,
  Workload,
  WorkloadPart,
)
from estimator_train.system import child_process, machine, storage, tensorflow_probe
from estimator_train.system.formatting import format_count
from estimator_train.system.summary import log_summary, make_browser_command

_LOG = logging.getLogger('estimator_train')
_MARKDOWN_FILE = 'ledger.md'
_NOT_MEASURED = 'not measured here'
# The columns of the table: (key in a row of ledger.json, title in ledger.md).
_COLUMNS = (('what', 'figure'), ('published', 'published'), ('published_conditions', 'conditions'),
            ('measured', 'measured'), ('conditions', 'conditions here'), ('ratio', 'ratio'),
            ('why', 'why they differ'))
# When the mode runs again in the same model_dir, only these flags may have other values.
_CHANGEABLE_FLAGS = ('model_dir', 'log_every_steps', *OUTPUT_FLAGS)


def run(settings: Settings, run_dir: RunDir, run_child: RunChild = child_process.run_program,
        count_gpus: Callable[[], int] = tensorflow_probe.count_gpus) -> Dict[str, Any]:
  """Runs the parts of the workload that are not complete; prints and returns the ledger.

  Raises:
    UserError: no part succeeded, and at least one failed; the error contains the ledger.
  """
  assert settings.experiments.workload is not None
  run_dir.check_flags(settings, _CHANGEABLE_FLAGS)
  run_dir.make()
  run_dir.record_flags(settings)
  num_gpus = count_gpus()
  workload = WORKLOADS[settings.experiments.workload]
  parts = {part.name: part for part in workload.parts
           if part.num_gpus <= num_gpus or not part.needs_all_gpus}

  def run_part(part: Part) -> child_process.ChildRun:
    _LOG.info('running part %s: %s', part.name, ' '.join(part.arguments))
    return run_child(part.arguments, part.log_path)

  results = run_parts(
      [Part(name, name, _make_arguments(part, settings, num_gpus), run_dir.path_to(name + '.log'))
       for name, part in parts.items()], 'part',
      lambda name: storage.load_or_warn(
          run_dir.path_to(name + '.json'), functools.partial(parse_complete_reports, parts[name]),
          'the part runs again'),
      run_part, lambda name: _copy_reports(run_dir, parts[name]))
  result = _write_ledger(settings, run_dir, list(_iter_rows(workload, results, num_gpus)))
  page_file = page.write_page_of_finished_run(run_dir.path, settings.reporting)
  errors = [part.error for part in results.values() if part.error is not None]
  if errors and len(errors) == len(results):
    raise UserError('no part of the workload succeeded', errors[0],
                    'see the logs in ' + run_dir.path, result)
  log_summary('compared {} of {} of {} with the publication'.format(
      len(results) - len(errors), format_count(len(workload.parts), 'part'),
      settings.experiments.workload), [
          ('report', page_file), ('table', run_dir.path_to(_MARKDOWN_FILE)),
          ('result', report_files.path_to(run_dir.path, 'ledger'))],
              make_browser_command(page_file) if page_file else None)
  return result


def _copy_reports(run_dir: RunDir, part: WorkloadPart) -> RunResults:
  """Copies the reports of a part to a file that the next part does not replace; returns them."""
  folder = run_dir.path_to(part.folder)
  reports = {name: json.loads(Path(report_files.path_to(folder, name)).read_text('utf-8'))
             for name in ('throughput', 'evaluation')}
  storage.write_json(run_dir.path_to(part.name + '.json'), reports)
  return reports


def _make_arguments(part: WorkloadPart, settings: Settings, num_gpus: int) -> Sequence[str]:
  """Returns the arguments for the run of a part, with the user's flags from `settings`."""
  flags = dict(part.flags)
  chooses_devices = settings.devices.num_gpus >= 0 or settings.devices.num_cpu_replicas
  if chooses_devices or num_gpus >= part.num_gpus:
    flags.pop('num_cpu_replicas', None)
    if not chooses_devices:  # This machine has the GPUs of the published run.
      flags['num_gpus'] = part.num_gpus
  flags['model_dir'] = os.path.join(str(settings.run.model_dir), part.folder)
  # If a flag occurs more than once, its last value applies.
  return (['--flagfile=' + os.path.join(workloads.FLAGFILES_DIR, part.flagfile + '.flags')]
          + [all_flags()[name].to_argument(value) for name, value in flags.items()]
          + [argument for argument in settings_lib.to_arguments(settings)
             if argument.partition('=')[0] not in ('--mode', '--workload', '--model_dir')])


def parse_complete_reports(part: WorkloadPart, file: BinaryIO) -> RunResults:
  """Parses the copied reports of a part; raises an exception if a figure cannot be measured."""
  reports: RunResults = storage.parse_json(file, report_files.WORKLOAD_PART)
  for figure in part.figures:
    _make_measured_row(figure, part, reports)
  return reports


def _write_ledger(settings: Settings, run_dir: RunDir,
                  rows: List[Dict[str, Optional[str]]]) -> Dict[str, Any]:
  workload, this_machine = settings.experiments.workload, machine.describe_processor()
  result = {'mode': settings.run.mode, 'model_dir': run_dir.path, 'workload': workload,
            'machine': this_machine, 'rows': rows}
  table = '\n'.join([
      '`{}` on {}'.format(workload, this_machine), '', *(
          '| {} |'.format(' | '.join(cells)) for cells in (
              [title for _, title in _COLUMNS], ['---'] * len(_COLUMNS),
              *([(row[key] or '').replace('|', '\\|') for key, _ in _COLUMNS] for row in rows)))])
  print(table)
  storage.write_text(run_dir.path_to(_MARKDOWN_FILE), table + '\n')
  report_files.write(run_dir.path, 'ledger', result)
  return result


def _iter_rows(workload: Workload, results: Dict[str, PartResult],
               num_gpus: int) -> Iterator[Dict[str, Optional[str]]]:
  """Yields the rows of the figures of the parts, then of the combined figures."""
  reports = {name: result.reports for name, result in results.items() if result.reports}
  for part in workload.parts:
    for figure in part.figures:
      if part.name in reports:
        yield _make_measured_row(figure, part, reports[part.name])
      elif part.name in results:
        yield _make_row(figure, None, None, results[part.name].error, 'failed')
      else:
        yield _make_row(figure, None, None, 'requires {} GPU(s), this machine has {}'.format(
            part.num_gpus, num_gpus or 'none'))
  for figure in workload.combined_figures:
    if len(reports) == len(workload.parts):
      yield _make_row(figure, figure.measure(reports), 'the runs above', figure.caveat)
    else:
      yield _make_row(figure, None, None, 'requires the results of all runs')


def _make_measured_row(figure: PublishedValue, part: WorkloadPart,
                       reports: RunResults) -> Dict[str, Optional[str]]:
  return _make_row(figure, float(figure.measure(reports)), _describe_conditions(reports),
                   _explain_difference(figure, part, reports))


def _make_row(figure: PublishedValue, measured: Optional[float], conditions: Optional[str],
              reason: Optional[str], placeholder: str = _NOT_MEASURED) -> Dict[str, Optional[str]]:
  """Returns a row of ledger.json.

  Args:
    measured: the measured figure; if None, the row has the placeholder.
    reason: why the measured figure differs from the published one, or why it is missing.
  """
  return {'what': figure.name, 'published': figure.published,
          'published_conditions': figure.conditions or None,
          'measured': placeholder if measured is None else figure.number_format.format(measured),
          'conditions': conditions, 'ratio': _format_ratio(figure, measured), 'why': reason or None}


def _format_ratio(figure: PublishedValue, measured: Optional[float]) -> Optional[str]:
  """Returns measured ÷ published as text; None if one of the two figures is unknown.

  If a range was published, `measured` is divided by the value of the range that is closest to it.
  """
  published = re.findall(r'[\d.]+', (figure.published or '').replace(',', ''))
  if measured is None or not published:
    return None
  low, high = float(published[0]), float(published[-1])
  return '{:.3g}'.format(measured / min(max(measured, low), high))


def _describe_conditions(reports: RunResults) -> str:
  throughput = reports['throughput']
  return '{} replica{} on {}, {} examples per replica, step {:,}'.format(
      throughput['num_replicas'], '' if throughput['num_replicas'] == 1 else 's',
      ', '.join(throughput['devices']), throughput['per_replica_batch_size'],
      throughput['global_step'])


def _explain_difference(figure: PublishedValue, part: WorkloadPart, reports: RunResults) -> str:
  reasons = []
  devices = reports['throughput']['devices']
  if figure.depends_on_devices and (len(devices) != part.num_gpus or 'gpu' not in devices[0]):
    reasons.append('published on {} GPU{}, measured on {}'.format(
        part.num_gpus, '' if part.num_gpus == 1 else 's',
        '{} GPU(s)'.format(len(devices)) if 'gpu' in devices[0] else 'CPU cores'))
  elif figure.depends_on_devices:
    reasons.append('different GPUs')
  if figure.caveat:
    reasons.append(figure.caveat)
  return '; '.join(reasons)
