"""What is kept as the best checkpoint, whatever happens in between."""

import json
import os

import pytest

from estimator_train.training.checkpoints import best_checkpoint
from estimator_train.training.checkpoints.best_metric import BestMetric

ACCURACY = BestMetric('accuracy', is_max=True)


@pytest.fixture
def evaluate(tmp_path):
  """Saves a checkpoint, holds it, offers it with its figures, and deletes it as TensorFlow does."""
  def run(step, accuracy, average_loss=1., metric='accuracy', content=None):
    path = save(tmp_path, step, content)
    held = best_checkpoint.pin(str(path), str(tmp_path))
    best = best_checkpoint.promote_if_better(
        held, step, {'accuracy': accuracy, 'average_loss': average_loss},
        BestMetric(metric, metric == 'accuracy'), str(tmp_path))
    for file in tmp_path.glob('model.ckpt-*'):
      file.unlink()
    return best.global_step

  return run


def save(folder, step, content=None):
  for ending in ('index', 'data-00000-of-00001'):
    (folder / 'model.ckpt-{}.{}'.format(step, ending)).write_text(content or str(step))
  return folder / 'model.ckpt-{}'.format(step)


def kept(folder):
  best = best_checkpoint.read_best(str(folder))
  with open(best.path + '.data-00000-of-00001') as file:
    content = file.read()
  assert os.path.exists(best.path + '.index')
  assert [str(path) for path in (folder / 'best').iterdir() if path.is_dir()] == [
      os.path.dirname(best.path)]
  return best.global_step, content


@pytest.mark.parametrize('metric, figures, best', [
    ('accuracy', [(.5, 1.), (.7, 2.), (.6, .5)], 20),
    ('average_loss', [(.5, 1.), (.7, 2.), (.6, .5)], 30),
    pytest.param('accuracy', [(.5, 3.), (.5, 2.), (.4, 1.)], 10, id='the earlier of equals'),
])
def test_the_best_is_kept(evaluate, tmp_path, metric, figures, best):
  for number, (accuracy, average_loss) in enumerate(figures, 1):
    evaluate(10 * number, accuracy, average_loss, metric)
  assert kept(tmp_path) == (best, str(best))
  told = json.loads((tmp_path / 'best' / 'best.json').read_text())
  assert told['metric'] == metric and told['value'] == told[metric]
  assert told['checkpoint'] == '{0}/model.ckpt-{0}'.format(best) and told['last_evaluated'] == 30


def test_another_metric_compares_with_the_best_there_is(evaluate, tmp_path):
  evaluate(10, .5, 1.)
  assert evaluate(20, .9, 2., 'average_loss') == 10
  assert evaluate(30, .1, .5, 'average_loss') == 30


def test_a_run_that_was_killed_before_the_marker(evaluate, tmp_path):
  evaluate(10, .5)
  best_checkpoint.pin(str(save(tmp_path, 20)), str(tmp_path))
  assert best_checkpoint.read_best(str(tmp_path)).global_step == 10
  assert evaluate(30, .4) == 10
  assert kept(tmp_path) == (10, '10')


def test_a_checkpoint_of_which_the_chief_has_deleted_files(tmp_path):
  checkpoint = save(tmp_path, 10)
  os.remove(str(checkpoint) + '.index')
  with pytest.raises(FileNotFoundError):
    best_checkpoint.pin(str(checkpoint), str(tmp_path), 'evaluator')


def test_another_task_replaces_the_best_while_it_is_read(evaluate, tmp_path, monkeypatch):
  evaluate(10, .5)
  is_complete = best_checkpoint._is_complete

  def replace_first(path):
    monkeypatch.setattr(best_checkpoint, '_is_complete', is_complete)
    evaluate(20, .6)
    return is_complete(path)

  monkeypatch.setattr(best_checkpoint, '_is_complete', replace_first)
  assert best_checkpoint.read_best(str(tmp_path)).global_step == 20


def test_a_step_that_was_trained_again(evaluate, tmp_path):
  evaluate(10, .5, content='before')
  best_checkpoint.pin(str(save(tmp_path, 10, 'after')), str(tmp_path))
  assert best_checkpoint.read_best(str(tmp_path)).path.endswith('best/10/model.ckpt-10')
  assert evaluate(10, .5, content='after') == 10
  assert kept(tmp_path) == (10, 'before')
  evaluate(10, .6, content='after')
  assert kept(tmp_path) == (10, 'after')
  evaluate(10, .7, content='at last')
  assert kept(tmp_path) == (10, 'at last')


def test_an_evaluator_and_a_chief_that_does_not_know_of_it(tmp_path):
  """Neither takes the files that the other evaluates, and both go by one best."""
  def hold(step, task):
    return best_checkpoint.pin(str(save(tmp_path, step)), str(tmp_path), task)

  def offer(held, step, accuracy):
    best = best_checkpoint.promote_if_better(
        held, step, {'accuracy': accuracy, 'average_loss': 1.}, ACCURACY, str(tmp_path))
    assert os.path.exists(best.path + '.index')
    return best.global_step

  first = hold(10, 'evaluator')
  last = hold(20, None)
  assert os.path.exists(first + '.index')
  assert offer(last, 20, .5) == 20
  assert os.path.exists(first + '.index')
  assert offer(first, 10, .4) == 20
  assert kept(tmp_path) == (20, '20')
  again = hold(20, 'evaluator')
  assert offer(again, 20, .6) == 20 and kept(tmp_path) == (20, '20')
  assert offer(hold(30, 'evaluator'), 30, .3) == 20


def test_what_is_named_elsewhere_is_left_alone(evaluate, tmp_path):
  """A marker that somebody wrote by hand."""
  evaluate(10, .5)
  marker = tmp_path / 'best' / 'best.json'
  save(tmp_path / 'best' / '..', 5)
  marker.write_text(json.dumps(dict(json.loads(marker.read_text()),
                                    checkpoint='../model.ckpt-5')))
  save(tmp_path, 20)
  held = best_checkpoint.pin(str(tmp_path / 'model.ckpt-20'), str(tmp_path))
  best = best_checkpoint.promote_if_better(
      held, 20, {'accuracy': .9, 'average_loss': 1.}, ACCURACY, str(tmp_path))
  assert best.global_step == 20 and kept(tmp_path) == (20, '20')
  assert (tmp_path / 'model.ckpt-5.index').exists()


def test_without_links_files_are_copied(evaluate, tmp_path, monkeypatch):
  def refuse(*given):
    raise PermissionError('no links here')

  monkeypatch.setattr(os, 'link', refuse)
  evaluate(10, .5)
  assert kept(tmp_path) == (10, '10')


def test_links_take_no_room(tmp_path):
  path = save(tmp_path, 10)
  held = best_checkpoint.pin(str(path), str(tmp_path))
  assert os.path.samefile(held + '.index', str(path) + '.index')


def break_marker(folder):
  (folder / 'best.json').write_text('{"checkpoint": "10/mod')


def replace_marker(folder):
  (folder / 'best.json').write_text('[1, 2]')


def lose_file(folder):
  (folder / '10' / 'model.ckpt-10.data-00000-of-00001').unlink()


@pytest.mark.parametrize('damage', [break_marker, replace_marker, lose_file])
def test_what_is_damaged_counts_as_none(evaluate, tmp_path, caplog, damage):
  evaluate(10, .9)
  damage(tmp_path / 'best')
  assert best_checkpoint.read_best(str(tmp_path)) is None
  assert 'continuing without a best checkpoint' in caplog.text
  assert evaluate(20, .1) == 20
  assert kept(tmp_path) == (20, '20')
