"""Files that have their name only when they are whole."""

import json
import os

import pytest

from estimator_train.files import atomic


def test_json_reads_back(tmp_path):
  path = str(tmp_path / 'a.json')
  value = {'text': 'T-shirt/"top"', 'matrix': [[1, 2], [3, 4]], 'nothing': None}
  atomic.write_json(path, value)
  with open(path) as file:
    assert json.load(file) == value
  assert os.listdir(str(tmp_path)) == ['a.json']


def test_failure_leaves_the_old_file_alone(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  path.write_text('old')
  monkeypatch.setattr(os, 'fsync', lambda descriptor: (_ for _ in ()).throw(OSError(28, 'full')))
  with pytest.raises(OSError, match='full'):
    atomic.write_text(str(path), 'new')
  assert path.read_text() == 'old'
  assert os.listdir(str(tmp_path)) == ['a.txt']


def test_not_finite_is_refused(tmp_path):
  with pytest.raises(ValueError):
    atomic.write_json(str(tmp_path / 'a.json'), {'rate': float('nan')})
  assert os.listdir(str(tmp_path)) == []
