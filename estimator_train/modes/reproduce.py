"""`--mode=reproduce`: runs a published workload, and sets its figures beside the published."""

import json
import logging
import os
from typing import Any, Callable, Dict, Optional, Sequence

from estimator_train import settings as settings_lib
from estimator_train.configs.workloads import WORKLOADS, Part, Ran
from estimator_train.doctor import host, tensorflow_import
from estimator_train.errors import UserError
from estimator_train.files import atomic, paths
from estimator_train.process import child_process
from estimator_train.reports import evaluation, ledger, page, throughput
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups

_LOG = logging.getLogger('estimator_train')
# What may change from one start to the next.
_FREE_FLAGS = ('model_dir', 'log_every_steps', 'verbosity')
RunChild = Callable[[Sequence[str], str], child_process.ChildRun]


def run(settings: Settings, run_child: RunChild = child_process.run,
        count_gpus: Callable[[], int] = tensorflow_import.count_gpus) -> Dict[str, Any]:
  """Returns the result: the published figures beside the measured ones.

  Parts that have been run in this `model_dir` are not run again.

  Raises:
    UserError: no part could be run; it has the result.
  """
  assert settings.workload is not None
  run_dir = RunDir(settings.model_dir)
  run_dir.check_flags(settings, _FREE_FLAGS)
  run_dir.make()
  run_dir.record_flags(settings)
  gpus = count_gpus()
  runs: Dict[str, Ran] = {}
  skipped: Dict[str, str] = {}
  failed: Dict[str, str] = {}
  for part in WORKLOADS[settings.workload].parts:
    if part.needs_gpus and part.gpus > gpus:
      skipped[part.name] = 'takes {} GPU(s), and this machine has {}'.format(
          part.gpus, gpus or 'none')
      continue
    ran = _read(run_dir.path, part) or _run(settings, part, gpus, run_child, failed)
    if ran is not None:
      runs[part.name] = ran
  result = ledger.write(settings[groups.Run], settings.workload, runs, skipped, failed, _machine())
  page.write_after(settings.model_dir, settings[groups.Reporting])
  if failed and not runs:
    raise UserError('no part of the workload could be run', next(iter(failed.values())),
                    'the logs are in ' + run_dir.path, result)
  return result


def _run(settings: Settings, part: Part, gpus: int, run_child: RunChild,
         failed: Dict[str, str]) -> Optional[Ran]:
  """Runs a part and returns what it left; None, and a word in `failed`, where it did."""
  run_dir = RunDir(settings.model_dir)
  arguments = arguments_of(part, settings, gpus)
  _LOG.info('%s: %s', part.name, ' '.join(arguments))
  child = run_child(arguments, _path(run_dir.path, part, 'log'))
  if child.error is not None:
    _LOG.warning('%s: failed: %s', part.name, child.error)
    failed[part.name] = child.error
    return None
  folder = run_dir.file(part.folder)
  ran = {}
  for name, file in (('throughput', throughput.FILE), ('evaluation', evaluation.FILE)):
    with open(os.path.join(folder, file), encoding='utf-8') as content:
      ran[name] = json.load(content)
  # The next part may go on in the same folder.
  atomic.write_json(_path(settings.model_dir, part, 'json'), ran)
  return ran


def arguments_of(part: Part, settings: Settings, gpus: int) -> Sequence[str]:
  """Returns the flags of a part: its flagfile, what is its own, and what this machine needs.

  Args:
    part: to run.
    settings: what the user has given goes before what was published.
    gpus: that this machine has.
  """
  own = dict(part.flags)
  if settings.num_gpus >= 0 or settings.num_cpu_replicas:
    own.pop('num_cpu_replicas', None)
  elif gpus >= part.gpus:
    own.pop('num_cpu_replicas', None)
    own['num_gpus'] = part.gpus
  own['model_dir'] = os.path.join(str(settings.model_dir), part.folder)
  return (['--flagfile=' + os.path.join(paths.CONFIGS, part.flagfile + '.flags')]
          + ['--{}={}'.format(name, value) for name, value in own.items()]
          + [argument for argument in settings_lib.to_arguments(settings)
             if argument.partition('=')[0] not in ('--mode', '--workload', '--model_dir')])


def _read(folder: str, part: Part) -> Optional[Ran]:
  """Returns what the part left when it was run before; None if it was not."""
  try:
    with open(_path(folder, part, 'json'), encoding='utf-8') as file:
      ran: Ran = json.load(file)
  except FileNotFoundError:
    return None
  _LOG.info('%s: was run before', part.name)
  return ran


def _path(folder: str, part: Part, ending: str) -> str:
  return os.path.join(folder, '{}.{}'.format(part.name, ending))


def _machine() -> str:
  machine = host.look()
  return '{} ({} cores)'.format(machine.cpu_name or 'an unknown CPU', machine.cores)
