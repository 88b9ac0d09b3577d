"""`--mode=scaling`, by runs that are made up, and once by real ones that are killed half-way."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, wait_until

from estimator_train import flags
from estimator_train.doctor import commands, tensorflow_import
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.launcher import local_cluster
from estimator_train.modes import scaling
from estimator_train.process import child_process

SECS = 600


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
    settings = flags.parse(arguments)
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
    return scaling.run(flags.parse(['--mode=scaling', '--model_dir={}'.format(tmp_path),
                                    '--num_cpu_replicas=2', '--repeats=2'] + list(more)), runs,
                       clock)

  return run


def test_result(sweep, tmp_path, capsys):
  runs = Runs()
  result = sweep(runs)
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


@pytest.fixture
def log_lines(caplog):
  """The lines of the program's log."""
  caplog.set_level('INFO', 'estimator_train')
  return lambda: [record.getMessage() for record in caplog.records]


def test_progress(sweep, log_lines, monkeypatch):
  sweep(Runs(fails=lambda settings: settings.num_cpu_replicas == 2))
  lines = log_lines()
  assert len(lines) == 12
  for number, line in enumerate(lines, 1):
    assert re.match(
        r'point {}/12: (weak and strong, 1 replica|weak, 2 replicas|strong, 2 replicas), (real|'
        r'synthetic) input, repeat [12]: (\d+ examples/sec|failed: odd: \d+: fix it); about \d+ '
        r's left$'.format(number), line), line


def test_time_left(sweep, log_lines):
  runs = Runs()
  sweep(runs, clock=lambda: runs.now)
  secs = [10 * int(name[len('cpu')]) for name in runs.seen]
  told = [int(re.search(r'about (\d+) s left', line).group(1)) for line in log_lines()]
  # At first others are taken to be like those that are known; from the second round on it is known.
  assert told[0] == 11 * secs[0]
  assert told[5:] == [sum(secs[number:]) for number in range(6, 13)]


def test_a_bar_on_a_terminal(sweep, log_lines, monkeypatch):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  sweep(Runs(fails=lambda settings: settings.batch_size == 256))
  assert '12/12' in terminal.getvalue() and 'about 0 s left' in terminal.getvalue()
  assert len(log_lines()) == 4 and all('failed: odd: 256' in line for line in log_lines())


def test_a_failed_point_is_told_and_tried_again(sweep):
  def fails(settings):
    return settings.num_cpu_replicas == 2 and settings.batch_size == 128

  result = sweep(Runs(fails))
  assert {failure['point'].rpartition('-')[0] for failure in result['failures']} == {
      'cpu2-strong-real', 'cpu2-strong-synthetic'}
  failed = [row for row in result['table'] if row['failed']]
  assert [(row['scaling'], row['replicas'], row['runs'], row['error']) for row in failed] == [
      ('strong', 2, 0, 'odd: 128: fix it')] * 2
  again = Runs()
  result = sweep(again)
  assert len(again.seen) == 4 and all(name.startswith('cpu2-strong') for name in again.seen)
  assert result['failures'] == [] and {row['runs'] for row in result['table']} == {2}


def test_when_all_fail(sweep, tmp_path):
  message = 'all points of the sweep failed: odd: 128: fix it: see the logs'
  with pytest.raises(UserError, match=message):
    sweep(Runs(fails=lambda settings: True), '--dataset=synthetic', '--num_cpu_replicas=1')
  written = json.loads((tmp_path / 'scaling.json').read_text())
  assert len(written['failures']) == 2 and written['table'][0]['runs'] == 0
  assert (tmp_path / 'scaling.csv').exists()


@pytest.mark.parametrize('stop, signum, name', [
    (StoppedBySignal(signal.SIGTERM, ''), signal.SIGTERM, 'SIGTERM'),
    (KeyboardInterrupt(), signal.SIGINT, 'SIGINT')])
def test_stopped(sweep, stop, signum, name):
  with pytest.raises(StoppedBySignal, match='with 0 of 12 points complete'):
    sweep(Runs(fails=lambda settings: True, stop=stop))
  stopped = Runs(stop=stop)
  with pytest.raises(StoppedBySignal) as caught:
    sweep(stopped)
  assert caught.value.signum == signum
  assert str(caught.value) == ('stopped by {} with 2 of 12 points complete; the same command '
                               'resumes from there'.format(name))
  rest = Runs()
  sweep(rest)
  # The third was under way.
  assert stopped.seen[2:] == rest.seen[:1] and len(rest.seen) == 10


def test_more_repeats_are_added(sweep):
  sweep(Runs())
  more = Runs()
  result = sweep(more, '--repeats=3', '--verbosity=1')
  assert len(more.seen) == 6 and all(name.endswith('-3') for name in more.seen)
  assert {row['runs'] for row in result['table']} == {3}


@pytest.mark.parametrize('flag, there', [
    ('--batch_size=64', '--batch_size=128 before and --batch_size=64 now'),
    ('--train_steps=50', 'no --train_steps before and --train_steps=50 now'),
    ('--num_cpu_replicas=4', '--num_cpu_replicas=2 before and --num_cpu_replicas=4 now')])
def test_another_sweep_is_refused(sweep, flag, there):
  sweep(Runs())
  runs = Runs()
  with pytest.raises(UserError, match='--model_dir was created with other flags: ' + there):
    sweep(runs, flag)
  assert runs.seen == []


def test_folder_of_a_training_is_refused(sweep, tmp_path):
  (tmp_path / 'flags.txt').write_text('--mode=train\n')
  with pytest.raises(UserError, match='--mode=train before and --mode=scaling now'):
    sweep(Runs())


def test_what_is_wrong_with_the_data_is_told_at_once(sweep):
  runs = Runs()
  with pytest.raises(UserError, match='--data_dir is required'):
    sweep(runs, '--dataset=mnist')
  assert runs.seen == []


# What TensorFlow sees, the cores, what is given, and the runs of the most replicas.
@pytest.mark.parametrize('gpus, cores, more, most', [
    pytest.param(2, 8, [], 'gpu2', id='all GPUs'),
    pytest.param(2, 8, ['--num_gpus=1'], 'gpu1', id='some GPUs'),
    pytest.param(2, 8, ['--num_gpus=0'], 'cpu8', id='no GPU wanted'),
    pytest.param(2, 8, ['--num_cpu_replicas=3'], 'cpu3', id='CPU replicas'),
    pytest.param(0, 7, [], 'cpu4', id='no GPU'),
    pytest.param(0, 1, [], 'cpu2', id='one core'),
])
def test_number_of_replicas(tmp_path, monkeypatch, gpus, cores, more, most):
  done = commands.CommandResult(0, '', '', 1.)
  monkeypatch.setattr(tensorflow_import, 'import_in_child',
                      lambda: tensorflow_import.ImportResult(done, '1.15.0', 1., True, gpus))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(cores)))
  runs = Runs()
  scaling.run(flags.parse(['--mode=scaling', '--model_dir={}'.format(tmp_path), '--repeats=1',
                           '--dataset=synthetic'] + more), runs)
  assert max(name.partition('-')[0] for name in runs.seen) == most


@pytest.fixture
def over_workers(tmp_path, monkeypatch):
  """Sweeps over workers on a machine that is made up."""
  def run(runs, *more, cores=2, gpus=0):
    done = commands.CommandResult(0, '', '', 1.)
    monkeypatch.setattr(tensorflow_import, 'import_in_child',
                        lambda: tensorflow_import.ImportResult(done, '1.15.0', 1., True, gpus))
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(4, 4 + cores)))
    return scaling.run(flags.parse(
        ['--mode=scaling', '--scale_over=workers', '--model_dir={}'.format(tmp_path),
         '--repeats=1'] + list(more)), runs)

  return run


def test_result_over_workers(over_workers, tmp_path, capsys, log_lines):
  runs = Runs()
  result = over_workers(runs)
  assert sorted(name for name in runs.seen if 'real' in name) == [
      'worker1-both-real-1', 'worker2-strong-real-1', 'worker2-weak-real-1']
  for workers, cores, settings in runs.launches:
    assert cores == ([4] if workers == 1 else ())
    assert settings.distribution_strategy == 'multi_worker_mirrored'
    assert (settings.num_cpu_replicas, settings.num_gpus) == (1, 0)
  assert [(row['scaling'], row['workers'], row['global_batch_size'], row['speed_up'])
          for row in result['table'] if row['input'] == 'real'] == [
              ('weak', 1, 128, 1.), ('weak', 2, 256, 2.), ('strong', 1, 128, 1.),
              ('strong', 2, 128, 2.)]
  assert result['scale_over'] == 'workers' and result['device_kind'] == 'cpu'
  assert result['distribution_strategy'] == 'multi_worker_mirrored'
  assert result['cores_per_worker'] == 1 and 'pinned to 1 core(s)' in result['note']
  assert json.loads((tmp_path / 'scaling.json').read_text()) == result
  assert (tmp_path / 'scaling.csv').read_text().startswith('scaling,input,workers,')
  head, titles = capsys.readouterr().out.splitlines()[:2]
  assert 'workers on /some:0' in head and head.endswith(' each')
  assert titles.split()[:3] == ['scaling', 'input', 'workers']
  assert log_lines()[0] == 'measuring 1 to 2 workers, each pinned to 1 core(s)'
  assert any(': weak, 2 workers, real input, repeat 1: ' in line for line in log_lines())


@pytest.mark.parametrize('machine, more, most, each, own', [
    pytest.param({'cores': 7}, [], 4, (1, 0), (1, 0), id='cores'),
    pytest.param({'cores': 4}, ['--num_cpu_replicas=2'], 4, (2, 0), (1, 0), id='CPU replicas'),
    pytest.param({'cores': 1}, [], 2, (1, 0), (0, 0), id='one core'),
    pytest.param({'gpus': 4}, ['--num_gpus=0'], 2, (1, 0), (1, 0), id='no GPU wanted'),
    pytest.param({'gpus': 3}, [], 3, (0, 1), (0, 1), id='a GPU each'),
    pytest.param({'gpus': 4}, ['--num_gpus=2'], 2, (0, 2), (0, 2), id='two GPUs each'),
    pytest.param({'gpus': 1}, ['--num_gpus=2'], 1, (0, 2), None, id='too few GPUs')])
def test_number_of_workers(over_workers, monkeypatch, machine, more, most, each, own):
  asked = []
  divide = local_cluster._divide_resources
  monkeypatch.setattr(local_cluster, '_divide_resources',
                      lambda *given: asked.append(given[1:]) or divide(*given))
  runs = Runs()
  over_workers(runs, '--dataset=synthetic', *more, **machine)
  assert max(workers for workers, _, _ in runs.launches) == most
  assert {(settings.num_cpu_replicas, settings.num_gpus) for _, _, settings in runs.launches} == {
      each}
  assert set(asked) == ({own} if own else set())


def test_gpus_that_cannot_be_counted(tmp_path, monkeypatch):
  crashed = commands.CommandResult(-11, '', '', 1.)
  monkeypatch.setattr(tensorflow_import, 'import_in_child',
                      lambda: tensorflow_import.ImportResult(crashed))
  with pytest.raises(UserError, match='GPUs cannot be counted: .*ended by SIGSEGV: see --mode=doc'):
    scaling.run(flags.parse(['--mode=scaling', '--model_dir={}'.format(tmp_path)]), Runs())


def below(pid):
  """Returns the processes that a process has started, and those that they have."""
  try:
    with open('/proc/{0}/task/{0}/children'.format(pid)) as children:
      own = children.read().split()
  except OSError:
    return []
  return own + [each for child in own for each in below(child)]


class Sweeping:
  """The sweep as a process with real runs; where strong scaling is of two, it fails.

  Args:
    folder: of all sweeps of a test.
    more: flags.
    runs: how many processes may train; what comes after them waits, to be ended with the sweep.
  """

  def __init__(self, folder, *more, runs):
    self._folder, self._tokens = folder, folder / 'tokens'
    shutil.rmtree(str(self._tokens), ignore_errors=True)
    self._tokens.mkdir()
    for number in range(runs):
      (self._tokens / 'token {}'.format(number)).write_text('')
    self._process = subprocess.Popen(
        [sys.executable, '-m', 'estimator_train', '--mode=scaling', '--model_dir=here',
         '--model=own_models:on_a_token', '--batch_size=7', '--repeats=1', '--train_steps=4',
         '--throughput_warmup_steps=2'] + list(more), cwd=str(folder),
        env=dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'),
                 TOKENS=str(self._tokens)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._process.poll() is None:
      self._process.kill()
      self._process.communicate()

  def end(self, signum=None):
    """Returns code, standard output and standard error."""
    if signum is not None:
      self._process.send_signal(signum)
    out, err = self._process.communicate(timeout=SECS)
    return self._process.returncode, out, err

  @property
  def pid(self):
    return self._process.pid

  def wait(self, processes=1):
    """Waits until one may not train, and returns the processes below, at least that many."""
    def is_reached():
      assert self._process.poll() is None, self._process.communicate()
      return (self._tokens / 'waiting').exists() and len(below(self.pid)) >= processes

    wait_until(is_reached, SECS)
    return below(self.pid)


def done_at(folder):
  """Returns when each point that is done was."""
  return {path.parent.name: path.stat().st_mtime_ns
          for path in folder.glob('here/points/*/done.json')}


def wait_for_the_end(pids):
  wait_until(lambda: not any(os.path.exists('/proc/{}/exe'.format(pid)) for pid in pids))


@pytest.mark.slow
def test_killed_sweep_goes_on(tmp_path):
  with Sweeping(tmp_path, '--num_cpu_replicas=2', runs=1) as killed:
    children = killed.wait()
    assert killed.end(signal.SIGKILL)[0] == -signal.SIGKILL
  wait_for_the_end(children)
  first = done_at(tmp_path)
  assert len(first) == 1 and not (tmp_path / 'here' / 'scaling.json').exists()

  with Sweeping(tmp_path, '--num_cpu_replicas=2', runs=1) as stopped:
    children = stopped.wait()
    code, out, err = stopped.end(signal.SIGTERM)
  assert code == 143 and out == ''
  assert '{} of 6 points are already complete; resuming'.format(len(first)) in err
  second = done_at(tmp_path)
  assert err.splitlines()[-1] == ('stopped by SIGTERM with {} of 6 points complete; the same '
                                  'command resumes from there'.format(len(second)))
  wait_for_the_end(children)

  with Sweeping(tmp_path, '--num_cpu_replicas=2', runs=2) as last:
    code, out, err = last.end()
  assert code == 0, err
  third = done_at(tmp_path)
  assert (len(second), len(third)) == (2, 4)
  assert first.items() <= second.items() <= third.items()  # Nothing was run twice.
  result = json.loads(out.splitlines()[-1])
  assert json.loads((tmp_path / 'here' / 'scaling.json').read_text()) == result
  for row in result['table']:
    fails = row['scaling'] == 'strong' and row['replicas'] == 2
    assert (row['runs'], row['failed']) == ((0, 1) if fails else (1, 0))
    assert fails or row['examples_per_sec'] > 0
  assert {failure['error'] for failure in result['failures']} == {
      '--batch_size must be divisible by the number of replicas: --batch_size=7 for 2 replicas: '
      'use 6 or 8'}
  assert result['devices'] == ['/cpu:0 (logical)', '/cpu:1 (logical)']


@pytest.fixture
def two_cores():
  """Leaves this process, and those it starts, no more than two: there are as many workers."""
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, sorted(before)[:2])
  yield
  os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.cluster
def test_real_sweep_over_workers(tmp_path, two_cores):
  flags_given = ('--scale_over=workers', '--dataset=synthetic', '--num_gpus=0')
  with Sweeping(tmp_path, *flags_given, runs=1) as stopped:
    processes = stopped.wait(processes=3)  # A cluster, and its two tasks.
    assert stopped.end(signal.SIGTERM)[0] == 143
  wait_for_the_end(processes)

  with Sweeping(tmp_path, *flags_given, runs=9) as last:
    code, out, err = last.end()
  assert code == 0, err
  result = json.loads(out.splitlines()[-1])
  assert [(row['scaling'], row['workers'], row['runs'], row['failed'])
          for row in result['table']] == [
              ('weak', 1, 1, 0), ('weak', 2, 1, 0), ('strong', 1, 1, 0), ('strong', 2, 0, 1)]
  # What the tasks have said is there, of the failure too.
  assert {failure['error'].partition(': use')[0] for failure in result['failures']} == {
      '--batch_size must be divisible by the number of replicas: --batch_size=7 for 2 replicas'}
  points = tmp_path / 'here' / 'points'
  for name in ('worker2-weak-synthetic-1', 'worker2-strong-synthetic-1'):
    assert (points / name / 'logs' / 'worker-1.log').exists()
  figures = json.loads((points / 'worker2-weak-synthetic-1' / 'throughput.json').read_text())
  assert (figures['num_workers'], figures['num_replicas'], figures['global_batch_size']) == (
      2, 2, 14)
  alone = json.loads((points / 'worker1-both-synthetic-1' / 'throughput.json').read_text())
  assert (alone['num_workers'], alone['num_replicas']) == (1, 1)
