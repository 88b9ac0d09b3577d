"""The points of a sweep, their order, their flags, and what stays of them."""

import os

import pytest

from estimator_train import flags, settings as settings_lib
from estimator_train.benchmarking import sweep
from estimator_train.benchmarking.sweep import (
  BOTH,
  CPU,
  GPU,
  REAL,
  STRONG,
  SYNTHETIC,
  WEAK,
  WORKER,
  Point,
)
from estimator_train.datasets import registry
from estimator_train.process.child_process import ChildRun
from estimator_train.settings import Settings


def sweep_settings(**values):
  return Settings(mode='scaling', model_dir='x', **values)


@pytest.mark.parametrize('max_count, expected', [
    (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_unit_counts(max_count, expected):
  assert sweep.unit_counts(max_count) == expected


def test_each_round_has_every_point_once_in_an_order_of_its_own():
  points = sweep.plan_points(sweep_settings(repeats=3), CPU, 4)
  rounds = [[point._replace(repeat=0) for point in points[start:start + 10]]
            for start in (0, 10, 20)]
  assert len(points) == 30
  assert [point.repeat for point in points] == [1] * 10 + [2] * 10 + [3] * 10
  expected = {Point(CPU, 1, BOTH, kind, 0) for kind in (REAL, SYNTHETIC)} | {
      Point(CPU, replicas, scaling, kind, 0) for replicas in (2, 4) for scaling in (WEAK, STRONG)
      for kind in (REAL, SYNTHETIC)}
  assert all(len(each) == 10 and set(each) == expected for each in rounds)
  assert len(set(map(tuple, rounds))) == 3


def test_order_is_of_the_seed():
  orders = [sweep.plan_points(sweep_settings(seed=seed), CPU, 4) for seed in (1, 1, 2)]
  assert orders[0] == orders[1] != orders[2]


def test_made_up_data_has_no_real_input():
  points = sweep.plan_points(sweep_settings(dataset='synthetic'), GPU, 2)
  assert {point.input for point in points} == {SYNTHETIC} and len(points) == 9


def arguments(point, settings):
  """Returns the flags of a point, parsed as its process does."""
  dataset = registry.describe(settings.evolve(mode='train'))
  return flags.parse(settings_lib.to_arguments(sweep.point_settings(point, settings, dataset)))


@pytest.mark.parametrize('point, batch_size, gpus, cpus', [
    (Point(CPU, 1, BOTH, REAL, 1), 12, 0, 1), (Point(CPU, 4, WEAK, REAL, 1), 48, 0, 4),
    (Point(CPU, 4, STRONG, REAL, 1), 12, 0, 4), (Point(GPU, 3, WEAK, REAL, 2), 36, 3, 0)])
def test_flags_of_a_point(point, batch_size, gpus, cpus):
  given = sweep_settings(batch_size=12, seed=7, save_checkpoints_steps=3, train_steps=50,
                         optimizer='sgd', eval_every_steps=9, weights='some.h5',
                         learning_rate=1e3, lr_warmup_epochs=2., lr_schedule='cosine',
                         lr_values=(1.,), lr_boundaries_epochs=(3.,))
  settings = arguments(point, given)
  assert (settings.batch_size, settings.num_gpus, settings.num_cpu_replicas) == (
      batch_size, gpus, cpus)
  assert settings.model_dir == os.path.join('x', 'points', point.name)
  assert (settings.mode, settings.train_steps, settings.seed, settings.optimizer) == (
      'train', 50, 7, 'sgd')
  assert settings.weights == 'none' and settings.learning_rate < 1e-6
  assert settings.lr_warmup_epochs == 0 and settings.lr_schedule == 'constant'
  # No checkpoint between the steps that are timed.
  assert settings.save_checkpoints_steps is None and settings.save_checkpoints_secs > 10 ** 9


@pytest.mark.parametrize('count, scaling, batch_size', [
    (1, BOTH, 12), (2, WEAK, 24), (2, STRONG, 12)])
def test_a_worker_keeps_its_devices(count, scaling, batch_size):
  settings = arguments(Point(WORKER, count, scaling, REAL, 1), sweep_settings(
      batch_size=12, num_cpu_replicas=3, num_gpus=0, distribution_strategy='multi_worker_mirrored'))
  assert (settings.batch_size, settings.num_gpus, settings.num_cpu_replicas) == (batch_size, 0, 3)


@pytest.mark.parametrize('cores, expected', [
    (1, (2, 0)), (2, (2, 1)), (3, (2, 1)), (4, (4, 1)), (7, (4, 1)), (64, (64, 1))])
def test_workers_of_the_cores(monkeypatch, cores, expected):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda _: set(range(cores)))
  assert sweep.plan_cpu_workers() == expected


def test_steps_follow_the_warm_up():
  assert sweep.steps_per_point(sweep_settings(throughput_warmup_steps=5)) == 25
  assert sweep.steps_per_point(sweep_settings(throughput_warmup_steps=5, train_steps=9)) == 9


def test_made_up_images_are_the_same_work(image_folders):
  given = sweep_settings(
      dataset='image_folder', train_pattern='{}/train/*/*.jpeg'.format(image_folders),
      image_size=(20, 24), class_weights='balanced')
  real, made_up = (arguments(Point(CPU, 1, BOTH, kind, 1), given) for kind in (REAL, SYNTHETIC))
  assert (real.dataset, made_up.dataset) == ('image_folder', 'synthetic')
  assert (real.class_weights, made_up.class_weights) == ('balanced', 'none')
  described = [registry.describe(settings) for settings in (real, made_up)]
  assert described[0].image_shape == described[1].image_shape == (20, 24, 3)
  assert described[0].labels == described[1].labels == ('A', 'B')


def test_made_up_data_keeps_its_flags():
  given = sweep_settings(dataset='synthetic', image_size=(30, 40))
  settings = arguments(Point(CPU, 1, BOTH, SYNTHETIC, 1), given)
  assert settings.image_size == (30, 40) and settings.labels == ()
  assert registry.describe(settings).image_shape == (30, 40, 1)
  assert len(registry.describe(settings).labels) == 10


def leave(folder):
  """Leaves what a run does."""
  os.mkdir(os.path.join(folder, 'keras'))
  os.mkdir(os.path.join(folder, 'logs'))
  for name in ('flags.txt', 'labels.txt', 'model.h5', 'model.ckpt-3.index', 'log.txt'):
    with open(os.path.join(folder, name), 'w'):
      pass
  with open(os.path.join(folder, 'throughput.json'), 'w') as file:
    file.write('{"steady_examples_per_sec": 5.0}')


def test_a_point_is_done_when_that_is_written(tmp_path):
  settings = sweep_settings().evolve(model_dir=str(tmp_path))
  point, other = Point(CPU, 1, BOTH, REAL, 1), Point(CPU, 1, BOTH, SYNTHETIC, 1)
  for each in (point, other):
    sweep.prepare_point_folder(each, settings)
    leave(sweep.point_folder(each, settings))
  done = sweep.finish_point(point, settings, ChildRun(0, {}, None), 2.5)
  assert done == sweep.PointResult(point, 2.5, {'steady_examples_per_sec': 5.}, 0, None)
  assert sorted(os.listdir(sweep.point_folder(point, settings))) == [
      'done.json', 'flags.txt', 'log.txt', 'logs', 'throughput.json']
  assert sweep.read_completed_points([other, point], settings) == [done]
  # What the other left when it was killed is gone when it begins again.
  folder = sweep.point_folder(other, settings)
  assert sweep.prepare_point_folder(other, settings) == os.path.join(folder, 'log.txt')
  assert os.listdir(folder) == []


def test_a_failed_point_is_not_done(tmp_path):
  settings = sweep_settings().evolve(model_dir=str(tmp_path))
  point = Point(CPU, 2, STRONG, REAL, 1)
  sweep.prepare_point_folder(point, settings)
  leave(sweep.point_folder(point, settings))
  outcome = sweep.finish_point(point, settings, ChildRun(3, None, 'the loss is nan'), 2.5)
  assert outcome == sweep.PointResult(point, 2.5, None, 3, 'the loss is nan')
  assert sweep.read_completed_points([point], settings) == []
  assert 'model.ckpt-3.index' not in os.listdir(sweep.point_folder(point, settings))
