"""A run that resumes with another value of a flag: for each flag, what happens."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import training_runs
from hypothesis import HealthCheck, assume, given, settings as hypothesis_settings, strategies as st
from PIL import Image

from estimator_train.errors import UserError
from estimator_train.settings import Settings

BASE = {'dataset': 'image_folder', 'image_size': (8, 8), 'batch_size': 9, 'train_steps': 4,
        'preprocess': 'unit', 'distribution_strategy': 'off', 'save_checkpoints_steps': 2}
MIRRORED = {'distribution_strategy': 'mirrored', 'num_cpu_replicas': 3}
EVALUATING = {'mode': 'train_and_evaluate', 'eval_every_steps': 2}
# The flags of runs that resume, by the flag that changes. These leave the weights as they are.
SAME = {
    'all_reduce_alg': {'all_reduce_alg': 'hierarchical_copy', **MIRRORED},
    'cache_features_dtype': {'cache_features_dtype': 'float16'},
    'distribution_strategy': {'distribution_strategy': 'mirrored'},
    'early_stopping_epochs': {'early_stopping_epochs': 1, **EVALUATING},
    'early_stopping_steps': {'early_stopping_steps': 2, **EVALUATING},
    'num_cpu_replicas': MIRRORED, 'num_packs': {'num_packs': 2, **MIRRORED},
    'save_checkpoints_secs': {'save_checkpoints_secs': 60, 'save_checkpoints_steps': None},
    'stop_at_accuracy': {'stop_at_accuracy': 1., **EVALUATING},
    **{name: {name: value} for name, value in {
        'best_metric': 'average_loss', 'best_mode': 'max', 'cache': 'memory', 'checkpoint': 'best',
        'data_dir': 'data', 'enable_xla': True, 'eval_every_epochs': 2, 'eval_every_steps': 2,
        'export_dir': 'export', 'export_format': 'h5', 'export_input': 'tensor',
        'gpu_memory_growth': False,
        'gradient_accumulation_steps': 3, 'inter_op_parallelism_threads': 1,
        'intra_op_parallelism_threads': 1, 'json': True, 'keep_checkpoint_max': 1,
        'labels': ('A', 'B'), 'log_every_steps': 1, 'max_bad_images': .5,
        'mode': 'train_and_evaluate', 'num_gpus': 0, 'num_parallel_calls': 1,
        'on_bad_image': 'skip', 'peer_timeout_secs': 9, 'prefetch': 3,
        'report_page': False, 'save_checkpoints_steps': 1, 'save_retry_secs': 9,
        'shuffle_buffer': 5, 'start_timeout_secs': 9, 'step_timeout_secs': 99,
        'throughput_warmup_steps': 1, 'trace_steps': (3, 4), 'train_pattern': 'moved',
        'verbosity': 1}.items()}}
# These apply from the next step on.
USED = {
    'base_batch_size': {'base_batch_size': 64, 'scale_learning_rate': 'sqrt'},
    'mixup_alpha': {'mixup_alpha': .4, 'batch_size': 6},
    'lr_boundaries_epochs': {'lr_boundaries_epochs': (2.,), 'lr_schedule': 'cosine'},
    'lr_values': {'lr_values': (1e-4,), 'lr_schedule': 'cosine'},
    'train_epochs': {'train_epochs': 3, 'train_steps': None},
    **{name: {name: value} for name, value in {
        'augment': 'flip', 'backbone_lr_factor': .5, 'batch_size': 6, 'class_sampling': 'balanced',
        'class_weights': 'balanced', 'gradient_clip_norm': 1e-3, 'input_pipeline': 'published',
        'label_smoothing': .1, 'learning_rate': .1, 'lr_schedule': 'cosine',
        'lr_warmup_epochs': 2., 'scale_learning_rate': 'linear', 'seed': 7,
        'train_steps': 6, 'weight_decay': .1}.items()}}
# These are errors.
REFUSED = {
    'cache_features': ({'cache_features': True}, 'needs frozen layers'),
    'dataset': ({'dataset': 'own_models:tiny_images'}, 'other class names: A,B before and a,b,c'),
    'dtype': ({'dtype': 'mixed'}, 'does not fit --dtype: .* give another .*or --dtype=fp32'),
    'ema_decay': ({'ema_decay': .9}, 'does not fit --ema_decay: .* without --ema_decay .*averages'),
    'on_nan': ({'on_nan': 'skip'}, 'requires dynamic loss scaling'),
    'image_size': ({'image_size': (8, 9)}, 'another network of .*--image_size=8,8 before and'),
    'model': ({'model': 'own_models:probe'}, 'not --model=own_models:probe'),
    'optimizer': ({'optimizer': 'sgd'}, 'does not fit --optimizer: .* or --optimizer=adam'),
    'preprocess': ({'preprocess': 'tf'}, 'does not fit --preprocess: .* or --preprocess=unit'),
    'trainable_layers': ({'trainable_layers': 1}, 'requires a pretrained network'),
    'weights': ({'weights': 'other.h5'}, 'no weights at this path')}
# These have no effect on this data set or in these modes, or are tested elsewhere.
ELSEWHERE = {'compression', 'eval_pattern', 'hooks', 'image_key', 'input', 'label_key',
             'label_offset', 'model_dir', 'num_shards', 'output', 'repeats', 'runs', 'scale_over',
             'validation_fraction', 'workload'}
NOT_LOGGED = {'json', 'verbosity'}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with images, a copy of them, and a run that was stopped after two of four steps."""
  folder = tmp_path_factory.mktemp('resumed')
  for split in ('train', 'test'):
    for name, count in (('A', 12), ('B', 6)):
      (folder / split / name).mkdir(parents=True)
      for index in range(count):
        pixels = np.random.RandomState(index).randint(0, 128, (8, 8, 3)) + 99 * (name == 'B')
        Image.fromarray(pixels.astype(np.uint8)).save(
            str(folder / split / name / '{}.png'.format(index)))
  shutil.copytree(str(folder / 'train'), str(folder / 'moved'))
  training_runs.train(folder / 'run', end_step=2, **flags_of(folder))
  return folder


def flags_of(folder, **changes):
  """Returns the flags of a run with changes, without those that are None."""
  flags = dict(BASE, train_pattern=folder / 'train', eval_pattern=folder / 'test')
  flags.update(changes)
  if flags['train_pattern'] == 'moved':
    flags['train_pattern'] = folder / 'moved'
  return {name: str(value) if isinstance(value, Path) else value
          for name, value in flags.items() if value is not None}


def resume(folder, **changes):
  """Resumes a copy of the run, and returns its last variables."""
  with tempfile.TemporaryDirectory() as copies:
    run = Path(copies, 'run')
    shutil.copytree(str(folder / 'run'), str(run))
    training_runs.train(run, **flags_of(folder, **changes))
    return training_runs.variables(run)


@pytest.fixture(scope='module')
def expected(folder):
  """The variables of a run that resumes without a change."""
  return resume(folder)


def test_the_tables_have_each_flag():
  names = [name for name, _ in Settings(model_dir='x').items()]
  assert sorted([*SAME, *USED, *REFUSED, *ELSEWHERE]) == sorted(names)


def assert_logged(messages, names):
  line, = [message for message in messages if message.startswith('resuming with the weights')]
  for name in set(names) - NOT_LOGGED:
    assert '--{}='.format(name) in line or '--{} '.format(name) in line, name


def group_flags(size):
  """Returns the names in SAME in groups of at most `size` whose flags do not exclude each other."""
  groups = []
  for name, flags in SAME.items():
    for names in groups:
      merged = {key: value for other in names for key, value in SAME[other].items()}
      if len(names) < size and all(merged.get(key, value) == value
                                   for key, value in flags.items()) and (
          is_accepted({**merged, **flags})):
        names.append(name)
        break
    else:
      groups.append([name])
  return groups


def is_accepted(flags):
  try:
    Settings(mode='train', model_dir='x', model='own_models:two_layers',
             **{name: value for name, value in flags_of(Path('x'), **flags).items()
                if name not in ('mode', 'model')})
  except UserError:
    return False
  return True


@pytest.mark.slow
@pytest.mark.parametrize('names', group_flags(4), ids=','.join)
def test_changed_flags_that_leave_the_weights_as_they_are(folder, expected, caplog, names):
  caplog.set_level('INFO', 'estimator_train')
  flags = {key: value for name in names for key, value in SAME[name].items()}
  found = resume(folder, **flags)
  if set(names) - NOT_LOGGED:
    assert_logged(caplog.messages, flags)
  training_runs.assert_same(found, expected, 1e-4)  # Of Adam.


@pytest.mark.slow
@pytest.mark.parametrize('name', USED)
def test_a_changed_flag_applies_from_the_next_step_on(folder, expected, caplog, name):
  caplog.set_level('INFO', 'estimator_train')
  found = resume(folder, **USED[name])
  assert_logged(caplog.messages, USED[name])
  with pytest.raises(AssertionError):
    training_runs.assert_same(found, expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('name', REFUSED)
def test_a_changed_flag_is_refused(folder, name):
  flags, message = REFUSED[name]
  with pytest.raises(UserError, match=message):
    resume(folder, **flags)


@pytest.mark.slow
@hypothesis_settings(max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.sampled_from([*SAME, *USED]), min_size=2, max_size=3, unique=True))
def test_flags_that_change_together(folder, expected, caplog, names):
  caplog.set_level('INFO', 'estimator_train')
  flags = {}
  for name in names:
    flags.update(dict(SAME, **USED)[name])
  assume(is_accepted(flags))
  caplog.clear()
  found = resume(folder, **flags)
  if set(names) - NOT_LOGGED:
    assert_logged(caplog.messages, flags)
  if set(names) <= set(SAME):
    training_runs.assert_same(found, expected, 1e-4)  # Of Adam.
