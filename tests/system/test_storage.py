"""Files that the program has written for itself: however they are damaged, it goes on."""

import errno
import fcntl
import gzip
import json
import os
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from conftest import ROOT

from estimator_train.checkpoints import best_checkpoint
from estimator_train.data import (
  DataSpec,
  ImageSplit,
  Role,
  bad_images,
  cache as array_cache,
  record_index,
  user_examples,
)
from estimator_train.data.image_source import ImageFileSource
from estimator_train.errors import UserError
from estimator_train.modes.scaling import points
from estimator_train.reports import learning_curves, page
from estimator_train.run_dir import RunDir, data_record
from estimator_train.settings import Settings
from estimator_train.settings.flags import InputFlags
from estimator_train.system import record_framing, storage, temporary_files
from estimator_train.training import selection


def _change(change):
  return lambda path: path.write_bytes(change(path.read_bytes()))


DAMAGES = {
    'truncated': _change(lambda content: content[:len(content) // 2]),
    'a byte less': _change(lambda content: content[:-2]),
    'flipped': _change(lambda content: bytes([content[0] ^ 1]) + content[1:]),
    'zeros': _change(lambda content: bytes(len(content))),
    'empty': lambda path: path.write_bytes(b''),
    'other JSON': lambda path: path.write_text('[[["a", {}]], null]'),
    'deep JSON': lambda path: path.write_text('[' * 100000),
    'gzip': lambda path: path.write_bytes(gzip.compress(b'other')),
    'a pickle': lambda path: path.write_bytes(b"cposix\nmkdir\n(S'pwned'\ntR."),
}


def _read_record_index(folder, monkeypatch):
  data = folder / 'data'
  if not data.exists():
    data.write_bytes(b''.join(record_framing.frame_record(b'x' * size) for size in range(9)))
  os.utime(str(data), (1, 1))
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder))
  index = record_index.load_or_scan_index((bytes(data),))
  return index.lengths.tolist(), index.first_records.tolist()


def _read_array(folder, monkeypatch):
  (folder / 'a.npy.part').write_text('x' * 999)  # Of a process that was killed.
  return array_cache.load_or_fill_array(str(folder), 'a', (50, 4), np.uint8,
                                   lambda array: array.fill(7)).tolist()


def _count_examples(folder, monkeypatch):
  monkeypatch.setattr(user_examples, '_count_elements', lambda make_dataset: 123)
  return user_examples._load_or_count_examples(_count_examples, str(folder))


def _find_bad_images(folder, monkeypatch):
  monkeypatch.setattr(bad_images, 'iter_undecodable_images', lambda *given: [])
  monkeypatch.setattr(ImageFileSource, 'files_fingerprint', lambda self: 'key')
  source = ImageFileSource(
      DataSpec('any', ('a', 'b'), None), ImageSplit([], np.zeros(0, int)), Role.TEST)
  source.exclude_bad_images(InputFlags(), str(folder))
  return (folder / 'skipped_images.json').read_text()


DERIVED = {'estimator_train/record_index/*.npz': _read_record_index, 'a.npy': _read_array,
           'example_counts.json': _count_examples, 'skipped_images.json': _find_bad_images}


@pytest.mark.parametrize('pattern', DERIVED)
def test_a_derived_file_is_made_again(tmp_path, monkeypatch, caplog, pattern):
  read = DERIVED[pattern]
  expected = read(tmp_path, monkeypatch)
  (path,) = tmp_path.glob(pattern)
  for name, damage in DAMAGES.items():
    assert not caplog.clear() and read(tmp_path, monkeypatch) == expected, name
    assert not caplog.records and path.is_file(), name
    damage(path)
    assert read(tmp_path, monkeypatch) == expected, name
    assert '{} cannot be used'.format(path) in caplog.text, name
  assert not os.path.exists('pwned')


RULES = Settings(model_dir='x', train_steps=1, early_stopping_steps=5).evaluation
POINT = points.Point(points.CPU, 1, points.BOTH, points.REAL, 1)


def _read_points(folder):
  return points.read_complete_reports(os.path.join(str(folder), 'points', POINT.name))


# What is read from a damaged file.
STATE = {
    'batch_sizes.json': ('[[0, 10]]', lambda folder: (
        RunDir(folder).read_clock(7).examples_at(3)), 21),
    'data.json': ('{"test_examples": "a", "validation": null}', lambda folder: (
        data_record.read(RunDir(folder))), None),
    'best/best.json': ('{"checkpoint": "3/model.ckpt-3", "global_step": 3, "last_evaluated": 3}',
                       best_checkpoint.read_best, None),
    'stopped.json': ('{"global_step": 3, "why": "x"}', lambda folder: (
        selection.read_stop_reason(RunDir(folder), RULES, 3)), None),
    'scaling.json': ('{"table": []}', lambda folder: page.read_page_data(folder).scaling, {}),
    'events.out.tfevents.1': ('x', lambda folder: (
        learning_curves.read_learning_curves(folder)['train_loss']), []),
    'points/{}/throughput.json'.format(POINT.name): ('{"examples_per_sec": 1}', _read_points, None),
    'points/{}/done.json'.format(POINT.name): ('{"point": 1}', _read_points, None),
}


@pytest.mark.parametrize('name', STATE)
def test_a_damaged_record_is_reported(tmp_path, caplog, name):
  content, read, expected = STATE[name]
  for kind, damage in DAMAGES.items():
    folder = tmp_path / kind
    path = folder / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    damage(path)
    assert read(str(folder)) == expected, kind
    # The end of an event file may always be incomplete.
    assert '{} cannot be used'.format(path) in caplog.text or 'events' in name, kind


@pytest.mark.parametrize('name', ['flags.txt', 'labels.txt'])
def test_damaged_flags_and_class_names_are_errors(tmp_path, name):
  run_dir = RunDir(str(tmp_path))
  for content in (b'', bytes(2), gzip.compress(b'other')):  # Which is not UTF-8.
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match='a file in --model_dir is damaged: .*' + name):
      print(run_dir.read_flags(), run_dir.read_class_names())


def test_files_have_their_name_only_when_they_are_whole(tmp_path, monkeypatch):
  path = tmp_path / 'a.json'
  value = {'text': 'T-shirt/"top"', 'nothing': None}
  storage.write_json(str(path), value)
  with pytest.raises(ValueError):
    storage.write_json(str(path), {'rate': float('nan')})
  monkeypatch.setattr(os, 'fsync', mock.Mock(side_effect=OSError(28, 'full')))
  with pytest.raises(OSError, match='full'):
    storage.write_text(str(path), 'new')
  assert json.loads(path.read_text()) == value and os.listdir(str(tmp_path)) == ['a.json']


WRITER = '''
import os, sys, time
from estimator_train.system import storage, temporary_files
os.getpid = lambda: 1
with storage.open_atomic(sys.argv[1]) as file:
  print(file.name, flush=True)
  sys.stdin.readline()
'''


@pytest.mark.parametrize('name', ['a.json', 'n' * 250])
def test_temporary_files_of_processes_with_one_pid(tmp_path, monkeypatch, name):
  """They differ; those of a killed process go at the next write, those of a living one stay."""
  path = tmp_path / name
  writers = [subprocess.Popen([sys.executable, '-c', WRITER, str(path)], cwd=str(ROOT),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
  files = [writer.stdout.readline().decode().strip() for writer in writers]
  assert len(set(files)) == 3 and all(map(os.path.exists, files))
  writers[0].kill()
  writers[0].wait()
  boot = temporary_files._boot_digest()
  others = [files[0].replace(boot, '123456'), files[0].replace(boot, '234567')]  # Other machines.
  for other, age in zip(others, (1000, 100000)):
    (tmp_path / other).write_text('half')
    os.utime(other, (time.time() - age,) * 2)
  monkeypatch.setattr(temporary_files, '_cleaned_folders', set())
  storage.write_text(str(path), 'mine')
  assert {entry.path for entry in os.scandir(str(tmp_path))} == {str(path), *files[1:], others[0]}
  for writer in writers[1:]:
    writer.communicate(b'\n')
    assert writer.returncode == 0
  assert {entry.path for entry in os.scandir(str(tmp_path))} == {str(path), others[0]}


def test_another_process_takes_a_new_folder_for_a_leftover(tmp_path, monkeypatch):
  """It has locked the folder, or has removed it already."""
  mkdir, folders, descriptors = os.mkdir, [], []

  def interfere(path):
    mkdir(path)
    folders.append(path)
    if len(folders) == 1:
      temporary_files.remove_leftovers(str(tmp_path))
    elif len(folders) == 2:
      descriptors.append(os.open(path, os.O_RDONLY))
      fcntl.flock(descriptors[0], fcntl.LOCK_EX)

  monkeypatch.setattr(os, 'mkdir', interfere)
  with temporary_files.make_folder(str(tmp_path / 'version')) as folder:
    assert len(folders) == 3 and folder == folders[2] and os.path.isdir(folder)
  os.close(descriptors[0])


def test_a_file_system_without_locks(tmp_path, monkeypatch):
  """Files that several processes may fill need a lock; temporary files are unique without one."""
  monkeypatch.setattr(fcntl, 'flock', mock.Mock(side_effect=OSError(errno.ENOLCK, 'No locks')))
  with pytest.raises(OSError, match='No locks'), storage.open_locked(str(tmp_path / 'a.part')):
    pass
  storage.write_text(str(tmp_path / 'b'), 'text')
  with temporary_files.make_folder(str(tmp_path / 'version')):
    assert (tmp_path / 'b').read_text() == 'text'


def test_arrays_of_the_same_bytes_have_different_fingerprints():
  values = np.arange(6, dtype=np.int32)
  arrays = (values, values.reshape(2, 3), values.view(np.uint32), values + 1)
  assert len({storage.fingerprint_arrays([array]) for array in arrays}) == len(arrays)


def test_cells_that_spreadsheets_would_take_for_formulas():
  for value in ('=1+1', '+1-1', '-2+3+cmd|\' /C calc\'!A0', '@SUM(A1)', '\t=1', '\r=1', '\uff1d1'):
    assert storage.csv_cell(value) == "'" + value
  for value in (-0.5, None, True, '-0.5', '+7', '-1e-05', '-inf', '', '-', 'a=b', ' =1', 'x.png'):
    assert storage.csv_cell(value) is value
