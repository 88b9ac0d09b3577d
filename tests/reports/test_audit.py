"""What an audit's files add up to, which of them are the same, and the table of it."""

import io
import json
import sys

import numpy as np
import pytest

from estimator_train.reports import audit
from estimator_train.settings import groups

LABELS = ('A', 'B', 'C')


def splits_of(train, evaluated=()):
  """Splits of (name, class) pairs."""
  return [audit.AuditedSplit(name, [file for file, _ in some],
                             np.array([label for _, label in some], int), LABELS)
          for name, some in (('train', train), ('eval', evaluated)) if some]


def digests(*contents):
  return np.array([[1, content] for content in contents], np.uint64).reshape(-1, 2)


def same(splits, numbers, *contents):
  return [(issue.file, issue.split, issue.kind, issue.reason)
          for issue in sorted(audit.find_duplicates(splits, np.array(numbers, int),
                                                    digests(*contents)))]


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


def test_imbalance_without_a_class():
  figures = splits_of([(b'1', 0), (b'2', 1)])[0].statistics()
  assert figures['classes'] == {'A': 1, 'B': 1, 'C': 0} and figures['imbalance'] is None


def test_duplicates_within_a_class():
  splits = splits_of([(b'1', 0), (b'2', 0), (b'3', 0), (b'4', 0)])
  assert same(splits, [0, 1, 2, 3], 7, 8, 7, 7) == [
      ('3', 'train', 'duplicate', 'the same contents as 1 (train)'),
      ('4', 'train', 'duplicate', 'the same contents as 1 (train)')]


def test_the_same_under_two_labels():
  splits = splits_of([(b'1', 0), (b'2', 2)])
  assert same(splits, [0, 1], 7, 7) == [
      ('1', 'train', 'under_several_labels', 'the same contents are in the classes A, C'),
      ('2', 'train', 'duplicate', 'the same contents as 1 (train)'),
      ('2', 'train', 'under_several_labels', 'the same contents are in the classes A, C')]


def test_the_same_in_train_and_eval():
  splits = splits_of([(b'1', 0), (b'2', 0)], [(b'3', 1), (b'4', 0)])
  assert same(splits, [0, 1, 2, 3], 7, 8, 9, 8) == [
      ('2', 'train', 'in_train_and_eval', 'the same contents as 4 (eval)'),
      ('4', 'eval', 'duplicate', 'the same contents as 2 (train)'),
      ('4', 'eval', 'in_train_and_eval', 'the same contents as 2 (train)')]


@pytest.mark.parametrize('numbers, contents', [([], []), ([2], [7]), ([0, 2], [7, 8])])
def test_nothing_is_the_same(numbers, contents):
  splits = splits_of([(b'1', 0), (b'2', 0), (b'3', 0)])
  assert same(splits, numbers, *contents) == []


def test_files_without_contents_are_passed_by():
  splits = splits_of([(b'1', 0), (b'2', 0), (b'3', 0)])
  assert [row[0] for row in same(splits, [0, 2], 7, 7)] == ['3']


def test_half_a_digest_is_not_enough():
  splits = splits_of([(b'1', 0), (b'2', 0)])
  for pair in ([[1, 2], [3, 2]], [[2, 1], [2, 3]]):
    assert not list(audit.find_duplicates(splits, np.arange(2), np.array(pair, np.uint64)))


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
