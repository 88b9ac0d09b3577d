"""Files that the program has written for itself: however they are damaged, it goes on."""

import gzip
import json
import os
import zipfile

import numpy as np
import pytest

from estimator_train.benchmarking import sweep
from estimator_train.datasets import record_index
from estimator_train.errors import UserError
from estimator_train.files import stored
from estimator_train.inputs import array_cache, bad_images, user_datasets
from estimator_train.reports import learning_curves, page_data
from estimator_train.run_dir.run_files import RunDir
from estimator_train.settings import Settings, groups
from estimator_train.training.checkpoints import best_checkpoint, initial_weights
from estimator_train.training.evaluation import early_stopping


def _change(path, change):
  path.write_bytes(change(path.read_bytes()))


def _replace(path, make):
  path.unlink()
  make(path)


def _zip(path):
  with zipfile.ZipFile(str(path), 'w') as file:
    file.writestr('other', 'other')


DAMAGES = {
    'truncated': lambda path: _change(path, lambda content: content[:len(content) // 2]),
    'a byte less': lambda path: _change(path, lambda content: content[:-2]),
    'flipped at the start': lambda path: _change(
        path, lambda content: bytes([content[0] ^ 1]) + content[1:]),
    'flipped': lambda path: _change(path, lambda content: content[:len(content) // 2] + bytes(
        [content[len(content) // 2] ^ 0xff]) + content[len(content) // 2 + 1:]),
    'zeros': lambda path: _change(path, lambda content: bytes(len(content))),
    'empty': lambda path: path.write_bytes(b''),
    'other text': lambda path: path.write_text('other\n'),
    'other JSON': lambda path: path.write_text('[[["a", {}]], null]'),
    'deep JSON': lambda path: path.write_text('[' * 100000),
    'gzip': lambda path: path.write_bytes(gzip.compress(b'other')),
    'zip': _zip,
    'an array': lambda path: np.save(str(path.parent / 'a.npy'), np.zeros(3)) or (
        path.parent / 'a.npy').rename(path),
    'a folder': lambda path: _replace(path, lambda path: path.mkdir() or (path / 'x').mkdir()),
    'a FIFO': lambda path: _replace(path, lambda path: os.mkfifo(str(path))),
    'a loop': lambda path: _replace(path, lambda path: path.symlink_to(path.name)),
    'a device': lambda path: _replace(path, lambda path: path.symlink_to('/dev/zero')),
}
# Text in which a flipped bit is still text.
_TEXT_DAMAGES = {'truncated', 'a byte less', 'flipped at the start', 'flipped', 'other text',
                 'other JSON', 'deep JSON'}


def _read_record_index(folder, monkeypatch):
  data = folder / 'data'
  if not data.exists():
    data.write_bytes(b''.join(record_index.frame(b'x' * size) for size in range(9)))
  os.utime(str(data), (1, 1))
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder))
  record_index._load_index.cache_clear()
  index = record_index.load_index((bytes(data),))
  return index.lengths.tolist(), index.first_records.tolist()


def _read_array(folder, monkeypatch):
  return array_cache.load_array(str(folder), 'a', (50, 4), np.uint8,
                                lambda array: array.fill(7)).tolist()


def _count_examples(folder, monkeypatch):
  monkeypatch.setattr(user_datasets, '_count', lambda make_dataset: 123)
  return user_datasets._count_once(_count_examples, str(folder))


def _find_bad_images(folder, monkeypatch):
  class Images:
    def cache_key(self):
      return 'key'

  monkeypatch.setattr(bad_images, 'find_undecodable', lambda source: [(3, 'truncated')])
  return bad_images._find_undecodable_cached(Images(), 'train', str(folder))


DERIVED = {'estimator_train/record_index/*.npz': _read_record_index, 'a.npy': _read_array,
           'example_counts.json': _count_examples, 'skipped_images.json': _find_bad_images}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.parametrize('pattern', DERIVED)
def test_a_derived_file_is_made_again(tmp_path, monkeypatch, caplog, pattern, damage):
  read = DERIVED[pattern]
  expected = read(tmp_path, monkeypatch)
  (path,) = tmp_path.glob(pattern)
  caplog.clear()
  assert read(tmp_path, monkeypatch) == expected and not caplog.records
  damage(path)
  assert read(tmp_path, monkeypatch) == expected
  assert '{} cannot be used'.format(path) in caplog.text
  caplog.clear()
  assert read(tmp_path, monkeypatch) == expected and not caplog.records and path.is_file()


def test_an_unreadable_file(tmp_path, monkeypatch, caplog):
  """The superuser can read every file."""
  (tmp_path / 'a').write_text('a')

  def refuse(*unused):
    raise PermissionError(13, 'Permission denied')

  monkeypatch.setattr(stored.os, 'open', refuse)
  assert stored.load_or_warn(str(tmp_path / 'a'), stored.parse_text, 'so what') is None
  assert caplog.messages == ['{} cannot be used (Permission denied): so what'.format(
      tmp_path / 'a')]


def test_a_copied_cache_is_reused(tmp_path, monkeypatch, caplog):
  _read_array(tmp_path, monkeypatch)
  caplog.clear()
  os.utime(str(tmp_path / 'a.npy'), (5, 5))
  _read_array(tmp_path, monkeypatch)
  assert not caplog.records


@pytest.mark.parametrize('damage', [DAMAGES['a FIFO'], DAMAGES['a folder'], DAMAGES['a loop']])
def test_something_else_in_place_of_the_partial_cache(tmp_path, monkeypatch, damage):
  (tmp_path / 'a.npy.part').write_text('')
  damage(tmp_path / 'a.npy.part')
  assert _read_array(tmp_path, monkeypatch)[49] == [7] * 4


RULES = Settings(model_dir='x', train_steps=1, early_stopping_steps=5)[groups.Evaluation]
POINT = sweep.Point(sweep.CPU, 1, sweep.BOTH, sweep.REAL, 1)


def _read_points(folder):
  return sweep.read_completed_points([POINT], Settings(model_dir=str(folder), train_steps=1))


# What is read from a damaged file.
STATE = {
    'batch_sizes.json': ('[[0, 10]]', lambda folder: RunDir(folder).examples_seen(3, 7), 21),
    'best/best.json': ('{"checkpoint": "3/model.ckpt-3", "global_step": 3, "last_evaluated": 3}',
                       best_checkpoint.read_best, None),
    'stopped.json': ('{"global_step": 3, "why": "x"}', lambda folder: (
        early_stopping.read_stop_reason(RunDir(folder), RULES, 3)), None),
    'fingerprint.txt': ('--model=a --seed=1\n', initial_weights._read_fingerprint, None),
    'scaling.json': ('{"table": []}', lambda folder: page_data.read_page_data(folder).scaling, {}),
    'events.out.tfevents.1': ('x', lambda folder: (
        learning_curves.read_learning_curves(folder)['train_loss']), []),
    'points/{}/throughput.json'.format(POINT.name): ('{"steady_examples_per_sec": 1}',
                                                     _read_points, []),
    'points/{}/done.json'.format(POINT.name): ('{"secs": 1}', _read_points, []),
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.parametrize('name', STATE)
def test_a_damaged_record_is_reported(tmp_path, caplog, name, damage):
  content, read, expected = STATE[name]
  path = tmp_path / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(content)
  damage(path)
  assert read(str(tmp_path)) == expected or damage in [
      DAMAGES[each] for each in _TEXT_DAMAGES if path.suffix == '.txt']
  is_lenient = path.suffix == '.txt' or 'events' in name  # Only regular files are checked.
  assert '{} cannot be used'.format(path) in caplog.text or is_lenient and path.is_file()


@pytest.mark.parametrize('damage', sorted(set(DAMAGES) - _TEXT_DAMAGES))
@pytest.mark.parametrize('name', ['flags.txt', 'labels.txt'])
def test_damaged_flags_and_class_names_are_errors(tmp_path, name, damage):
  (tmp_path / name).write_text('a\n')
  DAMAGES[damage](tmp_path / name)
  run_dir = RunDir(str(tmp_path))
  with pytest.raises(UserError, match='a file in --model_dir is damaged: .*' + name):
    print(run_dir.flags(), run_dir.class_names())


def test_keys_are_missing(tmp_path, caplog):
  (tmp_path / 'scaling.json').write_text(json.dumps({'table': [{'scaling': 'weak'}]}))
  (tmp_path / 'throughput.json').write_text(json.dumps({'step_secs': 5, 'examples_per_sec': 'a'}))
  from estimator_train.reports import page

  assert page.write_page(str(tmp_path))
  assert 'omits the contents of scaling' in caplog.text
