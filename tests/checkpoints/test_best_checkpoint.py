"""What is kept as the best checkpoint, whatever happens in between."""

import fcntl
import json
import os
from unittest import mock

import pytest

from estimator_train.checkpoints import best_checkpoint
from estimator_train.checkpoints.best_checkpoint import BestMetric

ENDINGS = '.index', '.data-00000-of-00001'


def save(folder, step, content='some'):
  path = folder / 'model.ckpt-{}'.format(step)
  for ending in ENDINGS:
    path.with_name(path.name + ending).write_text(content)
  return str(path)


def promote(folder, pinned, step, accuracy, average_loss=1., metric='accuracy'):
  return best_checkpoint.promote_if_better(
      pinned, step, {'accuracy': accuracy, 'average_loss': average_loss},
      BestMetric(metric, metric == 'accuracy'), str(folder)).global_step


def evaluate(folder, step, *figures, content='some'):
  """Saves a checkpoint, pins it, promotes it, and deletes it as TensorFlow does."""
  path = save(folder, step, content)
  best = promote(folder, best_checkpoint.pin_for_evaluation(path, str(folder)), step, *figures)
  for ending in ENDINGS:
    os.remove(path + ending)
  return best


def kept(folder):
  """Returns the step and the content of the best checkpoint, which is the only one in `best`."""
  best = best_checkpoint.read_best(str(folder))
  assert [str(path) for path in (folder / 'best').iterdir() if path.is_dir()] == [
      os.path.dirname(best.path)]
  content, = {open(best.path + ending).read() for ending in ENDINGS}  # noqa: SIM115
  return best.global_step, content


# Evaluations in turn: the step, accuracy, average loss, metric, and which of them is then the best.
# tests/modes/test_best_and_stopping.py has others, of the accuracy.
EVALUATIONS = [
    (10, .5, 1., 'accuracy', 0), (20, .9, 2., 'average_loss', 0), (30, .1, .5, 'average_loss', 2),
    (40, .9, .5, 'average_loss', 2), (50, .1, 1., 'accuracy', 2),
    # The step of the best one is trained again.
    (30, .1, .5, 'average_loss', 2), (30, .6, 1., 'accuracy', 6), (30, .7, 1., 'accuracy', 7),
    # At an equal accuracy, the lower loss is the better one, but the accuracy has not improved.
    (60, .7, 2., 'accuracy', 7), (70, .7, .9, 'accuracy', 9), (80, .7, .9, 'accuracy', 9)]


def test_the_best_is_kept(tmp_path):
  """Also after an evaluation that was killed."""
  for number, (step, accuracy, loss, metric, best) in enumerate(EVALUATIONS):
    best_checkpoint.pin_for_evaluation(save(tmp_path, step), str(tmp_path))
    best_step = evaluate(tmp_path, step, accuracy, loss, metric, content=str(number))
    assert kept(tmp_path) == (best_step, str(best)) == (EVALUATIONS[best][0], str(best))
    record = json.loads((tmp_path / 'best' / 'best.json').read_text())
    assert record['metric'] == metric and record['value'] == record[metric]
    assert record['last_evaluated'] == step
    assert record['improved_at'] == (30 if step > 60 else record['global_step'])


def test_links_or_copies(tmp_path, monkeypatch):
  path = save(tmp_path, 10)
  pinned = best_checkpoint.pin_for_evaluation(path, str(tmp_path))
  # TensorFlow overwrites the index if it saves the step again.
  assert [os.path.samefile(pinned + ending, path + ending) for ending in ENDINGS] == [False, True]
  monkeypatch.setattr(os, 'link', mock.Mock(side_effect=PermissionError))
  assert evaluate(tmp_path, 10, .5) == 10 and kept(tmp_path) == (10, 'some')
  os.remove(save(tmp_path, 20) + '.index')
  with pytest.raises(FileNotFoundError):  # The chief has deleted files.
    best_checkpoint.pin_for_evaluation(str(tmp_path / 'model.ckpt-20'), str(tmp_path), 'evaluator')


def test_one_task_at_a_time_pins_or_promotes(tmp_path, monkeypatch):
  """The evaluator, and a chief that does not know of it, may do so at the same moment."""
  read_best = best_checkpoint.read_best

  def read_while_locked(folder):
    descriptor = os.open(str(tmp_path / 'best'), os.O_RDONLY)
    with pytest.raises(BlockingIOError):
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    return read_best(folder)

  monkeypatch.setattr(best_checkpoint, 'read_best', read_while_locked)
  assert evaluate(tmp_path, 10, .5) == 10


def test_another_task_replaces_the_best_while_it_is_read(tmp_path, monkeypatch):
  evaluate(tmp_path, 10, .5)
  is_complete = best_checkpoint._is_complete

  def replace_first(path):
    monkeypatch.setattr(best_checkpoint, '_is_complete', is_complete)
    evaluate(tmp_path, 20, .6)
    return is_complete(path)

  monkeypatch.setattr(best_checkpoint, '_is_complete', replace_first)
  assert best_checkpoint.read_best(str(tmp_path)).global_step == 20


def test_an_evaluator_and_a_chief_that_does_not_know_of_it(tmp_path):
  """Neither takes the files that the other evaluates, and both go by one best."""
  def pin(step, task):
    return best_checkpoint.pin_for_evaluation(save(tmp_path, step, str(step)), str(tmp_path), task)

  first, last = pin(10, 'evaluator'), pin(20, None)
  assert os.path.exists(first + '.index')
  assert promote(tmp_path, last, 20, .5) == 20
  assert os.path.exists(first + '.index')
  assert promote(tmp_path, first, 10, .4) == 20
  assert kept(tmp_path) == (20, '20')
  assert promote(tmp_path, pin(20, 'evaluator'), 20, .6) == 20 and kept(tmp_path) == (20, '20')
  assert promote(tmp_path, pin(30, 'evaluator'), 30, .3) == 20


def test_a_best_checkpoint_without_its_files_counts_as_none(tmp_path, caplog):
  """tests/system/test_storage.py has a damaged record."""
  evaluate(tmp_path, 10, .9)
  (tmp_path / 'best' / '10' / 'model.ckpt-10.data-00000-of-00001').unlink()
  assert best_checkpoint.read_best(str(tmp_path)) is None
  assert 'continuing without a best checkpoint' in caplog.text
  assert evaluate(tmp_path, 20, .1) == 20 and kept(tmp_path) == (20, 'some')
