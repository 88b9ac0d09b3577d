"""The statistics of an audit, which files are the same, and the table; see test_audit_mode.py."""

import io
import json
import sys

import numpy as np
import pytest

from estimator_train.reports import audit
from estimator_train.settings import groups


def split_of(names, classes=None, name='train'):
  return audit.AuditedSplit(name, names, np.array(classes or [0] * len(names), int),
                            ('A', 'B', 'C'))


def test_statistics():
  split = split_of([b'x'] * 7, [0, 0, 0, 1, 1, 2, -1])
  for shape in ((20, 30, 1), (20, 30, 3), (9, 9, 2), (20, 30, 1), (20, 30, 4), None):
    split.add_file(100, shape)
  statistics = split.statistics()
  assert [tuple(size.values()) for size in statistics.pop('sizes')] == [
      (20, 30, 1, 2), (9, 9, 2, 1), (20, 30, 3, 1), (20, 30, 4, 1)]
  assert statistics == {'files': 7, 'bytes': 600, 'undecodable': 1, 'imbalance': 3., 'grey': 3,
                        'classes': {'A': 3, 'B': 2, 'C': 1}, 'colour': 2}
  assert split_of([b'1', b'2'], [0, 1]).statistics()['imbalance'] is None


def test_files_with_the_same_contents():
  splits = [split_of([b'1', b'2', b'3'], [0, 2, 0]), split_of([b'4', b'5'], [0, 1], 'eval')]
  same = '{} the same contents as {}'.format
  labels = 'under_several_labels the same contents are in the classes A, C'
  for positions, contents, expected in (
      ([], [], []), ([2], [7], []), ([0, 2], [7, 8], []),
      ([0, 2], [7, 7], ['3 ' + same('duplicate', '1 (train)')]),
      ([0, 1], [7, 7], ['1 ' + labels, '2 ' + same('duplicate', '1 (train)'), '2 ' + labels]),
      ([0, 1, 2, 3], [8, 9, 7, 7], ['3 ' + same('in_train_and_eval', '4 (eval)'),
                                    '4 ' + same('duplicate', '3 (train)'),
                                    '4 ' + same('in_train_and_eval', '3 (train)')])):
    # Half a digest is not enough.
    for other, wanted in (([1] * len(contents), expected), (range(len(contents)), [])):
      for halves in ((other, contents), (contents, other)):
        found = audit.find_duplicates(splits, np.array(positions, int), np.array(
            halves, np.uint64).T)
        assert sorted(' '.join((issue.file, issue.kind, issue.reason)) for issue in found) == wanted


@pytest.mark.parametrize('encoding', ['ascii', 'utf-8'])
def test_the_table_on_any_terminal(tmp_path, monkeypatch, encoding):
  names = [b'0\nb.jpeg', b'0\xff.jpeg', '0ä.jpeg'.encode(), b'\x1b[31m.jpeg', b'"\' .jpeg'] + [
      b'1%03d' % number for number in range(17)]
  split, screen = split_of(names), io.TextIOWrapper(io.BytesIO(), encoding=encoding)
  monkeypatch.setattr(sys, 'stdout', screen)
  issues = [split.make_issue(number, 'cmyk', 'why') for number in reversed(range(len(names)))]
  result = audit.write_audit_report(groups.Run('audit', str(tmp_path)), groups.Data(
      'image_folder', train_pattern='*'), [split], issues)
  screen.flush()
  out = screen.buffer.getvalue().decode(encoding)
  for shown in ('"0\\nb.jpeg" - why', '"0\\udcff.jpeg" - why', '"\\u001b[31m.jpeg" - why',
                '  "\' .jpeg - why', '0\\xe4.jpeg' if encoding == 'ascii' else '0ä.jpeg',
                '  1014 - why\n  and 2 more files', '  A         22  100.00%',
                'undefined, a class is empty'):
    assert shown in out
  assert '1015' not in out
  written = json.loads((tmp_path / 'audit.json').read_text())
  found = [finding['file'].encode('utf-8', 'surrogateescape') for finding in written['findings']]
  assert set(found) == set(names) and result['findings'] == written['kinds'] == {'cmyk': 22}
