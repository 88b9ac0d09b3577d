"""`--mode=audit`, end to end, on good images with others among them."""

import io
import json
import os
import shutil
import sys

import pytest
from mode_runs import image_flags

BAD_IMAGES = {
    'broken_png_renamed.jpeg': {'cannot_be_decoded', 'wrong_extension'},
    'cmyk.jpeg': {'cmyk'},
    'exif_orientation_6.jpeg': {'exif_rotated'},
    'gif_renamed.jpeg': {'wrong_extension'},
    'jpeg_12bit.jpeg': {'cannot_be_decoded'},
    'png16_gray_renamed.jpeg': {'16_bit', 'wrong_extension'},
    'progressive.jpeg': set(),
    'text_renamed.jpeg': {'not_an_image'},
    'truncated_half.jpeg': {'truncated'},
    'zero_bytes.jpeg': {'empty'},
}


@pytest.fixture
def audit(run_well, image_folders, tmp_path):
  """Runs the audit on the folders; returns its outcome, and what it wrote."""
  def run(*arguments):
    done = run_well('--mode=audit', '--model_dir={}'.format(tmp_path / 'out'),
                    *(arguments or image_flags(image_folders, '*/*')))
    return done, json.loads((tmp_path / 'out' / 'audit.json').read_text())

  return run


def kinds_by_file(written):
  """Returns the kinds of the findings by the path of the file."""
  found = {}
  for finding in written['findings']:
    found.setdefault(finding['file'], set()).add(finding['kind'])
  return found


def test_nothing_found(audit, image_folders, tmp_path):
  done, written = audit()
  path = str(tmp_path / 'out' / 'audit.json')
  assert done.result == {'mode': 'audit', 'model_dir': str(tmp_path / 'out'), 'files': 28,
                         'findings': {}, 'undecodable': 0, 'audit': path}
  assert written['findings'] == [] and written['kinds'] == {} and written['files'] == 28
  train, test = written['splits']['train'], written['splits']['eval']
  assert train['classes'] == {'A': 12, 'B': 6} and test['classes'] == {'A': 5, 'B': 5}
  assert (train['imbalance'], test['imbalance'], train['grey'], train['colour']) == (2, 1, 18, 0)
  assert sum(size['files'] for size in train['sizes'] if size['width'] == 30) == 18
  assert written['bytes'] == train['bytes'] + test['bytes'] > 0
  assert 'no issues found' in done.out and path in done.out
  assert 'auditing train: 18 images' in done.err and 'images/sec' in done.err
  assert os.listdir(str(tmp_path / 'out')) == ['audit.json']
  done, written = audit(*image_flags(image_folders)[:2])
  assert done.result['files'] == 18 and list(written['splits']) == ['train']


def test_bad_images_among_good_ones(audit, image_folders, awkward_images, tmp_path):
  there, folder = sorted(awkward_images.iterdir()), image_folders / 'train' / 'B'
  assert {path.name for path in there} == set(BAD_IMAGES)
  for path in there:
    shutil.copy(str(path), str(folder))
  done, written = audit()
  assert kinds_by_file(written) == {
      str(folder / name): kinds for name, kinds in BAD_IMAGES.items() if kinds}
  assert len(written['findings']) == sum(map(len, BAD_IMAGES.values()))
  assert {(finding['split'], finding['label']) for finding in written['findings']} == {
      ('train', 'B')}
  assert done.result['undecodable'] == written['splits']['train']['undecodable'] == 5
  assert done.result['findings'] == written['kinds'] and written['kinds']['wrong_extension'] == 3
  reasons = {os.path.basename(finding['file']): finding['reason']
             for finding in written['findings'] if finding['kind'] == 'cannot_be_decoded'}
  assert '12-bit' in reasons['jpeg_12bit.jpeg']
  assert 'Invalid PNG data' in reasons['broken_png_renamed.jpeg']
  assert 'truncated: 1\n  {} - '.format(folder / 'truncated_half.jpeg') in done.out
  assert done.out.index('truncated: 1') < done.out.index('cmyk: 1')
  first = (tmp_path / 'out' / 'audit.json').read_bytes()
  audit()
  assert (tmp_path / 'out' / 'audit.json').read_bytes() == first


def test_the_same_contents(audit, image_folders):
  train, test = image_folders / 'train', image_folders / 'test'
  for source, copy in ((train / 'A' / '1.jpeg', train / 'A'), (train / 'A' / '2.jpeg', train / 'B'),
                       (train / 'A' / '3.jpeg', test / 'A')):
    shutil.copy(str(source), str(copy / 'copy.jpeg'))
  _, written = audit()
  assert kinds_by_file(written) == {str(path): kinds for path, kinds in (
      (train / 'A' / 'copy.jpeg', {'duplicate'}),
      (train / 'A' / '2.jpeg', {'under_several_labels'}),
      (train / 'B' / 'copy.jpeg', {'duplicate', 'under_several_labels'}),
      (train / 'A' / '3.jpeg', {'in_train_and_eval'}),
      (test / 'A' / 'copy.jpeg', {'duplicate', 'in_train_and_eval'}))}
  same = 'the same contents as {} ({})'.format
  assert [(finding['file'], finding['reason']) for finding in written['findings']
          if finding['kind'] != 'under_several_labels'] == [
              (str(test / 'A' / 'copy.jpeg'), same(train / 'A' / '3.jpeg', 'train')),
              (str(test / 'A' / 'copy.jpeg'), same(train / 'A' / '3.jpeg', 'train')),
              (str(train / 'A' / '3.jpeg'), same(test / 'A' / 'copy.jpeg', 'eval')),
              (str(train / 'A' / 'copy.jpeg'), same(train / 'A' / '1.jpeg', 'train')),
              (str(train / 'B' / 'copy.jpeg'), same(train / 'A' / '2.jpeg', 'train'))]


def test_unreadable_files_and_odd_names(audit, image_folders, monkeypatch):
  """On terminals with and without Unicode; more files than the table shows."""
  folder = image_folders / 'train' / 'A'
  shutil.rmtree(str(image_folders / 'test' / 'B'))
  (folder / 'link.jpeg').symlink_to(folder / 'nowhere')
  os.mkfifo(str(folder / 'pipe.jpeg'))
  names = [b'a "quoted" one.jpeg', b'a\nb.jpeg', b'a\xff.jpeg', 'aä.jpeg'.encode(),
           b'\x1b[31m.jpeg'] + [b'b%03d.jpeg' % number for number in range(17)]
  for name in names:
    with open(os.path.join(os.fsencode(str(folder)), name), 'wb'):
      pass
  expected = dict.fromkeys(names, ('empty', 'the file has no bytes'))
  expected.update({
      b'link.jpeg': ('unreadable', 'a broken link'),
      b'pipe.jpeg': ('unreadable', 'not a regular file')})
  for encoding in ('ascii', 'utf-8'):
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with monkeypatch.context() as patch:
      patch.setattr(sys, 'stdout', screen)
      _, written = audit()
    screen.flush()
    out = screen.buffer.getvalue().decode(encoding)
    assert {os.fsencode(os.path.basename(finding['file'])): (finding['kind'], finding['reason'])
            for finding in written['findings']} == expected
    assert (written['undecodable'], written['splits']['eval']['imbalance']) == (24, None)
    for shown in ('a\\nb.jpeg" - the', '/a\\udcff.jpeg" - the', '/\\u001b[31m.jpeg" - the',
                  '/a "quoted" one.jpeg - the', '  and 2 more files',
                  '/a\\xe4.jpeg' if encoding == 'ascii' else '/aä.jpeg',
                  'undefined, a class is empty', '  A         36  85.71%'):
      assert shown in out
    assert out.count(' - the file has no bytes\n') == 20 and 'b016' not in out
