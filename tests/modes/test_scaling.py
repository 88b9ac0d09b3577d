"""`--mode=scaling`, by runs of a stand-in and by real ones, and its table."""

import csv
import io
import json
import os
import re
import signal
import sys

import pytest
from conftest import ROOT
from mode_runs import Runs, image_flags

from estimator_train.data import datasets
from estimator_train.doctor import installation
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.modes import scaling
from estimator_train.modes.scaling import write_scaling_report
from estimator_train.modes.scaling.points import Point, PointResult
from estimator_train.settings import Settings, command_line
from estimator_train.system.child_process import ChildRun

GPU, CPU, WORKER, WEAK, STRONG, BOTH = 'gpu', 'cpu', 'worker', 'weak', 'strong', 'both'
REAL, SYNTHETIC = 'real', 'synthetic'


@pytest.fixture
def sweep(tmp_path):
  """Sweeps over 1 and 2 CPU replicas, twice each: 12 points."""
  def run(runs, *more):
    return scaling.run(command_line.parse([
        '--mode=scaling', '--model_dir={}'.format(tmp_path / 'sweep'), '--num_cpu_replicas=2',
        '--repeats=2', *more]), runs)

  return run


@pytest.fixture
def log_lines(caplog):
  """The lines of the program's log."""
  caplog.set_level('INFO', 'estimator_train')
  return lambda: [record.getMessage() for record in caplog.records]


def test_result(sweep, tmp_path, log_lines):
  runs = Runs()
  result = sweep(runs)
  assert len(runs.seen) == len(set(runs.seen)) == 12 and len(result['table']) == 8
  for row in result['table']:
    assert row['runs'] == 2 and row['speed_up'] == row['replicas'] and row['efficiency'] == 1.
  assert result['failures'] == [] and result['device_kind'] == 'cpu (logical)'
  assert json.loads((tmp_path / 'sweep' / 'scaling.json').read_text()) == result
  assert {path.name for path in (tmp_path / 'sweep').glob('points/*/*')} == {
      'done.json', 'flags.txt', 'log.txt', 'throughput.json'}
  lines = log_lines()
  assert len(lines) == 12
  for number, line in enumerate(lines, 1):
    assert re.match(
        r'point {}/12: (weak and strong, 1 replica|weak, 2 replicas|strong, 2 replicas), (real|'
        r'synthetic) input, repeat [12]: \d+ examples/sec$'.format(number), line)
  more = Runs()
  result = sweep(more, '--repeats=3', '--verbosity=1')
  assert len(more.seen) == 6 and all(name.endswith('-3') for name in more.seen)
  assert {row['runs'] for row in result['table']} == {3}


def test_a_failed_point_is_reported_and_tried_again(sweep, log_lines, monkeypatch):
  def fails(settings):
    return settings.devices.num_cpu_replicas == 2 and settings.optimizer.batch_size == 128

  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  result = sweep(Runs(fails))
  assert '12/12' in terminal.getvalue()
  assert len(log_lines()) == 4 and all('failed: a fault: 128' in line for line in log_lines())
  assert {failure['point'].rpartition('-')[0] for failure in result['failures']} == {
      'cpu2-strong-real', 'cpu2-strong-synthetic'}
  for failure in result['failures']:
    assert (failure['code'], failure['error']) == (2, 'a fault: 128: fix it')
    assert sorted(os.listdir(os.path.dirname(failure['log']))) == [
        'flags.txt', 'log.txt', 'throughput.json']
  failed = [row for row in result['table'] if row['failed']]
  assert [(row['scaling'], row['replicas'], row['runs'], row['error']) for row in failed] == [
      (STRONG, 2, 0, 'a fault: 128: fix it')] * 2
  again = Runs()
  result = sweep(again)
  assert len(again.seen) == 4 and all(name.startswith('cpu2-strong') for name in again.seen)
  assert result['failures'] == [] and {row['runs'] for row in result['table']} == {2}


def test_stopped(sweep, tmp_path):
  for number, stop in enumerate((StoppedBySignal(signal.SIGTERM, ''), KeyboardInterrupt())):
    model_dir = '--model_dir={}'.format(tmp_path / str(number))
    signum, stopped, rest = getattr(stop, 'signum', signal.SIGINT), Runs(stop=stop), Runs()
    with pytest.raises(StoppedBySignal) as caught:
      sweep(stopped, model_dir)
    assert caught.value.signum == signum
    assert str(caught.value) == ('stopped by {} with 2 of 12 points complete; the same command '
                                 'resumes from there'.format(signal.Signals(signum).name))
    sweep(rest, model_dir)
    # The third was under way: what it left does not count.
    assert stopped.seen[2:] == rest.seen[:1] and len(rest.seen) == 10 and not any(rest.found)


def test_flags_of_the_runs(sweep):
  runs = Runs()
  sweep(runs, '--seed=7', '--save_checkpoints_steps=3', '--train_steps=50', '--optimizer=sgd',
        '--batch_size=12', '--learning_rate=1000', '--lr_warmup_epochs=2', '--lr_schedule=cosine',
        '--weights={}'.format(__file__))
  for name, (_, _, settings) in zip(runs.seen, runs.launches):
    replicas, is_weak = settings.devices.num_cpu_replicas, '-weak-' in name
    assert (settings.run.mode, settings.devices.num_gpus, name[3]) == ('train', 0, str(replicas))
    assert settings.optimizer.batch_size == 12 * (replicas if is_weak else 1)
    # No checkpoint between the steps that are timed.
    assert settings.checkpoints.save_checkpoints_steps is None
    assert settings.checkpoints.save_checkpoints_secs > 10 ** 9
    flags = settings.optimizer
    assert (settings.duration.train_steps, flags.seed, flags.optimizer) == (50, 7, 'sgd')
    assert flags.learning_rate < 1e-6
    assert (settings.model.weights, flags.lr_warmup_epochs, flags.lr_schedule) == (
        'none', 0, 'constant')


def test_synthetic_images_are_the_same_work(sweep, tmp_path, image_folders):
  runs = Runs()
  sweep(runs, *image_flags(image_folders)[:2], '--image_size=20,24', '--class_weights=balanced',
        '--throughput_warmup_steps=5', '--repeats=1')
  assert {(name.split('-')[2], settings.data.dataset, settings.optimizer.class_weights,
           settings.duration.train_steps)
          for name, settings in zip(runs.seen, runs.settings)} == {
              (REAL, 'image_folder', 'balanced', 25), (SYNTHETIC, 'synthetic', 'none', 25)}
  for _, _, settings in runs.launches:
    dataset = datasets.describe(settings)
    assert (dataset.image_shape, dataset.labels) == ((20, 24, 3), ('A', 'B'))
  runs = Runs()
  sweep(runs, '--dataset=synthetic', '--image_size=30,40', '--model_dir={}'.format(tmp_path))
  assert len(runs.seen) == 6  # All input is synthetic.
  assert {settings.data.image_size for _, _, settings in runs.launches} == {(30, 40)}


def test_what_is_refused(sweep, tmp_path, monkeypatch):
  runs, model_dir = Runs(), tmp_path / 'sweep'
  with pytest.raises(UserError, match='--data_dir is required'):
    sweep(runs, '--dataset=mnist')
  monkeypatch.setattr(installation, 'import_in_child', import_in_child(-11))
  with pytest.raises(UserError, match='GPUs cannot be counted: .*killed by SIGSEGV: see --mode'):
    sweep(runs, '--num_cpu_replicas=0')
  model_dir.mkdir()
  (model_dir / 'flags.txt').write_text('--mode=train\n')
  with pytest.raises(UserError, match='--mode=train before and --mode=scaling now'):
    sweep(runs)
  assert runs.seen == []
  (model_dir / 'flags.txt').unlink()
  with pytest.raises(UserError, match='all points of the sweep failed: a fault: 128: fix it: see'):
    sweep(Runs(fails=lambda settings: True), '--dataset=synthetic', '--num_cpu_replicas=1')
  written = json.loads((model_dir / 'scaling.json').read_text())
  assert len(written['failures']) == 2 and written['table'][0]['runs'] == 0
  with pytest.raises(UserError, match='--dataset=synthetic before and --dataset=fashion_mnist_sam'):
    sweep(runs)
  assert runs.seen == []


def import_in_child(code, *result):
  """Stands in for an import of TensorFlow with that result."""
  done = ChildRun(code)
  return lambda: installation.ImportResult(done, *result)


def test_number_and_kind_of_replicas_or_workers(sweep, tmp_path, monkeypatch):
  """Of the largest point: the workers, and the GPUs and CPU replicas of each."""
  logical, pinned = ('cpu (logical)', 'no speed-up is expected'), ('cpu', 'pinned to 1 core(s)')
  for number, (gpus, cores, given, most, kind) in enumerate((
      (2, 8, '', (1, 2, 0), ('gpu', '')), (2, 8, '--num_gpus=1', (1, 1, 0), ('gpu', '')),
      (2, 8, '--num_gpus=0', (1, 0, 8), logical), (0, 7, '', (1, 0, 4), logical),
      (2, 8, '--num_cpu_replicas=3', (1, 0, 3), logical), (0, 1, '', (1, 0, 2), logical),
      (0, 7, '--scale_over=workers', (4, 0, 1), pinned),
      (0, 1, '--scale_over=workers', (2, 0, 1), ('cpu', 'share a single core')),
      (4, 2, '--scale_over=workers --num_gpus=0 --num_cpu_replicas=2', (2, 0, 2), pinned),
      (3, 2, '--scale_over=workers', (3, 1, 0), ('gpu', '')),
      (4, 2, '--scale_over=workers --num_gpus=2', (2, 2, 0), ('gpu', '')),
      (1, 2, '--scale_over=workers --num_gpus=2', (1, 2, 0), ('gpu', '')))):
    monkeypatch.setattr(installation, 'import_in_child',
                        import_in_child(0, '1.15.0', 1., True, gpus))
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _, cores=cores: set(range(4, 4 + cores)))
    runs = Runs()
    result = sweep(runs, '--model_dir={}'.format(tmp_path / str(number)), '--repeats=1',
                   '--dataset=synthetic', '--num_cpu_replicas=0', *given.split())
    assert max((workers, max(settings.devices.num_gpus, 0), settings.devices.num_cpu_replicas)
               for workers, _, settings in runs.launches) == most
    assert result['device_kind'] == kind[0] and (kind[1] or 'None') in str(result['note'])
    is_pinned = kind == pinned
    assert result['cores_per_worker'] == (int(is_pinned) if kind[0] == 'cpu' else None)
    # A single worker is pinned to as many cores as each of several.
    assert [set(cores) for workers, cores, _ in runs.launches if workers == 1] == [
        {4} if is_pinned else set()] * (sum(workers == 1 for workers, _, _ in runs.launches))
    if 'workers' in given:
      assert result['scale_over'] == 'workers' and result['table'][0]['workers'] == 1
      assert result['distribution_strategy'] == 'multi_worker_mirrored'


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize('unit, extra', [
    ('replicas', ['--num_cpu_replicas=2']), ('workers', ['--scale_over=workers', '--num_gpus=0'])])
def test_real_sweep(run_well, tmp_path, monkeypatch, unit, extra):
  """Strong scaling of two fails, as two does not divide the batch size."""
  monkeypatch.setenv('PYTHONPATH', '{}:{}'.format(ROOT, ROOT / 'tests'))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid, of=os.sched_getaffinity: set(
      sorted(of(pid))[:2]))
  result = run_well('--mode=scaling', '--dataset=synthetic', '--model=own_models:two_layers',
                    '--image_size=8,8', '--batch_size=7', '--repeats=1', '--train_steps=4',
                    '--throughput_warmup_steps=2', '--model_dir={}'.format(tmp_path), *extra).result
  assert [(row['scaling'], row[unit], row['runs'], row['failed']) for row in result['table']] == [
      (WEAK, 1, 1, 0), (WEAK, 2, 1, 0), (STRONG, 1, 1, 0), (STRONG, 2, 0, 1)]
  assert {failure['error'].partition(': use')[0] for failure in result['failures']} == {
      '--batch_size must be divisible by the number of replicas: --batch_size=7 for 2 replicas'}
  figures = [json.loads(path.read_text())
             for path in sorted(tmp_path.glob('points/*/throughput.json'))]
  assert [(each['num_' + unit], each['num_replicas'], each['global_batch_size'])
          for each in figures] == [(1, 1, 7), (2, 2, 14)]
  assert all(row['examples_per_sec'] > 0 for row in result['table'] if row['runs'])


def settings_of(model_dir='x', **values):
  return Settings(mode='scaling', model_dir=str(model_dir), batch_size=12, **values)


def outcome(replicas, kind, rate, repeat=1, unit=GPU, share=None, data=REAL):
  point = Point(unit, replicas, kind, data, repeat)
  if rate is None:
    return PointResult(point, None, 2, 'what: {}: remedy'.format(point.name))
  figures = {'steady_examples_per_sec': rate, 'tensorflow_version': '1.15.0',
             'devices': ['/gpu:{}'.format(number) for number in range(replicas)]}
  if share is not None:
    figures['shares'] = {'input': share, 'compute': 1 - share, 'between': 0.}
  return PointResult(point, figures)


# Medians: 100 alone; 180 of two, 160 of three.
OUTCOMES = [
    outcome(1, BOTH, 100., 1, share=0.1), outcome(1, BOTH, 110., 2, share=0.3),
    outcome(1, BOTH, 90., 3, share=0.2),
    outcome(2, WEAK, 180., 1), outcome(2, WEAK, None, 2), outcome(2, WEAK, 180., 3),
    outcome(2, STRONG, 150., 1), outcome(2, STRONG, 160., 2), outcome(2, STRONG, 190., 3),
    outcome(3, WEAK, None, 1), outcome(3, WEAK, None, 2), outcome(3, WEAK, None, 3),
    # Of synthetic input, a single replica has failed.
    outcome(1, BOTH, None, data=SYNTHETIC), outcome(2, WEAK, 150., data=SYNTHETIC)]


def test_table(tmp_path, capsys):
  result = write_scaling_report(settings_of(tmp_path, repeats=5), OUTCOMES)
  assert json.loads((tmp_path / 'scaling.json').read_text()) == result
  assert result['devices'] == ['/gpu:0', '/gpu:1'] and result['tensorflow_version'] == '1.15.0'
  assert (result['repeats'], result['steps'], result['warmup_steps']) == (5, 30, 10)
  columns = ('scaling', 'input', 'replicas', 'global_batch_size', 'runs', 'failed',
             'examples_per_sec', 'min', 'max', 'spread', 'speed_up', 'efficiency', 'input_share',
             'error')
  assert {tuple(row) for row in result['table']} == {columns}
  rows = [tuple(row.values()) for row in result['table']]
  failed, unknown = 'what: gpu{}: remedy'.format, (None,) * 7
  assert rows == [
      (WEAK, REAL, 1, 12, 3, 0, 100., 90., 110., .2, 1., 1., .2, None),
      (WEAK, REAL, 2, 24, 2, 1, 180., 180., 180., 0., 1.8, .9, None, failed('2-weak-real-2')),
      (WEAK, REAL, 3, 36, 0, 3, *unknown, failed('3-weak-real-1')),
      (WEAK, SYNTHETIC, 1, 12, 0, 1, *unknown, failed('1-both-synthetic-1')),
      (WEAK, SYNTHETIC, 2, 24, 1, 0, 150., 150., 150., *unknown[:4], None),
      (STRONG, *rows[0][1:]),
      (STRONG, REAL, 2, 12, 3, 0, 160., 150., 190., .25, 1.6, .8, None, None),
      (STRONG, *rows[3][1:])]
  assert len(result['failures']) == 5 and result['failures'][0] == {
      'point': 'gpu2-weak-real-2', 'repeat': 2, 'code': 2, 'error': failed('2-weak-real-2'),
      'log': '{}/points/gpu2-weak-real-2/log.txt'.format(tmp_path)}
  with (tmp_path / 'scaling.csv').open() as file:
    read = list(csv.DictReader(file))
  assert [row['speed_up'] for row in read] == ['1.0', '1.8', '', '', '', '1.0', '1.6', '']
  assert tuple(read[0]) == columns
  head, titles, *lines = capsys.readouterr().out.splitlines()
  assert 'replicas on /gpu:0, /gpu:1' in head and titles.startswith('scaling')
  assert lines[0].split() == ['weak', 'real', '1', '12', '3', '100', '90', 'to', '110', '20.0%',
                              '1.00', '100%', '20.0%']
  assert lines[2].split() == ['weak', 'real', '3', '36', '0', '-', '-', '-', '-', '-', '-']
  assert lines[8] == 'gpu2-weak-real-2 failed: what: gpu2-weak-real-2: remedy'
