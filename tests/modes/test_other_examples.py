"""Numbers that belong to the examples of a run, which other examples must not change."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from mode_runs import evaluated_steps, fails

from estimator_train.reports import page
from estimator_train.run_dir import RunDir, data_record

COMMON = ['--dataset=image_folder', '--image_size=8,8', '--model=own_models:two_layers',
          '--distribution_strategy=off', '--batch_size=4', '--optimizer=sgd',
          '--learning_rate=0.01']


@pytest.fixture
def data(tmp_path, write_images):
  """Folders of images: `train`, `test`, and `other`, which has files of the names of `test`."""
  random = np.random.RandomState(1)
  write_images({tmp_path / 'data' / split / label / '{}.png'.format(index): random.randint(
      0, 256, (8, 8, 3)).astype(np.uint8)
                for split, count in (('train', 12), ('test', 5), ('other', 5))
                for label in 'AB' for index in range(count)})
  return tmp_path / 'data'


@pytest.fixture
def model_dir(tmp_path):
  return tmp_path / 'model'


@pytest.fixture
def train(run_well, data, model_dir):
  def run(steps, *arguments, split='--eval_pattern={}/test'):
    return run_well('--train_pattern={}'.format(data / 'train'), split.format(data),
                    '--model_dir', model_dir, '--train_steps={}'.format(steps), *COMMON, *arguments)

  return run


def contents(folder):
  """Returns the contents of the files of a run, which an evaluation of it may change."""
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*')
          if path.is_file() and 'evaluations' not in path.parts}


def test_other_evaluations_have_records_of_their_own(train, run_well, data, model_dir):
  train(4, '--save_checkpoints_steps=2')
  before = contents(model_dir)
  evaluate = ['--mode=evaluate', '--model_dir', model_dir]
  other = '--eval_pattern={}/other'.format(data)
  for arguments, name, reason in (
      ([other], r'other-', 'other test examples: ' + other),
      ([other, '--checkpoint', model_dir / 'model.ckpt-2'], 'other-', 'other test examples'),
      (['--checkpoint', model_dir / 'model.ckpt-2'], 'test-', 'another checkpoint: '),
      (['--eval_pattern={}/other/*/1.png,{}/test/A'.format(data, data)], 'other-', 'examples')):
    done = run_well(*evaluate, *arguments)
    folder = done.result['evaluation_dir']
    assert os.path.dirname(folder) == str(model_dir / 'evaluations')
    assert os.path.basename(folder).startswith(name)
    assert folder.endswith('-step-2') == ('--checkpoint' in arguments)
    assert 'not the evaluation of the run' in done.err and reason in done.err
    assert '--validation_fraction' not in done.err and ' before and ' not in done.err
    written = json.loads((model_dir / folder / 'evaluation.json').read_text())
    assert written['average_loss'] == done.result['average_loss']
    page_path = page.write_page(folder)
    with open(page_path) as file:
      text = file.read()
    assert 'not the evaluation of the run: ' in text and reason in text
    assert 'Evaluation of own_models' in text
    assert 'other' not in name or '/other' in (model_dir / folder / 'flags.txt').read_text()
    assert contents(model_dir) == before, arguments
  assert len(list((model_dir / 'evaluations').iterdir())) == 4
  # The run's own test images at another place, and the latest checkpoint by its path.
  shutil.move(str(data / 'test'), str(data / 'moved'))
  done = run_well(*evaluate, '--eval_pattern={}/moved/*/*'.format(data),
                  '--checkpoint', model_dir / 'model.ckpt-4')
  assert 'evaluation_dir' not in done.result and contents(model_dir) != before
  loss = json.loads((model_dir / 'evaluation.json').read_text())['average_loss']
  assert loss == json.loads(before['evaluation.json'].decode())['average_loss']


def test_an_older_run_knows_its_test_images_by_its_flags(train, run_well, data, model_dir):
  train(2)
  (model_dir / 'data.json').unlink()
  path = model_dir / 'evaluation.json'
  evaluation = json.loads(path.read_text())
  del evaluation['examples_digest']
  path.write_text(json.dumps(evaluation))
  evaluate = ['--mode=evaluate', '--model_dir', model_dir]
  done = run_well(*evaluate, '--eval_pattern={}/other'.format(data))
  assert 'evaluation_dir' in done.result and json.loads(path.read_text()) == evaluation
  assert 'evaluation_dir' not in run_well(*evaluate).result
  assert 'examples_digest' in json.loads(path.read_text())


def test_a_run_without_test_images_takes_the_first_ones(train, run_well, data, model_dir):
  train(2, '--mode=train', split='--seed=3')
  evaluate = ['--mode=evaluate', '--model_dir', model_dir]
  for name, is_other in (('test', False), ('other', True), ('test', False)):
    done = run_well(*evaluate, '--eval_pattern={}/{}'.format(data, name))
    assert ('evaluation_dir' in done.result) == is_other


def best_of(model_dir):
  return json.loads((model_dir / 'best' / 'best.json').read_text())


@pytest.mark.parametrize('has_digest', [True, False])
def test_the_best_checkpoint_is_compared_on_the_same_examples(train, run_well, data, model_dir,
                                                              has_digest):
  rules = ['--eval_every_steps=2', '--best_metric=average_loss', '--early_stopping_steps=4',
           '--learning_rate=1e-30']
  done = train(4, *rules)
  assert 'others than before' not in done.err
  best = best_of(model_dir)
  assert best['global_step'] == 2  # With these weights, later ones are not better.
  assert train(20, *rules).result['global_step'] == 6
  assert json.loads((model_dir / 'stopped.json').read_text())['global_step'] == 6
  if not has_digest:
    for name in ('best/best.json', 'stopped.json'):
      record = json.loads((model_dir / name).read_text())
      del record['examples_digest']
      (model_dir / name).write_text(json.dumps(record))
    done = train(20, *rules, '--early_stopping_steps=5')
    assert 'it is unknown on which examples' in done.err
    assert evaluated_steps(done) == [8, 10, 12]  # Early stopping counts from step 6.
    assert best_of(model_dir)['average_loss'] == pytest.approx(best['average_loss'])
    return
  done = train(20, *rules, split='--eval_pattern={}/other')
  assert done.err.count('others than before: evaluating the best checkpoint, of step 2') == 1
  assert done.result['stopped_early'].endswith('for 4 steps')
  assert evaluated_steps(done) == [8, 10]
  other = run_well('--mode=evaluate', '--model_dir', model_dir, '--checkpoint=best')
  assert best_of(model_dir)['global_step'] == 2
  assert best_of(model_dir)['average_loss'] == pytest.approx(other.result['average_loss'])
  assert other.result['average_loss'] != best['average_loss']


@pytest.mark.parametrize('is_damaged', [True, False])
def test_the_best_checkpoint_differs_from_those_of_the_resumed_run(train, data, model_dir,
                                                                   is_damaged):
  """It has averages of the weights, which the resumed run omits, or it cannot be read."""
  rules = ['--eval_every_steps=2', '--best_metric=average_loss']
  train(2, *rules, '--optimizer=sgd', '--ema_decay=.9')
  if is_damaged:
    for path in (model_dir / 'best').glob('*/*.data-*'):
      content = path.read_bytes()
      path.unlink()  # It is a hard link.
      path.write_bytes(content[:-9])
  done = train(4, *rules, '--optimizer=sgd', split='--eval_pattern={}/other')
  assert ('cannot be evaluated again: ' in done.err) == is_damaged, done.err
  assert done.result['global_step'] == 4 and evaluated_steps(done) == [4]
  if is_damaged:
    assert best_of(model_dir)['global_step'] == 4


# What an earlier run trained on, what the resumed run is given, and whether it is refused.
QUARTER = '--validation_fraction=.25'
CHANGES = [
    (QUARTER, [QUARTER, '--seed=2'], None),
    (QUARTER, ['--validation_fraction=.5'], '0.25 in .* and --validation_fraction=0.5 now'),
    ('--eval_pattern={}/test', [QUARTER], 'no --validation_fraction in .* and'),
    (QUARTER, ['--eval_pattern={}/test'], None),
]


@pytest.mark.parametrize('before, now, error', CHANGES)
@pytest.mark.parametrize('is_recorded', [True, False])
def test_validation_images_stay_those_of_the_run(train, run_program, data, model_dir, before, now,
                                                 error, is_recorded):
  """Also those of an earlier version, which has recorded only its flags."""
  train(2, split=before)
  digest = data_record.read(RunDir(str(model_dir))).test_examples
  if not is_recorded:
    (model_dir / 'data.json').unlink()
  now = [argument.format(data) for argument in now]
  for arguments in (['--mode=evaluate'], ['--train_steps=3', *COMMON, '--train_pattern={}'.format(
      data / 'train')], ['--train_steps=4', *COMMON, '--train_pattern={}'.format(data / 'train')]):
    done = run_program(*arguments, '--model_dir', model_dir, *now)
    if error:
      assert fails(done, 'examples that were trained on must not become') and re.search(
          error, done.err)
      continue
    assert done.code == 0, done.err
    is_same = json.loads((model_dir / 'evaluation.json').read_text())['examples_digest'] == digest
    assert is_same == (now[0] == QUARTER or 'evaluate' in arguments[0])
    assert ('examples stay those of --seed=1' in done.err) == ('--seed=2' in now)
  if now[0] != QUARTER and not error:  # All images have been trained on.
    assert fails(run_program('--mode=evaluate', '--model_dir', model_dir, QUARTER),
                 'examples that were trained on must not become')
