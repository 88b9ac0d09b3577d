"""`--mode=audit`, end to end, on good images with others among them."""

import io
import json
import os
import shutil
import sys

import pytest
from mode_runs import image_flags

# Of the images in `awkward_images`; another one is a progressive JPEG, which is fine.
BAD_IMAGES = [
    ('broken_png_renamed.jpeg', 'cannot_be_decoded'),
    ('broken_png_renamed.jpeg', 'wrong_extension'), ('cmyk.jpeg', 'cmyk'),
    ('exif_orientation_6.jpeg', 'exif_rotated'), ('gif_renamed.jpeg', 'wrong_extension'),
    ('jpeg_12bit.jpeg', 'cannot_be_decoded'), ('png16_gray_renamed.jpeg', '16_bit'),
    ('png16_gray_renamed.jpeg', 'wrong_extension'), ('text_renamed.jpeg', 'not_an_image'),
    ('truncated_half.jpeg', 'truncated'), ('zero_bytes.jpeg', 'empty')]


@pytest.fixture
def audit(run_well, image_folders, tmp_path):
  """Runs the audit on the folders; returns its outcome, and what it wrote."""
  def run(*arguments):
    done = run_well('--mode=audit', '--model_dir={}'.format(tmp_path / 'out'),
                    *(arguments or image_flags(image_folders, '*/*')))
    return done, json.loads((tmp_path / 'out' / 'audit.json').read_text())

  return run


def test_nothing_found(audit, image_folders, tmp_path):
  done, written = audit()
  path = str(tmp_path / 'out' / 'audit.json')
  assert done.result == {'mode': 'audit', 'model_dir': str(tmp_path / 'out'), 'files': 28,
                         'findings': {}, 'undecodable': 0, 'audit': path}
  assert written['findings'] == [] and written['kinds'] == {} and written['files'] == 28
  train, test = written['splits']['train'], written['splits']['eval']
  assert train['classes'] == {'A': 12, 'B': 6} and test['classes'] == {'A': 5, 'B': 5}
  assert (train['imbalance'], test['imbalance'], train['grey'], train['color']) == (2, 1, 18, 0)
  assert sum(size['files'] for size in train['sizes'] if size['width'] == 30) == 18
  assert written['bytes'] == train['bytes'] + test['bytes'] > 0
  assert '18 grey, 0 in color, 0 undecodable' in done.out
  assert 'no issues found' in done.out and path in done.out
  assert 'auditing train: 18 images' in done.err and 'images/sec\n  issues      none' in done.err
  assert os.listdir(str(tmp_path / 'out')) == ['audit.json']
  done, written = audit(*image_flags(image_folders)[:2])
  assert done.result['files'] == 18 and list(written['splits']) == ['train']


def test_bad_images_among_good_ones(audit, image_folders, awkward_images, tmp_path):
  folder = image_folders / 'train' / 'B'
  for path in awkward_images.iterdir():
    shutil.copy(str(path), str(folder))
  done, written = audit()
  assert [(finding['file'], finding['kind'], finding['split'], finding['label'])
          for finding in written['findings']] == [
              (str(folder / name), kind, 'train', 'B') for name, kind in BAD_IMAGES]
  assert done.result['undecodable'] == written['splits']['train']['undecodable'] == 5
  assert done.result['findings'] == written['kinds'] and written['kinds']['wrong_extension'] == 3
  reasons = [finding['reason'] for finding in written['findings']]
  assert '12-bit' in reasons[5] and 'Invalid PNG data' in reasons[0]
  assert 'truncated: 1\n  {} - '.format(folder / 'truncated_half.jpeg') in done.out
  assert done.out.index('truncated: 1') < done.out.index('cmyk: 1')
  first = (tmp_path / 'out' / 'audit.json').read_bytes()
  audit()
  assert (tmp_path / 'out' / 'audit.json').read_bytes() == first


def test_the_same_contents(audit, image_folders):
  a1, a2, a3 = (image_folders / 'train' / 'A' / name for name in ('1.jpeg', '2.jpeg', '3.jpeg'))
  copy_in_a, copy_in_b, copy_in_test = copies = [
      image_folders / folder / 'copy.jpeg' for folder in ('train/A', 'train/B', 'test/A')]
  for original, copy in zip((a1, a2, a3), copies):
    shutil.copy(str(original), str(copy))
  _, written = audit()
  same = 'the same contents as {} ({})'.format
  several = 'the same contents are in the classes A, B'
  assert [(finding['file'], finding['kind'], finding['reason'])
          for finding in written['findings']] == [(str(path), *rest) for path, *rest in (
              (copy_in_test, 'duplicate', same(a3, 'train')),
              (copy_in_test, 'in_train_and_eval', same(a3, 'train')),
              (a2, 'under_several_labels', several),
              (a3, 'in_train_and_eval', same(copy_in_test, 'eval')),
              (copy_in_a, 'duplicate', same(a1, 'train')),
              (copy_in_b, 'duplicate', same(a2, 'train')),
              (copy_in_b, 'under_several_labels', several))]


def test_the_same_contents_in_many_classes(audit, image_folders):
  for number in range(20):
    folder = image_folders / 'train' / 'C{:02d}'.format(number)
    folder.mkdir()
    shutil.copy(str(image_folders / 'train' / 'A' / '1.jpeg'), str(folder))
  _, written = audit()
  assert [finding['reason'] for finding in written['findings']
          if finding['kind'] == 'under_several_labels'] == [
              'the same contents are in the classes A, C00, C01, C02, C03, C04, C05, C06, C07, '
              'C08, ... (11 more)'] * 21


def test_unreadable_files_and_odd_names(audit, image_folders, monkeypatch):
  """On terminals with and without Unicode; more files than the table shows."""
  folder = image_folders / 'train' / 'A'
  shutil.rmtree(str(image_folders / 'test' / 'B'))
  (folder / 'link.jpeg').symlink_to(folder / 'nowhere')
  os.mkfifo(str(folder / 'pipe.jpeg'))
  names = ['a "quoted" one.jpeg', 'a\nb.jpeg', 'a\udcff.jpeg', os.fsdecode('aä.jpeg'.encode()),
           '\x1b[31m.jpeg', *map('b{:03d}.jpeg'.format, range(17))]
  for name in names:
    (folder / name).touch()
  expected = dict(dict.fromkeys(names, ('empty', 'the file has no bytes')), **{
      'link.jpeg': ('unreadable', 'a broken link'),
      'pipe.jpeg': ('unreadable', 'not a regular file')})
  for encoding in ('ascii', 'utf-8'):
    screen = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with monkeypatch.context() as patch:
      patch.setattr(sys, 'stdout', screen)
      _, written = audit()
    screen.flush()
    out = screen.buffer.getvalue().decode(encoding)
    assert {os.path.basename(finding['file']): (finding['kind'], finding['reason'])
            for finding in written['findings']} == expected
    assert (written['undecodable'], written['splits']['eval']['imbalance']) == (24, None)
    for shown in ('a\\nb.jpeg" - the', '/a\\udcff.jpeg" - the', '/\\u001b[31m.jpeg" - the',
                  '/a "quoted" one.jpeg - the', '  and 2 more files',
                  '/a\\xe4.jpeg' if encoding == 'ascii' else '/aä.jpeg',
                  'undefined, a class is empty', '  A         36  85.7 %'):
      assert shown in out
    assert out.count(' - the file has no bytes\n') == 20 and 'b016' not in out
