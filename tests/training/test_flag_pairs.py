"""Every two training flags together, on replicas, resumed, and on two workers.

Each row of a covering array trains like one replica without an interruption.
"""

import itertools
import random

import pytest
import training_runs

from estimator_train.errors import UserError
from estimator_train.settings import Settings, rules

STEPS = 3
# By optimizer: the learning rate, and the largest relative difference, as in test_exactness.py.
OPTIMIZERS = {'sgd': (.1, 1e-5), 'momentum': (.05, 1e-5), 'adam': (.001, 1e-4),
              'rmsprop': (.001, 1e-4), 'adamw': (.001, 1e-4), 'lars': (1, 1e-5),
              'lamb': (.01, 1e-5)}
# By schedule: the flags, with learning rates as parts of the first one.
SCHEDULES = {'constant': {}, 'cosine': {'lr_warmup_epochs': .5},
             'exponential': {'lr_values': (.1,)},
             'piecewise': {'lr_boundaries_epochs': (.5, 1), 'lr_values': (1, .5, .1)}}
# By name: the flags of the first part of a run, those of the second one, and the number of workers.
MIRRORED, CENTRAL, WORKERS = ({'distribution_strategy': name} for name in (
    'mirrored', 'central_storage', 'multi_worker_mirrored'))
TWO, THREE = ({'num_cpu_replicas': count} for count in (2, 3))
DISTRIBUTIONS = {
    'resumed': ({}, {}, 1), 'mirrored': ({**MIRRORED, **TWO}, {**MIRRORED, **THREE}, 1),
    'central_storage': ({**CENTRAL, **THREE}, {**CENTRAL, **TWO}, 1),
    'workers': ({**MIRRORED, **TWO}, WORKERS, 2),
    'workers_of_two': ({}, {**WORKERS, **TWO}, 2)}
FACTORS = {
    'optimizer': tuple(OPTIMIZERS), 'distribution': tuple(DISTRIBUTIONS),
    'lr_schedule': tuple(SCHEDULES), 'augment': ('none', 'flip,pad_crop', 'rotate,color,cutout'),
    'cache': ('none', 'memory'), 'save_checkpoints_steps': (1, 2, None),
    'dtype': ('fp32', 'mixed'), 'gradient_clip_norm': (0., .05),
    'gradient_accumulation_steps': (1, 2), 'ema_decay': (None, .9), 'weight_decay': (0., .1),
    'mixup_alpha': (0., .4), 'class_sampling': ('natural', 'balanced'),
    'label_smoothing': (0., .1), 'class_weights': ('none', 'balanced'),
    'backbone_lr_factor': (1., .25), 'interrupted_at': (1, 2)}
DEFAULTS = dict(Settings(model_dir='x').items())


def flags_of(row):
  """Returns the flags of a row, which may be incomplete, for one replica."""
  rate, _ = OPTIMIZERS[row.get('optimizer', 'sgd')]
  schedule = dict(SCHEDULES[row.get('lr_schedule', 'constant')])
  if 'lr_values' in schedule:
    schedule['lr_values'] = tuple(rate * part for part in schedule['lr_values'])
  return {'mode': 'train', 'dataset': 'own_models:tiny_images', 'model': 'own_models:two_layers',
          'batch_size': 24, 'train_steps': STEPS, 'learning_rate': rate,
          'distribution_strategy': 'off', **schedule,
          **{name: value for name, value in row.items()
             if name not in ('distribution', 'interrupted_at')}}


def is_accepted(row):
  """Returns whether the rules accept the flags of a row."""
  _, flags, _ = DISTRIBUTIONS[row.get('distribution', 'resumed')]
  settings = {**DEFAULTS, **flags_of(row), **flags}
  try:
    rules.check_rules(settings)
    rules.check_rules(settings, 'train')
  except UserError:
    return False
  return True


def pairs_of(row):
  # By name, as in the list of missing pairs; values of different types have no order.
  return set(itertools.combinations(sorted(row.items(), key=lambda item: item[0]), 2))


def covering_rows():
  """Returns rows that contain every accepted pair of values."""
  missing = [pair for names in itertools.combinations(sorted(FACTORS), 2)
             for pair in itertools.product(*[[(name, value) for value in FACTORS[name]]
                                             for name in names]) if is_accepted(dict(pair))]
  missing, rows, choices = dict.fromkeys(missing), [], random.Random(1)
  while missing:
    row = dict(next(iter(missing)))
    for name, choices_of_name in FACTORS.items():  # Those with the most values are first.
      values = sorted(choices_of_name, key=lambda value, name=name: (
          -sum(pair in missing for pair in pairs_of({**row, name: value})), choices.random()))
      if name not in row:
        row[name] = next(value for value in values if is_accepted({**row, name: value}))
    for pair in pairs_of(row):
      missing.pop(pair, None)
    rows.append({name: row[name] for name in FACTORS})
  return rows


@pytest.fixture
def train_second_part(cluster):
  """Trains to the last step, in this process or by workers."""
  def train(folder, workers, flags):
    if workers == 1:
      training_runs.train(folder, **flags)
    else:
      cluster.run(['--model_dir={}'.format(folder), '--noreport_page', *(
          '--{}={}'.format(name, ','.join(map(str, value)) if isinstance(value, tuple) else value)
          for name, value in flags.items() if value is not None)], worker=workers)

  return train


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures('own_graph')
@pytest.mark.parametrize('row', covering_rows(), ids=lambda row: '-'.join(map(str, row.values())))
def test_like_one_replica_without_interruption(tmp_path, train_second_part, row):
  flags = flags_of(row)
  first, second, workers = DISTRIBUTIONS[row['distribution']]
  training_runs.train(tmp_path / 'one', **flags)
  # As a signal would stop it, so that the schedule is that of the whole run.
  training_runs.train(tmp_path / 'parts', end_step=row['interrupted_at'], **{**flags, **first})
  train_second_part(tmp_path / 'parts', workers, {**flags, **second})
  expected = training_runs.variables(tmp_path / 'one')
  training_runs.assert_same(training_runs.variables(tmp_path / 'parts'), expected,
                            OPTIMIZERS[row['optimizer']][1])
  assert expected['global_step'] == STEPS
  initial = training_runs.variables(tmp_path / 'parts', row['interrupted_at'])
  assert any((value != expected[name]).any() for name, value in initial.items()
             if name.startswith('dense'))
