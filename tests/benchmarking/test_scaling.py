"""The points of a sweep, their flags and folders, the table of their rates, and predictions."""

import csv
import json
import os

import numpy as np
import pytest

from estimator_train import settings as settings_lib
from estimator_train.benchmarking import scaling_model, scaling_report, sweep
from estimator_train.benchmarking.scaling_model import Observation
from estimator_train.benchmarking.sweep import Point, PointResult
from estimator_train.datasets import registry
from estimator_train.process.child_process import ChildRun
from estimator_train.settings import Settings, command_line

GPU, CPU, WORKER, WEAK, STRONG, BOTH = 'gpu', 'cpu', 'worker', 'weak', 'strong', 'both'
REAL, SYNTHETIC = 'real', 'synthetic'


def settings_of(model_dir='x', **values):
  return Settings(mode='scaling', model_dir=str(model_dir), batch_size=12, **values)


def test_each_round_has_every_point_once_in_an_order_of_its_own():
  assert [sweep.unit_counts(count) for count in (1, 2, 3, 4, 6)] == [
      [1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6]]
  points = sweep.plan_points(settings_of(repeats=3), CPU, 4)
  rounds = [tuple(point[:4] for point in points if point.repeat == repeat)
            for repeat in (1, 2, 3)]
  expected = {(CPU, count, scaling, kind) for kind in (REAL, SYNTHETIC) for count, scaling in (
      (1, BOTH), (2, WEAK), (2, STRONG), (4, WEAK), (4, STRONG))}
  assert all(len(each) == 10 and set(each) == expected for each in rounds)
  assert len(set(rounds)) == 3 and [point.repeat for point in points[9:11]] == [1, 2]
  orders = [sweep.plan_points(settings_of(seed=seed), CPU, 4) for seed in (1, 1, 2)]
  assert orders[0] == orders[1] != orders[2]
  points = sweep.plan_points(settings_of(dataset='synthetic'), GPU, 2)
  assert {point.input for point in points} == {SYNTHETIC} and len(points) == 9


def run_settings(point, settings):
  """Returns the flags of a point, parsed as its process does."""
  dataset = registry.describe(settings.evolve(mode='train'))
  return command_line.parse(settings_lib.to_arguments(
      sweep.point_settings(point, settings, dataset)))


def test_flags_of_a_point():
  given = settings_of(seed=7, save_checkpoints_steps=3, train_steps=50,
                      optimizer='sgd', eval_every_steps=9, weights='some.h5',
                      learning_rate=1e3, lr_warmup_epochs=2., lr_schedule='cosine',
                      lr_values=(1.,), lr_boundaries_epochs=(3.,))
  for unit, count, scaling, batch_size, gpus, cpus in (
      (CPU, 1, BOTH, 12, 0, 1), (CPU, 4, WEAK, 48, 0, 4), (CPU, 4, STRONG, 12, 0, 4),
      (GPU, 3, WEAK, 36, 3, 0), (WORKER, 2, WEAK, 24, 0, 3), (WORKER, 2, STRONG, 12, 0, 3)):
    point = Point(unit, count, scaling, REAL, 2)
    settings = run_settings(point, given if unit != WORKER else settings_of(
        num_cpu_replicas=3, num_gpus=0, distribution_strategy='multi_worker_mirrored'))
    assert (settings.batch_size, settings.num_gpus, settings.num_cpu_replicas) == (
        batch_size, gpus, cpus)
    assert settings.model_dir == os.path.join('x', 'points', point.name)
    # No checkpoint between the steps that are timed.
    assert settings.save_checkpoints_steps is None and settings.save_checkpoints_secs > 10 ** 9
    assert settings.mode == 'train' and settings.learning_rate < 1e-6
    assert unit == WORKER or (settings.train_steps, settings.seed, settings.optimizer) == (
        50, 7, 'sgd')
    assert (settings.weights, settings.lr_warmup_epochs, settings.lr_schedule) == (
        'none', 0, 'constant')
  assert sweep.steps_per_point(settings_of(throughput_warmup_steps=5)) == 25
  assert sweep.steps_per_point(settings_of(throughput_warmup_steps=5, train_steps=9)) == 9


def test_synthetic_images_are_the_same_work(image_folders):
  given = settings_of(
      dataset='image_folder', train_pattern='{}/train/*/*.jpeg'.format(image_folders),
      image_size=(20, 24), class_weights='balanced')
  real, synthetic = (run_settings(Point(CPU, 1, BOTH, kind, 1), given)
                     for kind in (REAL, SYNTHETIC))
  assert (real.dataset, synthetic.dataset) == ('image_folder', 'synthetic')
  assert (real.class_weights, synthetic.class_weights) == ('balanced', 'none')
  for settings in (real, synthetic):
    dataset = registry.describe(settings)
    assert (dataset.image_shape, dataset.labels) == ((20, 24, 3), ('A', 'B'))
  settings = run_settings(Point(CPU, 1, BOTH, SYNTHETIC, 1),
                          settings_of(dataset='synthetic', image_size=(30, 40)))
  assert settings.image_size == (30, 40) and settings.labels == ()
  assert registry.describe(settings).image_shape == (30, 40, 1)


def test_a_point_is_done_when_that_is_written(tmp_path):
  settings = settings_of(tmp_path)
  point, killed, failed = (Point(CPU, 2, STRONG, REAL, repeat) for repeat in (1, 2, 3))
  for each in (point, killed, failed):  # What a run leaves.
    sweep.prepare_point_folder(each, settings)
    folder = tmp_path / 'points' / each.name
    for name in ('keras', 'logs'):
      (folder / name).mkdir()
    for name in ('flags.txt', 'labels.txt', 'model.h5', 'model.ckpt-3.index', 'log.txt'):
      (folder / name).touch()
    (folder / 'throughput.json').write_text('{"steady_examples_per_sec": 5.0}')
  done = sweep.finish_point(point, settings, ChildRun(0, {}, None), 2.5)
  assert done == PointResult(point, 2.5, {'steady_examples_per_sec': 5.}, 0, None)
  assert sorted(os.listdir(sweep.point_folder(point, settings))) == [
      'done.json', 'flags.txt', 'log.txt', 'logs', 'throughput.json']
  assert sweep.finish_point(failed, settings, ChildRun(3, None, 'the loss is nan'), 2.5) == (
      PointResult(failed, 2.5, None, 3, 'the loss is nan'))
  assert 'model.ckpt-3.index' not in os.listdir(sweep.point_folder(failed, settings))
  assert sweep.read_completed_points([killed, failed, point], settings) == [done]
  # What the other left when it was killed is gone when it begins again.
  folder = sweep.point_folder(killed, settings)
  assert sweep.prepare_point_folder(killed, settings) == os.path.join(folder, 'log.txt')
  assert os.listdir(folder) == []


def outcome(replicas, kind, rate, repeat=1, unit=GPU, share=None, data=REAL):
  point = Point(unit, replicas, kind, data, repeat)
  if rate is None:
    return PointResult(point, 1., None, 2, 'what: {}: remedy'.format(point.name))
  figures = {'steady_examples_per_sec': rate, 'tensorflow_version': '1.15.0',
             'devices': ['/gpu:{}'.format(number) for number in range(replicas)]}
  if share is not None:
    figures['shares'] = {'input': share, 'compute': 1 - share, 'between': 0.}
  return PointResult(point, 1., figures)


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
  result = scaling_report.write_scaling_report(settings_of(tmp_path), OUTCOMES)
  assert json.loads((tmp_path / 'scaling.json').read_text()) == result
  table = {(row['scaling'], row['input'], row['replicas']): row for row in result['table']}
  assert list(table) == [(WEAK, REAL, 1), (WEAK, REAL, 2), (WEAK, REAL, 3), (WEAK, SYNTHETIC, 1),
                         (WEAK, SYNTHETIC, 2), (STRONG, REAL, 1), (STRONG, REAL, 2),
                         (STRONG, SYNTHETIC, 1)]
  alone = {
      'scaling': WEAK, 'input': REAL, 'replicas': 1, 'global_batch_size': 12, 'runs': 3,
      'failed': 0, 'examples_per_sec': 100., 'min': 90., 'max': 110., 'spread': 0.2,
      'speed_up': 1., 'efficiency': 1., 'input_share': 0.2, 'error': None}
  assert table[WEAK, REAL, 1] == alone == dict(table[STRONG, REAL, 1], scaling=WEAK)
  unknown = dict.fromkeys(('examples_per_sec', 'min', 'max', 'spread', 'speed_up', 'efficiency',
                           'input_share'))
  for row, expected in (
      ((WEAK, REAL, 2), {'runs': 2, 'failed': 1, 'spread': 0., 'global_batch_size': 24,
                         'speed_up': 1.8, 'efficiency': 0.9,
                         'error': 'what: gpu2-weak-real-2: remedy'}),
      ((STRONG, REAL, 2), {'global_batch_size': 12, 'speed_up': 1.6, 'efficiency': 0.8,
                           'spread': .25, 'input_share': None}),
      ((WEAK, REAL, 3), dict(unknown, runs=0, failed=3, error='what: gpu3-weak-real-1: remedy')),
      ((WEAK, SYNTHETIC, 2), dict(unknown, examples_per_sec=150., min=150., max=150.))):
    assert {name: table[row][name] for name in expected} == expected
  assert [failure['point'] for failure in result['failures']] == [
      'gpu2-weak-real-2', 'gpu3-weak-real-1', 'gpu3-weak-real-2', 'gpu3-weak-real-3',
      'gpu1-both-synthetic-1']
  assert result['failures'][0] == {
      'point': 'gpu2-weak-real-2', 'repeat': 2, 'code': 2,
      'error': 'what: gpu2-weak-real-2: remedy',
      'log': '{}/points/gpu2-weak-real-2/log.txt'.format(tmp_path)}
  with (tmp_path / 'scaling.csv').open() as file:
    read = list(csv.DictReader(file))
  assert [row['speed_up'] for row in read] == ['1.0', '1.8', '', '', '', '1.0', '1.6', '']
  assert list(read[0]) == list(result['table'][0])
  head, titles, *lines = capsys.readouterr().out.splitlines()
  assert 'replicas on /gpu:0, /gpu:1' in head and titles.startswith('scaling')
  assert lines[0].split() == ['weak', 'real', '1', '12', '3', '100', '90', 'to', '110', '20.0%',
                              '1.00', '100%', '20.0%']
  assert lines[2].split() == ['weak', 'real', '3', '36', '0', '-', '-', '-', '-', '-', '-']
  assert lines[8] == 'gpu2-weak-real-2 failed: what: gpu2-weak-real-2: remedy'
  assert 'predictions, with an interval of 90%:' in lines


@pytest.mark.parametrize('unit, gpus, cores, kind, each, note', [
    (GPU, -1, 8, 'gpu', None, None), (CPU, -1, 8, 'cpu (logical)', None, 'no speed-up is expected'),
    (WORKER, 1, 8, 'gpu', None, None), (WORKER, 0, 8, 'cpu', 1, 'pinned to 1 core(s)'),
    (WORKER, 0, 1, 'cpu', 0, 'share a single core')])
def test_conditions(monkeypatch, unit, gpus, cores, kind, each, note):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(cores)))
  over = 'workers' if unit == WORKER else 'replicas'
  result = scaling_report.summarize(
      settings_of(scale_over=over, num_gpus=gpus, repeats=5),
      [outcome(1, BOTH, 100., unit=unit), outcome(2, WEAK, 150., unit=unit)])
  assert (result['device_kind'], result['cores_per_worker']) == (kind, each)
  assert (note or '') in (result['note'] or '') and bool(note) == bool(result['note'])
  assert [(row[over], row['speed_up']) for row in result['table']] == [(1, 1.), (2, 1.5), (1, 1.)]
  assert result['devices'] == ['/gpu:0', '/gpu:1'] and result['tensorflow_version'] == '1.15.0'
  assert (result['repeats'], result['steps'], result['warmup_steps']) == (5, 30, 10)
  assert (result['mode'], result['scale_over'], result['distribution_strategy']) == (
      'scaling', over, 'mirrored')


def test_workers_of_the_cores(monkeypatch):
  for cores, expected in ((1, (2, 0)), (2, (2, 1)), (3, (2, 1)), (4, (4, 1)), (64, (64, 1))):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda _, cores=cores: set(range(cores)))
    assert sweep.plan_cpu_workers() == expected


def predict(counts, unit=GPU, share=0., scale=1., **values):
  """Predicts from runs whose steps take 10 ms, 1 ms per example, and 20 ms of transfer."""
  outcomes = []
  for count in counts:
    for kind in (BOTH,) if count == 1 else (WEAK, STRONG):
      batch_size = 12 * (count if kind == WEAK else 1)
      secs = .01 + .001 * batch_size / count + .04 * (count - 1) / count
      outcomes.append(outcome(count, kind, scale * batch_size / secs * (1 - share), unit=unit,
                              share=share))
  return scaling_report.summarize(settings_of(**values), outcomes)['predictions']


def test_predictions():
  predictions = predict([1, 2, 4])
  table = {(row['scaling'], row['replicas']): row for row in predictions['table']}
  # Strong scaling ends where a replica has less than one example.
  assert [count for scaling, count in table if scaling == STRONG] == [1, 2, 4, 8]
  assert [count for scaling, count in table if scaling == WEAK][-1] == 128
  weak, strong = table[WEAK, 8], table[STRONG, 8]
  assert weak['examples_per_sec'] == pytest.approx(96 / (.01 + .012 + .035), rel=.02)
  assert weak['low'] < weak['examples_per_sec'] < weak['high']
  assert strong['examples_per_sec'] == pytest.approx(12 / (.01 + .0015 + .035), rel=.02)
  assert weak['efficiency'] == pytest.approx((.01 + .012) / (.01 + .012 + .035), rel=.02)
  assert weak['global_batch_size'] == 96 and strong['global_batch_size'] == 12
  validation, _ = predictions['validation']
  assert (validation['scaling'], validation['replicas']) == (WEAK, 4)
  assert validation['measured'] == pytest.approx(48 / (.01 + .012 + .03))
  assert validation['error'] == pytest.approx(
      validation['predicted'] / validation['measured'] - 1)
  model, = predictions['models']
  assert model['input'] == REAL and model['input_examples_per_sec'] is None
  assert predict([1, 2, 4], CPU) is predict([2]) is None  # Shared cores; a single number.


def test_predictions_end_at_the_rate_of_the_input_pipeline():
  predictions = predict([1, 2], share=.4, scale=.9)
  rate = predictions['models'][0]['input_examples_per_sec']
  weak = [row for row in predictions['table'] if row['scaling'] == WEAK][-1]
  assert weak['examples_per_sec'] == rate < weak['high'] * 1.01
  workers = predict([1, 2], WORKER, share=.4, scale_over='workers')
  rate = workers['models'][0]['input_examples_per_sec']
  assert rate == pytest.approx(12 / .022 * .6)
  # Each worker has a pipeline of its own.
  assert workers['table'][0]['examples_per_sec'] == rate
  assert rate * 1.1 < workers['table'][1]['examples_per_sec'] < rate * 2


def secs_of(units, examples, fixed=.01, latency=0., transfer=0.):
  return (fixed + examples * 1e-3 + 2 * (units - 1) * latency
          + 2 * (units - 1) / units * transfer)


def fit(counts, noise=lambda: 1., **terms):
  return scaling_model.fit([
      Observation(units, examples, secs_of(units, examples, **terms) * noise())
      for units in counts for examples in (32, 64)])


def test_the_terms_of_a_step_and_their_intervals():
  for terms in ({}, {'latency': 1e-3}, {'transfer': .02}, {'latency': 1e-3, 'transfer': .02}):
    model = fit([1, 2, 4, 8], **terms)
    assert model.secs_per_example == pytest.approx(1e-3, rel=.05)
    assert model.fixed_secs == pytest.approx(.01, rel=.2)
    assert model.noise == .01  # Measurements without any noise are not trusted.
    for units in (1, 8, 16):
      secs, low, high = model.predict(units, 64)
      assert low < secs < high and secs == pytest.approx(secs_of(units, 64, **terms), rel=.05)
  # Latency and transfer are both in the interval of two numbers; with eight units, not latency.
  transfer, latency = secs_of(64, 64, transfer=.02), secs_of(64, 64, latency=.01)
  _, low, high = fit([1, 2], transfer=.02).predict(64, 64)
  assert low < transfer < high and low < latency < high
  assert fit([1, 2, 4, 8], transfer=.02).predict(64, 64).high < latency
  # With noise, most new measurements are in the interval.
  inside = 0
  for seed in range(20):
    random = np.random.RandomState(seed)
    model = fit([1, 2, 4] * 3, lambda: random.normal(1, .03), transfer=.02)  # noqa: B023
    _, low, high = model.predict(8, 64)
    inside += low <= secs_of(8, 64, transfer=.02) * random.normal(1, .03) <= high
    widths = [model.predict(units, 64).high / model.predict(units, 64).low for units in (4, 8, 32)]
    assert widths == sorted(widths)
  assert inside >= 17
  # Faster with more units, as no term can explain: but no term is negative.
  model = scaling_model.fit([Observation(units, 32, 1 / units) for units in (1, 2, 4)])
  assert (model.draws >= 0).all() and model.noise > .1
  assert fit([2]) is scaling_model.fit([]) is None
