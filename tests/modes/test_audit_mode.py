"""`--mode=audit`, end to end, on good images with others among them."""

import json
import os
import shutil
import sys

import pytest
from PIL import Image

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
def audit(run_program, image_folders, tmp_path):
  """Runs the audit on the folders; returns its outcome, and what it wrote."""
  def run(*more):
    arguments = more or ('--eval_pattern={}/test/*/*'.format(image_folders),)
    done = run_program('--mode=audit', '--dataset=image_folder',
                       '--train_pattern={}/train/*/*'.format(image_folders),
                       '--model_dir={}'.format(tmp_path / 'out'), *arguments)
    assert done.code == 0, done.err
    return done, json.loads((tmp_path / 'out' / 'audit.json').read_text())

  return run


def kinds(written, path):
  return {finding['kind'] for finding in written['findings'] if finding['file'] == str(path)}


def test_nothing_found(audit, image_folders, tmp_path):
  done, written = audit()
  path = str(tmp_path / 'out' / 'audit.json')
  assert done.result == {'mode': 'audit', 'model_dir': str(tmp_path / 'out'), 'files': 28,
                         'findings': {}, 'undecodable': 0, 'audit': path}
  assert written['findings'] == [] and written['kinds'] == {} and written['files'] == 28
  train, test = written['splits']['train'], written['splits']['eval']
  assert train['classes'] == {'A': 12, 'B': 6} and train['imbalance'] == 2
  assert test['classes'] == {'A': 5, 'B': 5} and test['imbalance'] == 1
  assert train['grey'] == 18 and train['colour'] == 0
  assert sum(size['files'] for size in train['sizes']) == 18
  assert all(size['width'] == 30 and 24 <= size['height'] < 33 for size in train['sizes'])
  assert written['bytes'] == train['bytes'] + test['bytes'] == sum(
      file.stat().st_size for file in image_folders.rglob('*.jpeg'))
  assert 'no issues found' in done.out and path in done.out
  assert 'auditing: 28 images' in done.err and 'images/sec' in done.err
  assert os.listdir(str(tmp_path / 'out')) == ['audit.json']


def test_one_split_only(audit):
  done, written = audit('--batch_size=4')
  assert done.result['files'] == 18 and list(written['splits']) == ['train']


def test_bad_images_among_good_ones(audit, image_folders, awkward_images):
  there = sorted(awkward_images.iterdir())
  assert {path.name for path in there} == set(BAD_IMAGES)
  for path in there:
    shutil.copy(str(path), str(image_folders / 'train' / 'B'))
  done, written = audit()
  found = {name: kinds(written, image_folders / 'train' / 'B' / name) for name in BAD_IMAGES}
  assert found == BAD_IMAGES
  assert len(written['findings']) == sum(map(len, BAD_IMAGES.values()))
  assert done.result['undecodable'] == written['splits']['train']['undecodable'] == 5
  reasons = {os.path.basename(finding['file']): finding['reason']
             for finding in written['findings'] if finding['kind'] == 'cannot_be_decoded'}
  assert '12-bit' in reasons['jpeg_12bit.jpeg']
  assert 'Invalid PNG data' in reasons['broken_png_renamed.jpeg']


def test_made_up_bad_images(audit, image_folders):
  good, folder = image_folders / 'train' / 'A' / '0.jpeg', image_folders / 'train' / 'B'
  (folder / 'cut.jpeg').write_bytes(good.read_bytes()[:-100])
  (folder / 'empty.jpeg').touch()
  (folder / 'empty too.jpeg').touch()
  (folder / 'text.jpeg').write_text('text')
  Image.new('CMYK', (9, 9)).save(str(folder / 'cmyk.jpeg'))
  done, written = audit()
  assert {os.path.basename(finding['file']): finding['kind']
          for finding in written['findings']} == {
              'cut.jpeg': 'truncated', 'empty.jpeg': 'empty', 'empty too.jpeg': 'empty',
              'text.jpeg': 'not_an_image', 'cmyk.jpeg': 'cmyk'}
  assert done.result['findings'] == written['kinds'] == {
      'truncated': 1, 'empty': 2, 'not_an_image': 1, 'cmyk': 1}
  assert done.result['undecodable'] == 4 and written['splits']['train']['colour'] == 1
  assert 'truncated: 1\n  {} - '.format(folder / 'cut.jpeg') in done.out
  assert done.out.index('truncated: 1') < done.out.index('cmyk: 1')


def test_the_same_contents(audit, image_folders):
  train, test = image_folders / 'train', image_folders / 'test'
  shutil.copy(str(train / 'A' / '1.jpeg'), str(train / 'A' / 'copy.jpeg'))
  shutil.copy(str(train / 'A' / '2.jpeg'), str(train / 'B' / 'copy.jpeg'))
  shutil.copy(str(train / 'A' / '3.jpeg'), str(test / 'A' / 'copy.jpeg'))
  _, written = audit()
  assert {(finding['file'], finding['kind']) for finding in written['findings']} == {
      (str(path), kind) for path, some in (
          (train / 'A' / 'copy.jpeg', ('duplicate',)),
          (train / 'A' / '2.jpeg', ('under_several_labels',)),
          (train / 'B' / 'copy.jpeg', ('duplicate', 'under_several_labels')),
          (train / 'A' / '3.jpeg', ('in_train_and_eval',)),
          (test / 'A' / 'copy.jpeg', ('duplicate', 'in_train_and_eval'))) for kind in some}


def test_unreadable(audit, image_folders):
  folder = image_folders / 'train' / 'A'
  (folder / 'link.jpeg').symlink_to(folder / 'nowhere')
  os.mkfifo(str(folder / 'pipe.jpeg'))
  done, written = audit()
  assert [(os.path.basename(finding['file']), finding['kind'], finding['reason'])
          for finding in written['findings']] == [
              ('link.jpeg', 'unreadable', 'a broken link'),
              ('pipe.jpeg', 'unreadable', 'not a regular file')]
  assert done.result['undecodable'] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read everything')
def test_no_permission(audit, image_folders):
  (image_folders / 'train' / 'A' / '0.jpeg').chmod(0)
  _, written = audit()
  assert [(finding['kind'], finding['reason']) for finding in written['findings']] == [
      ('unreadable', 'Permission denied')]


def test_odd_names(audit, image_folders):
  names = (b'a "quoted" one.jpeg', b'it\'s.jpeg', b'two\nlines.jpeg', b'\xff\xfe.jpeg')
  folder = os.fsencode(str(image_folders / 'train' / 'A'))
  for name in names:
    with open(os.path.join(folder, name), 'wb'):
      pass
  done, written = audit()
  assert {os.fsencode(finding['file']) for finding in written['findings']} == {
      os.path.join(folder, name) for name in names}
  listed = done.out.split('empty: 4\n')[1].splitlines()
  assert len([line for line in listed if line.endswith(' - the file has no bytes')]) == 4
  done.out.encode('utf-8')


def test_the_same_every_time(audit, image_folders, tmp_path):
  for number in range(9):
    (image_folders / 'train' / 'A' / 'empty {}.jpeg'.format(number)).touch()
  audit()
  first = (tmp_path / 'out' / 'audit.json').read_bytes()
  _, written = audit()
  assert (tmp_path / 'out' / 'audit.json').read_bytes() == first
  files = [finding['file'] for finding in written['findings']]
  assert files == sorted(files) and len(files) == 9


def fails(done, message):
  assert done.code == 2 and done.out == ''
  last = done.err.splitlines()[-1]
  assert last.startswith('error: ') and message in last
  return True


def test_a_data_set_of_other_files(run_program, tmp_path):
  done = run_program('--mode=audit', '--model_dir', tmp_path / 'out')
  assert fails(done, '--mode=audit requires a data set of image files or of images in TFRecords: '
                     '--dataset=fashion_mnist_sample: give --dataset=image_folder or tfrecord')
  assert not (tmp_path / 'out').exists()


def test_without_pillow(run_program, image_folders, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'PIL', None)
  done = run_program('--mode=audit', '--dataset=image_folder', '--model_dir', tmp_path / 'out',
                     '--train_pattern={}/train/*/*'.format(image_folders))
  assert fails(done, 'pip install Pillow')
  assert not (tmp_path / 'out').exists()


def test_oct2017(run_program, oct2017_dir, tmp_path):
  """Of each folder a few files, by links."""
  for split in ('train', 'val'):
    for folder in (oct2017_dir / split).iterdir():
      (tmp_path / 'data' / split / folder.name).mkdir(parents=True)
      for file in sorted(folder.iterdir())[:2]:
        (tmp_path / 'data' / split / folder.name / file.name).symlink_to(file)
  done = run_program('--mode=audit', '--dataset=oct2017', '--data_dir', tmp_path / 'data',
                     '--model_dir', tmp_path / 'out')
  assert done.code == 0, done.err
  assert done.result['files'] == 16 and done.result['findings'] == {}
  written = json.loads((tmp_path / 'out' / 'audit.json').read_text())
  assert written['splits']['eval']['classes'] == {'CNV': 2, 'DME': 2, 'DRUSEN': 2, 'NORMAL': 2}
