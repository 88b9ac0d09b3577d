"""`--mode=scaling`, by runs of a stand-in, and by real ones."""

import io
import json
import os
import re
import signal
import sys
import time

import pytest
from conftest import ROOT

from estimator_train.doctor import ChildResult, installation
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.launcher import local_cluster
from estimator_train.modes import scaling
from estimator_train.process import child_process
from estimator_train.settings import command_line


class Runs:
  """Stands in for the program: runs at 100 examples/sec a replica, and remembers what it ran.

  A run takes 10 seconds a replica, by a clock of their own.
  """

  def __init__(self, fails=lambda settings: False, stop=None):
    self.seen = []
    self.launches = []
    self.fails = fails
    self.stop = stop
    self.now = 0.

  def __call__(self, arguments, log, module='estimator_train', cores=()):
    workers = 1
    if module == 'estimator_train.launcher.local_cluster':
      asked = local_cluster._parse_arguments(arguments)
      workers, arguments = len(asked.tasks), asked.program_arguments
    settings = command_line.parse(arguments)
    self.launches.append((workers, cores, settings))
    self.seen.append(os.path.basename(settings.model_dir))
    assert log == os.path.join(settings.model_dir, 'log.txt')
    if self.stop is not None and len(self.seen) == 3:
      raise self.stop
    replicas = workers * (settings.num_cpu_replicas or settings.num_gpus)
    self.now += 10. * replicas
    if self.fails(settings):
      return child_process.ChildRun(2, None, 'odd: {}: fix it'.format(settings.batch_size))
    with open(os.path.join(settings.model_dir, 'throughput.json'), 'w') as file:
      json.dump({'steady_examples_per_sec': 100. * replicas, 'devices': ['/some:0'] * replicas,
                 'tensorflow_version': '1.15.0', 'shares': {'input': 0.25}}, file)
    return child_process.ChildRun(0, {}, None)


@pytest.fixture
def sweep(tmp_path):
  """Sweeps over 1 and 2 CPU replicas, twice each: 12 points."""
  def run(runs, *more, clock=time.monotonic):
    return scaling.run(command_line.parse(['--mode=scaling', '--model_dir={}'.format(tmp_path),
                                    '--num_cpu_replicas=2', '--repeats=2'] + list(more)), runs,
                       clock)

  return run


@pytest.fixture
def log_lines(caplog):
  """The lines of the program's log."""
  caplog.set_level('INFO', 'estimator_train')
  return lambda: [record.getMessage() for record in caplog.records]


def test_result(sweep, tmp_path, capsys, log_lines):
  runs = Runs()
  result = sweep(runs, clock=lambda: runs.now)
  assert len(runs.seen) == len(set(runs.seen)) == 12
  assert [(row['scaling'], row['input'], row['replicas']) for row in result['table']] == [
      (scaled, kind, replicas) for scaled in ('weak', 'strong') for kind in ('real', 'synthetic')
      for replicas in (1, 2)]
  for row in result['table']:
    assert row['runs'] == 2 and row['speed_up'] == row['replicas'] and row['efficiency'] == 1.
    assert row['input_share'] == 0.25
  assert result['failures'] == [] and result['device_kind'] == 'cpu (logical)'
  assert json.loads((tmp_path / 'scaling.json').read_text()) == result
  assert (tmp_path / 'scaling.csv').read_text().startswith('scaling,input,replicas,')
  assert capsys.readouterr().out.splitlines()[1].startswith('scaling')
  lines = log_lines()
  assert len(lines) == 12
  for number, line in enumerate(lines, 1):
    assert re.match(
        r'point {}/12: (weak and strong, 1 replica|weak, 2 replicas|strong, 2 replicas), (real|'
        r'synthetic) input, repeat [12]: \d+ examples/sec; about \d+ s left$'.format(number), line)
  secs = [10 * int(name[len('cpu')]) for name in runs.seen]
  left = [int(re.search(r'about (\d+) s left', line).group(1)) for line in lines]
  # At first others are taken to be like those that are known; from the second round on it is known.
  assert left[0] == 11 * secs[0]
  assert left[5:] == [sum(secs[number:]) for number in range(6, 13)]
  more = Runs()
  result = sweep(more, '--repeats=3', '--verbosity=1')
  assert len(more.seen) == 6 and all(name.endswith('-3') for name in more.seen)
  assert {row['runs'] for row in result['table']} == {3}


def test_a_failed_point_is_reported_and_tried_again(sweep, log_lines, monkeypatch):
  def fails(settings):
    return settings.num_cpu_replicas == 2 and settings.batch_size == 128

  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  result = sweep(Runs(fails))
  assert '12/12' in terminal.getvalue() and 'about 0 s left' in terminal.getvalue()
  assert len(log_lines()) == 4 and all('failed: odd: 128' in line for line in log_lines())
  assert {failure['point'].rpartition('-')[0] for failure in result['failures']} == {
      'cpu2-strong-real', 'cpu2-strong-synthetic'}
  failed = [row for row in result['table'] if row['failed']]
  assert [(row['scaling'], row['replicas'], row['runs'], row['error']) for row in failed] == [
      ('strong', 2, 0, 'odd: 128: fix it')] * 2
  again = Runs()
  result = sweep(again)
  assert len(again.seen) == 4 and all(name.startswith('cpu2-strong') for name in again.seen)
  assert result['failures'] == [] and {row['runs'] for row in result['table']} == {2}


@pytest.mark.parametrize('stop, signum', [
    (StoppedBySignal(signal.SIGTERM, ''), signal.SIGTERM), (KeyboardInterrupt(), signal.SIGINT)])
def test_stopped(sweep, stop, signum):
  stopped, rest = Runs(stop=stop), Runs()
  with pytest.raises(StoppedBySignal) as caught:
    sweep(stopped)
  assert caught.value.signum == signum
  assert str(caught.value) == ('stopped by {} with 2 of 12 points complete; the same command '
                               'resumes from there'.format(signal.Signals(signum).name))
  sweep(rest)
  # The third was under way.
  assert stopped.seen[2:] == rest.seen[:1] and len(rest.seen) == 10


def test_what_is_refused(sweep, tmp_path, monkeypatch):
  runs = Runs()
  with pytest.raises(UserError, match='--data_dir is required'):
    sweep(runs, '--dataset=mnist')
  monkeypatch.setattr(installation, 'import_in_child', import_in_child(-11))
  with pytest.raises(UserError, match='GPUs cannot be counted: .*ended by SIGSEGV: see --mode=doc'):
    sweep(runs, '--num_cpu_replicas=0')
  (tmp_path / 'flags.txt').write_text('--mode=train\n')
  with pytest.raises(UserError, match='--mode=train before and --mode=scaling now'):
    sweep(runs)
  assert runs.seen == []
  (tmp_path / 'flags.txt').unlink()
  with pytest.raises(UserError, match='all points of the sweep failed: odd: 128: fix it: see the '):
    sweep(Runs(fails=lambda settings: True), '--dataset=synthetic', '--num_cpu_replicas=1')
  written = json.loads((tmp_path / 'scaling.json').read_text())
  assert len(written['failures']) == 2 and written['table'][0]['runs'] == 0
  with pytest.raises(UserError, match='--dataset=synthetic before and --dataset=fashion_mnist_sam'):
    sweep(runs)
  assert runs.seen == []


def import_in_child(code, *result):
  """Stands in for an import of TensorFlow with that result."""
  done = ChildResult(code, '', '', 1.)
  return lambda: installation.ImportResult(done, *result)


# The GPUs that TensorFlow sees, the cores, and what is given; of the largest point: the workers,
# and the GPUs and CPU replicas of each.
@pytest.mark.parametrize('gpus, cores, given, most', [
    (2, 8, '', (1, 2, 0)), (2, 8, '--num_gpus=1', (1, 1, 0)), (2, 8, '--num_gpus=0', (1, 0, 8)),
    (2, 8, '--num_cpu_replicas=3', (1, 0, 3)), (0, 7, '', (1, 0, 4)), (0, 1, '', (1, 0, 2)),
    (0, 7, '--scale_over=workers', (4, 0, 1)), (0, 1, '--scale_over=workers', (2, 0, 1)),
    (0, 4, '--scale_over=workers --num_cpu_replicas=2', (4, 0, 2)),
    (4, 2, '--scale_over=workers --num_gpus=0', (2, 0, 1)),
    (3, 2, '--scale_over=workers', (3, 1, 0)),
    (4, 2, '--scale_over=workers --num_gpus=2', (2, 2, 0)),
    (1, 2, '--scale_over=workers --num_gpus=2', (1, 2, 0))])
def test_number_of_replicas_or_workers(tmp_path, monkeypatch, gpus, cores, given, most):
  monkeypatch.setattr(installation, 'import_in_child',
                      import_in_child(0, '1.15.0', 1., True, gpus))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(4, 4 + cores)))
  runs = Runs()
  result = scaling.run(command_line.parse([
      '--mode=scaling', '--model_dir={}'.format(tmp_path), '--repeats=1', '--dataset=synthetic',
      *given.split()]), runs)
  assert max((workers, settings.num_gpus * bool(settings.num_gpus > 0), settings.num_cpu_replicas)
             for workers, _, settings in runs.launches) == most
  if 'workers' in given:
    assert result['scale_over'] == 'workers' and result['table'][0]['workers'] == 1
    assert result['distribution_strategy'] == 'multi_worker_mirrored'
  if 'workers' in given and not most[1] and cores > 1:
    # A single worker is pinned to as many cores as each of several.
    assert [pinned for workers, pinned, _ in runs.launches if workers == 1] == [[4]]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize('unit, extra', [
    ('replicas', ['--num_cpu_replicas=2']), ('workers', ['--scale_over=workers', '--num_gpus=0'])])
def test_real_sweep(run_well, tmp_path, monkeypatch, unit, extra):
  """Strong scaling of two fails, as two does not divide the batch size."""
  monkeypatch.setenv('PYTHONPATH', '{}:{}'.format(ROOT, ROOT / 'tests'))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid, of=os.sched_getaffinity: set(
      sorted(of(pid))[:2]))
  flags_given = ['--mode=scaling', '--dataset=synthetic', '--model=own_models:two_layers',
                 '--image_size=8,8', '--batch_size=7', '--repeats=1', '--train_steps=4',
                 '--throughput_warmup_steps=2', '--model_dir={}'.format(tmp_path)] + extra
  done = run_well(*flags_given)
  result = done.result
  assert [(row['scaling'], row[unit], row['runs'], row['failed']) for row in result['table']] == [
      ('weak', 1, 1, 0), ('weak', 2, 1, 0), ('strong', 1, 1, 0), ('strong', 2, 0, 1)]
  assert {failure['error'].partition(': use')[0] for failure in result['failures']} == {
      '--batch_size must be divisible by the number of replicas: --batch_size=7 for 2 replicas'}
  figures = [json.loads(path.read_text())
             for path in sorted(tmp_path.glob('points/*/throughput.json'))]
  assert [(each['num_' + unit], each['num_replicas'], each['global_batch_size'])
          for each in figures] == [(1, 1, 7), (2, 2, 14)]
  assert all(row['examples_per_sec'] > 0 for row in result['table'] if row['runs'])
