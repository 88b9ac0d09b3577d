"""`--mode=scaling`, by runs of a stand-in and by real ones, and its table."""

import io
import json
import os
import signal
import sys

import pytest
from conftest import ROOT
from mode_runs import Runs, image_flags

from estimator_train.data import datasets
from estimator_train.errors import StoppedBySignal, UserError
from estimator_train.modes import scaling
from estimator_train.run_dir import RunDir
from estimator_train.settings import command_line
from estimator_train.system import tensorflow_probe
from estimator_train.system.child_process import ChildRun

WEAK, STRONG, REAL, SYNTHETIC = 'weak', 'strong', 'real', 'synthetic'


@pytest.fixture
def sweep(tmp_path):
  """Sweeps over 1 and 2 CPU replicas, twice each: 12 points."""
  def run(runs, *more):
    settings = command_line.parse([
        '--mode=scaling', '--model_dir={}'.format(tmp_path / 'sweep'), '--num_cpu_replicas=2',
        '--repeats=2', *more])
    return scaling.run(settings, RunDir(settings.run.required_model_dir), runs)

  return run


# Examples/sec of the repeats of a point; None: the run fails.
RATES = {
    'cpu1-both-real': (100., 120., 90.), 'cpu1-both-synthetic': (None, None, None),
    'cpu2-weak-real': (150., None, 225.), 'cpu2-weak-synthetic': (150., None, None),
    'cpu2-strong-real': (150., 190., 160.), 'cpu2-strong-synthetic': (None, None, None)}
RATE_OF_POINT = {'{}-{}'.format(name, repeat): rate for name, rates in RATES.items()
                 for repeat, rate in enumerate(rates, 1)}


def test_table(sweep, tmp_path, capsys):
  result = sweep(Runs(RATE_OF_POINT), '--repeats=3')
  assert json.loads((tmp_path / 'sweep' / 'scaling.json').read_text()) == result
  assert result['device_kind'] == 'cpu (logical)' and result['devices'] == ['/cpu:0', '/cpu:1']
  assert result['tensorflow_version'] == '1.15.0'
  assert (result['repeats'], result['steps'], result['warmup_steps']) == (3, 30, 10)
  columns = ('scaling', 'input', 'replicas', 'global_batch_size', 'runs', 'failed',
             'examples_per_sec', 'min', 'max', 'spread', 'speed_up', 'efficiency', 'input_share',
             'error')
  assert {tuple(row) for row in result['table']} == {columns}
  rows = [tuple(row.values()) for row in result['table']]
  failed, unknown = 'a fault: {}: fix it'.format, (None,) * 7
  assert rows == [
      (WEAK, REAL, 1, 128, 3, 0, 100., 90., 120., .3, 1., 1., .1, None),
      (WEAK, REAL, 2, 256, 2, 1, 180., 150., 225., 75 / 180, 1.8, .9, .1875, failed(256)),
      (WEAK, SYNTHETIC, 1, 128, 0, 3, *unknown, failed(128)),
      (WEAK, SYNTHETIC, 2, 256, 1, 2, 150., 150., 150., *unknown[:4], failed(256)),
      (STRONG, *rows[0][1:]),
      (STRONG, REAL, 2, 128, 3, 0, 160., 150., 190., .25, 1.6, .8, .16, None),
      (STRONG, *rows[2][1:]),
      (STRONG, SYNTHETIC, 2, 128, 0, 3, *unknown, failed(128))]
  header, *lines = (tmp_path / 'sweep' / 'scaling.csv').read_text().splitlines()
  assert header == ','.join(columns)
  assert lines[1] == ','.join(['weak,real,2,256,2,1,180.0,150.0,225.0', str(75 / 180),
                               '1.8,0.9,0.1875', failed(256)])
  assert lines[2] == 'weak,synthetic,1,128,0,3,,,,,,,,' + failed(128)
  head, titles, *lines = capsys.readouterr().out.splitlines()
  assert 'replicas on /cpu:0, /cpu:1' in head and titles.startswith('scaling')
  assert lines[0].split() == ['weak', 'real', '1', '128', '3', '100', '90', 'to', '120', '30.0',
                              '%', '1.00', '100', '%', '10.0', '%']
  assert lines[2].split() == ['weak', 'synthetic', '1', '128', '0', '-', '-', '-', '-', '-', '-']
  assert 'cpu2-weak-real-2 failed: a fault: 256: fix it' in lines[8:]


def test_failed_points_are_run_again(sweep, tmp_path, caplog, monkeypatch):
  caplog.set_level('INFO', 'estimator_train')
  points, terminal, again = tmp_path / 'sweep' / 'points', io.StringIO(), Runs()
  terminal.isatty = lambda: True
  with monkeypatch.context() as patch:
    patch.setattr(sys, 'stderr', terminal)
    failures = sweep(Runs(RATE_OF_POINT), '--repeats=3')['failures']
  assert 'measuring: 0/18 points, ' in terminal.getvalue()
  lines = caplog.messages[:caplog.messages.index('measured 9 of 18 points')]
  assert len(lines) == 9 and all('failed: a fault: ' in line for line in lines)
  failed = {name for name, rate in RATE_OF_POINT.items() if rate is None}
  assert {failure['point'] for failure in failures} == failed
  for failure in failures:
    folder = points / failure['point']
    assert failure == {'point': folder.name, 'repeat': int(folder.name[-1]), 'code': 2,
                       'error': failure['error'], 'log': str(folder / 'log.txt')}
    assert sorted(os.listdir(str(folder))) == ['flags.txt', 'log.txt', 'throughput.json']
  result = sweep(again, '--repeats=4', '--verbosity=1')
  assert result['failures'] == [] and {row['runs'] for row in result['table']} == {4}
  assert sorted(again.seen) == sorted(failed | {name + '-4' for name in RATES})
  assert {path.name for path in points.glob('*/*')} == {
      'done.json', 'flags.txt', 'log.txt', 'throughput.json'}
  for text in ('point 10/24: ', 'point 24/24: ',
               ': weak and strong, 1 replica, synthetic input, repeat 4: 100 examples/sec',
               ': strong, 2 replicas, real input, repeat 4: 200 examples/sec'):
    assert text in caplog.text


@pytest.mark.parametrize('stop, name', [
    (StoppedBySignal(signal.SIGTERM, ''), 'SIGTERM'), (KeyboardInterrupt(), 'SIGINT')])
def test_stopped(sweep, stop, name):
  stopped, rest = Runs(stop=stop), Runs()
  with pytest.raises(StoppedBySignal, match='^stopped by {} with 2 of 12 points complete; the same '
                     'command resumes from there$'.format(name)) as caught:
    sweep(stopped)
  assert caught.value.signum == signal.Signals[name]
  sweep(rest)
  # The third was under way: what it left does not count.
  assert stopped.seen[2:] == rest.seen[:1] and len(rest.seen) == 10 and not any(rest.found)


def test_flags_of_the_runs(sweep, tmp_path, image_folders):
  """Synthetic images are the same work as real ones."""
  runs = Runs()
  sweep(runs, *image_flags(image_folders)[:2], '--image_size=20,24', '--class_weights=balanced',
        '--seed=7', '--save_checkpoints_steps=3', '--throughput_warmup_steps=5', '--optimizer=sgd',
        '--batch_size=12', '--learning_rate=1000', '--lr_warmup_epochs=2', '--lr_schedule=cosine',
        '--weights={}'.format(__file__), '--repeats=1')
  assert len(runs.seen) == 6
  for name, settings in zip(runs.seen, runs.settings):
    replicas, is_real = int(name[3]), '-real-' in name
    flags = dict(settings.items())
    # No checkpoint between the steps that are timed.
    assert flags['save_checkpoints_secs'] > 10 ** 9 and flags['learning_rate'] < 1e-6
    expected = {
        'mode': 'train', 'num_cpu_replicas': replicas, 'num_gpus': 0, 'train_steps': 25, 'seed': 7,
        'batch_size': 12 * (replicas if '-weak-' in name else 1), 'save_checkpoints_steps': None,
        'optimizer': 'sgd', 'weights': 'none', 'lr_warmup_epochs': 0, 'lr_schedule': 'constant',
        'dataset': 'image_folder' if is_real else 'synthetic',
        'class_weights': 'balanced' if is_real else 'none'}
    assert {flag: flags[flag] for flag in expected} == expected
    dataset = datasets.describe_data_set(settings)
    assert (dataset.image_shape, dataset.labels) == ((20, 24, 3), ('A', 'B'))
  runs = Runs()
  sweep(runs, '--dataset=synthetic', '--image_size=30,40', '--train_steps=50',
        '--model_dir={}'.format(tmp_path))
  assert len(runs.seen) == 6  # All input is synthetic.
  assert {(flags.image_size, flags.train_steps) for flags in runs.settings} == {((30, 40), 50)}


def test_what_is_refused(sweep, tmp_path, monkeypatch):
  runs = Runs()
  with pytest.raises(UserError, match='--data_dir is required'):
    sweep(runs, '--dataset=mnist')
  monkeypatch.setattr(tensorflow_probe, 'import_in_child', import_in_child(-11))
  with pytest.raises(UserError, match='GPUs cannot be counted: .*killed by SIGSEGV: see --mode'):
    sweep(runs, '--num_cpu_replicas=0')
  with pytest.raises(UserError, match='all points of the sweep failed: a fault: 128: fix it: see'):
    sweep(Runs(fails=lambda settings: True), '--dataset=synthetic', '--num_cpu_replicas=1')
  written = json.loads((tmp_path / 'sweep' / 'scaling.json').read_text())
  assert len(written['failures']) == 2 and written['table'][0]['runs'] == 0
  with pytest.raises(UserError, match='--dataset=synthetic before and --dataset=fashion_mnist_sam'):
    sweep(runs)
  assert runs.seen == []


def import_in_child(code, *result):
  """Stands in for an import of TensorFlow with that result."""
  done = ChildRun(code)
  return lambda: tensorflow_probe.ImportResult(done, *result)


LOGICAL, PINNED = ('cpu (logical)', 'no speed-up is expected'), ('cpu', 'pinned to 1 core(s)')


@pytest.mark.parametrize('gpus, cores, given, most, kind', [
    (2, 8, '', (1, 2, 0), ('gpu', 'None')), (2, 8, '--num_gpus=1', (1, 1, 0), ('gpu', 'None')),
    (0, 7, '', (1, 0, 4), LOGICAL), (2, 8, '--num_gpus=0', (1, 0, 8), LOGICAL),
    (2, 8, '--num_cpu_replicas=3', (1, 0, 3), LOGICAL),
    (0, 7, '--scale_over=workers', (4, 0, 1), PINNED),
    (0, 1, '--scale_over=workers', (2, 0, 1), ('cpu', 'share a single core')),
    (4, 2, '--scale_over=workers --num_gpus=0 --num_cpu_replicas=2', (2, 0, 2), PINNED),
    (4, 2, '--scale_over=workers --num_cpu_replicas=2', (2, 0, 2), PINNED),
    (3, 2, '--scale_over=workers', (3, 1, 0), ('gpu', 'None')),
    (5, 2, '--scale_over=workers --num_gpus=2', (2, 2, 0), ('gpu', 'None')),
    (1, 2, '--scale_over=workers --num_gpus=2', (1, 2, 0), ('gpu', 'None'))])
def test_number_and_kind_of_replicas_or_workers(sweep, monkeypatch, gpus, cores, given, most, kind):
  """Of the largest point: the workers, and the GPUs and CPU replicas of each."""
  monkeypatch.setattr(tensorflow_probe, 'import_in_child',
                      import_in_child(0, '1.15.0', 1., True, gpus))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(4, 4 + cores)))
  runs, is_pinned = Runs(), kind == PINNED
  result = sweep(runs, '--repeats=1', '--dataset=synthetic', '--num_cpu_replicas=0', *given.split())
  assert max((workers, max(settings.num_gpus, 0), settings.num_cpu_replicas)
             for workers, _, settings in runs.launches) == most
  assert result['device_kind'] == kind[0] and kind[1] in str(result['note'])
  assert result['cores_per_worker'] == (int(is_pinned) if kind[0] == 'cpu' else None)
  # A single worker is pinned to as many cores as each of several.
  assert all(set(cores) == ({4} if is_pinned else set())
             for workers, cores, _ in runs.launches if workers == 1)
  if 'workers' in given:
    assert result['scale_over'] == 'workers' and result['table'][0]['workers'] == 1
    assert result['distribution_strategy'] == 'multi_worker_mirrored'


@pytest.mark.slow
@pytest.mark.cluster
def test_real_sweep(run_well, tmp_path, monkeypatch):
  """Strong scaling of two fails, as two does not divide the batch size."""
  monkeypatch.setenv('PYTHONPATH', '{}:{}'.format(ROOT, ROOT / 'tests'))
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid, of=os.sched_getaffinity: set(
      sorted(of(pid))[:2]))
  result = run_well('--mode=scaling', '--scale_over=workers', '--num_gpus=0', '--repeats=1',
                    '--dataset=synthetic', '--model=own_models:two_layers', '--image_size=8,8',
                    '--batch_size=7', '--train_steps=4', '--throughput_warmup_steps=2',
                    '--model_dir={}'.format(tmp_path)).result
  assert [(row['scaling'], row['workers'], row['runs'], row['failed'])
          for row in result['table']] == [
              (WEAK, 1, 1, 0), (WEAK, 2, 1, 0), (STRONG, 1, 1, 0), (STRONG, 2, 0, 1)]
  assert {failure['error'].partition(': use')[0] for failure in result['failures']} == {
      '--batch_size must be divisible by the number of replicas: --batch_size=7 for 2 replicas'}
  figures = [json.loads(path.read_text())
             for path in sorted(tmp_path.glob('points/*/throughput.json'))]
  assert [(each['num_workers'], each['num_replicas'], each['global_batch_size'])
          for each in figures] == [(1, 1, 7), (2, 2, 14)]
  assert all(row['examples_per_sec'] > 0 for row in result['table'] if row['runs'])
