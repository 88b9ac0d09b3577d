"""What an audit's files add up to, which of them are the same, and the table of it."""

import io
import json
import sys

import numpy as np
import pytest

from estimator_train.reports import audit
from estimator_train.settings import groups


def splits_of(train, evaluated=()):
  """Splits of (name, class) pairs."""
  return [audit.AuditedSplit(name, [file for file, _ in some],
                             np.array([label for _, label in some], int), ('A', 'B', 'C'))
          for name, some in (('train', train), ('eval', evaluated)) if some]


def test_figures():
  split = splits_of([(b'1', 0), (b'2', 0), (b'3', 0), (b'4', 1), (b'5', 1), (b'6', 2)])[0]
  for shape in ((20, 30, 1), (20, 30, 3), (9, 9, 2), (20, 30, 1), (20, 30, 4), None):
    split.add_file(100, shape)
  assert split.statistics() == {
      'files': 6, 'bytes': 600, 'undecodable': 1, 'classes': {'A': 3, 'B': 2, 'C': 1},
      'imbalance': 3., 'grey': 3, 'colour': 2, 'sizes': [
          {'height': 20, 'width': 30, 'channels': 1, 'files': 2},
          {'height': 9, 'width': 9, 'channels': 2, 'files': 1},
          {'height': 20, 'width': 30, 'channels': 3, 'files': 1},
          {'height': 20, 'width': 30, 'channels': 4, 'files': 1}]}
  figures = splits_of([(b'1', 0), (b'2', 1), (b'3', -1)])[0].statistics()
  assert figures['classes'] == {'A': 1, 'B': 1, 'C': 0} and figures['imbalance'] is None


@pytest.mark.parametrize('classes, evaluated, positions, contents, expected', [
    ([0, 0, 0], [], [], [], []), ([0, 0, 0], [], [2], [7], []), ([0, 0, 0], [], [0, 2], [7, 8], []),
    ([0, 0, 0], [], [0, 2], [7, 7], [('3', 'train', 'duplicate', 'as 1 (train)')]),
    ([0, 0, 0, 0], [], [0, 1, 2, 3], [7, 8, 7, 7], [
        ('3', 'train', 'duplicate', 'as 1 (train)'), ('4', 'train', 'duplicate', 'as 1 (train)')]),
    ([0, 2], [], [0, 1], [7, 7], [
        ('1', 'train', 'under_several_labels', 'are in the classes A, C'),
        ('2', 'train', 'duplicate', 'as 1 (train)'),
        ('2', 'train', 'under_several_labels', 'are in the classes A, C')]),
    ([0, 0], [1, 0], [0, 1, 2, 3], [7, 8, 9, 8], [
        ('2', 'train', 'in_train_and_eval', 'as 4 (eval)'),
        ('4', 'eval', 'duplicate', 'as 2 (train)'),
        ('4', 'eval', 'in_train_and_eval', 'as 2 (train)')]),
])
def test_files_with_the_same_contents(classes, evaluated, positions, contents, expected):
  names = [(str(number).encode(), label) for number, label in enumerate(classes + evaluated, 1)]
  splits = splits_of(names[:len(classes)], names[len(classes):])

  def find(high, low):
    return sorted(audit.find_duplicates(splits, np.array(positions, int), np.array(
        [high, low], np.uint64).T))

  constant = [1] * len(contents)
  for found in (find(constant, contents), find(contents, constant)):
    assert [(issue.file, issue.split, issue.kind,
             issue.reason.replace('the same contents ', '')) for issue in found] == expected
  assert find(contents, range(len(contents))) == []  # Half a digest is not enough.


def write_in(folder, splits, issues):
  return audit.write_audit_report(
      groups.Run('audit', str(folder)), groups.Data('image_folder', train_pattern='*'), splits,
      issues)


def test_many_findings_are_cut_in_the_table_only(tmp_path, capsys):
  split = splits_of([(b'%03d' % number, 0) for number in range(25)])[0]
  issues = [split.make_issue(number, 'cmyk', 'why') for number in reversed(range(25))]
  result = write_in(tmp_path, [split], issues)
  out = capsys.readouterr().out
  assert '  019 - why\n' in out and '  020 - why\n' not in out and '5 more files' in out
  assert '  A         25  100.00%' in out and 'undefined, a class is empty' in out
  written = json.loads((tmp_path / 'audit.json').read_text())
  assert [finding['file'] for finding in written['findings']] == [
      '%03d' % number for number in range(25)]
  assert result['findings'] == written['kinds'] == {'cmyk': 25}


@pytest.mark.parametrize('encoding', ['ascii', 'utf-8'])
def test_odd_names_on_any_terminal(tmp_path, monkeypatch, encoding):
  names = [b'a\nb.jpeg', b'\xff.jpeg', 'ä.jpeg'.encode(), b'\x1b[31m.jpeg', b'"\' .jpeg']
  split = splits_of([(name, 0) for name in names])[0]
  screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
  monkeypatch.setattr(sys, 'stdout', screen)
  write_in(tmp_path, [split], [split.make_issue(number, 'cmyk', 'why') for number in range(5)])
  screen.flush()
  out = screen.buffer.getvalue().decode(encoding)
  for shown in ('"a\\nb.jpeg" - why', '"\\udcff.jpeg" - why', '"\\u001b[31m.jpeg" - why',
                '  "\' .jpeg - why', '\\xe4.jpeg' if encoding == 'ascii' else 'ä.jpeg'):
    assert shown in out
  assert {finding['file'].encode('utf-8', 'surrogateescape') for finding in json.loads(
      (tmp_path / 'audit.json').read_text())['findings']} == set(names)
