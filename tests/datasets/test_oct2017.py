"""oct2017: finds its folders in any layout, and downloads them from a local Kaggle server."""

import io
import itertools
import logging
import os
import shutil
import zipfile

import pytest
from test_kaggle_archive import API_PATH, forget_kaggle, kaggle_server

from estimator_train.datasets import oct2017, unpack
from estimator_train.errors import UserError

COUNTS = {'train': (3, 2, 1, 2), 'val': (1, 1, 1, 1), 'test': (2, 2, 2, 2)}
NUM_IMAGES = 20


def image(split, label, number):
  return '{}/{}/{}-{}.jpeg'.format(split, label, label, number), '{} {} {}'.format(
      split, label, number).encode() * 100


def images(counts=None):
  """Returns pairs of path and bytes, in the layout of the data set."""
  return [image(split, label, number) for split, numbers in (counts or COUNTS).items()
          for label, count in zip(oct2017.CLASS_NAMES, numbers) for number in range(count)]


def odd_archive(counts=None):
  """Returns the bytes of an archive of the published shape."""
  result = io.BytesIO()
  with zipfile.ZipFile(result, 'w') as file:
    for path, data in images(counts):
      file.writestr('OCT2017 /' + path, data)
    file.writestr('OCT2017 /.DS_Store', b'clutter')
    file.writestr('OCT2017 /train/._CNV', b'clutter')
    for path, data in images(counts):
      file.writestr('oct2017/OCT2017 /' + path, data)
      file.writestr('oct2017/__MACOSX/OCT2017 /{}/._{}'.format(*os.path.split(path)), b'clutter')
  return result.getvalue()


def make_copy(root, splits=('train', 'val', 'test'), labels=oct2017.CLASS_NAMES):
  for split, label in itertools.product(splits, labels):
    (root / split / label).mkdir(parents=True)
  return str(root)


def content(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


EXPECTED = {'OCT2017 /' + path: data for path, data in images()}


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  return caplog


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
  monkeypatch.setattr(oct2017, 'IMAGE_COUNTS', COUNTS)
  return tmp_path / 'data'


@pytest.fixture
def server(monkeypatch, tmp_path):
  with kaggle_server(monkeypatch, tmp_path / 'config', odd_archive()) as result:
    yield result


def test_published_counts():
  assert {split: sum(counts) for split, counts in oct2017.IMAGE_COUNTS.items()} == {
      'train': 83484, 'val': 32, 'test': 968}


@pytest.mark.parametrize('place', [
    '', 'OCT2017', 'OCT2017 ', 'oct2017/OCT2017 ', 'kermany2018/oct2017/OCT2017 ',
])
def test_find(tmp_path, place, log):
  root = make_copy(tmp_path / 'data' / place if place else tmp_path / 'data')
  assert oct2017.find_image_root(str(tmp_path / 'data')) == root
  assert not log.messages


@pytest.mark.parametrize('places, expected', [
    (('OCT2017 ', 'oct2017/OCT2017 '), 'OCT2017 '),
    (('a/b', 'z'), 'z'),
    (('OCT2017 ', 'OCT2017'), 'OCT2017'),
    (('b/OCT2017', 'a/OCT2017 '), 'a/OCT2017 '),
])
def test_find_among_copies(tmp_path, log, places, expected):
  roots = {place: make_copy(tmp_path / place) for place in places}
  chosen = roots.pop(expected)
  assert oct2017.find_image_root(str(tmp_path)) == chosen
  (ignored,) = roots.values()
  assert log.messages == ['using {!r}; ignoring another copy: {!r}'.format(chosen, ignored)]


@pytest.mark.parametrize('place', ['__MACOSX/OCT2017 ', '._OCT2017', '.DS_Store', '.trash/OCT2017',
                                   'a/b/c/d/OCT2017'])
def test_find_passes_by(tmp_path, place):
  make_copy(tmp_path / place)
  with pytest.raises(UserError, match='images of oct2017 are missing'):
    oct2017.find_image_root(str(tmp_path))


def test_find_wants_every_class(tmp_path):
  make_copy(tmp_path / 'a', labels=oct2017.CLASS_NAMES[:3])
  (tmp_path / 'a' / 'train' / 'NORMAL').write_text('no folder')
  root = make_copy(tmp_path / 'b' / 'c')
  assert oct2017.find_image_root(str(tmp_path)) == root


@pytest.mark.parametrize('name', ['empty', 'none'])
def test_find_nothing(tmp_path, name):
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError) as caught:
    oct2017.find_image_root(str(tmp_path / name))
  assert str(caught.value) == (
      'the images of oct2017 are missing: no folder in {0} has train/CNV, train/DME, train/DRUSEN, '
      'train/NORMAL: download them with --mode=download --dataset=oct2017 '
      '--data_dir={0}'.format(tmp_path / name))


def test_find_in_a_file(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot be read: .*file .Not a directory'):
    oct2017.find_image_root(str(tmp_path / 'file'))


def test_find_in_a_sample(log, oct2017_dir):
  assert oct2017.find_image_root(str(oct2017_dir)) == str(oct2017_dir)
  assert oct2017.eval_folder(str(oct2017_dir)) == str(oct2017_dir / 'val')


def test_eval_folder(tmp_path, log):
  root = make_copy(tmp_path / 'OCT2017 ')
  assert oct2017.eval_folder(root) == os.path.join(root, 'test')
  assert not log.messages
  shutil.rmtree(os.path.join(root, 'test'))
  assert oct2017.eval_folder(root) == os.path.join(root, 'val')
  assert log.messages == ['no test folder: evaluating on {!r}, which has few images'
                          .format(os.path.join(root, 'val'))]
  shutil.rmtree(os.path.join(root, 'val'))
  with pytest.raises(UserError, match="neither test nor val in '{}'".format(root)):
    oct2017.eval_folder(root)


def test_download(server, data_dir, log, capsys):
  size = sum(map(len, EXPECTED.values()))
  assert oct2017.download_images(str(data_dir)) == [('OCT2017 ', size, True)]
  assert content(data_dir) == EXPECTED and len(EXPECTED) == NUM_IMAGES
  assert sorted(os.listdir(str(data_dir))) == ['OCT2017 ']
  assert server.api_requests == [API_PATH + 'paultimothymooney/kermany2018']
  assert 'skipped macOS metadata (22), second copies (20)' in log.text
  assert not capsys.readouterr().out
  assert oct2017.find_image_root(str(data_dir)) == str(data_dir / 'OCT2017 ')


def test_second_call_does_nothing(server, data_dir, monkeypatch):
  first = oct2017.download_images(str(data_dir))
  monkeypatch.delenv('KAGGLE_KEY')
  forget_kaggle(monkeypatch)
  monkeypatch.setattr(os, 'makedirs', None)
  monkeypatch.setattr(oct2017, 'open_locked', None)
  assert oct2017.download_images(str(data_dir)) == [first[0]._replace(downloaded=False)]
  assert len(server.api_requests) == 1


def test_complete_copy_elsewhere_is_enough(server, data_dir):
  for path, data in images():
    file = data_dir / 'mine' / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
  assert oct2017.download_images(str(data_dir))[0].name == 'mine'
  assert not server.api_requests


def test_no_credentials(server, data_dir, monkeypatch):
  monkeypatch.delenv('KAGGLE_KEY')
  with pytest.raises(UserError, match='or download the archive of kaggle.com/datasets/'
                                      'paultimothymooney/kermany2018 to {}'.format(
                                          data_dir / 'kermany2018.zip')):
    oct2017.download_images(str(data_dir))
  assert not content(data_dir) and not server.api_requests


def test_own_archive_needs_no_credentials_and_stays(server, data_dir, monkeypatch, log):
  monkeypatch.delenv('KAGGLE_KEY')
  data_dir.mkdir()
  archive = data_dir / 'kermany2018.zip'
  made = odd_archive()  # Its members have the time when it is made.
  archive.write_bytes(made)
  assert oct2017.download_images(str(data_dir))[0].downloaded
  assert content(data_dir) == {'kermany2018.zip': made, **EXPECTED}
  assert log.messages[-1] == '{} has been unpacked and can be removed'.format(archive)
  assert not server.api_requests


def test_cut_and_resumed(server, data_dir):
  server.cuts = [0] * 5
  with pytest.raises(UserError, match='tried 5 times'):
    oct2017.download_images(str(data_dir))
  (data_dir / 'kermany2018.zip.part').write_bytes(odd_archive()[:1000])
  oct2017.download_images(str(data_dir))
  assert server.ranges[-1] == 'bytes=1000-'
  assert content(data_dir) == EXPECTED


def test_interrupted_unpacking_is_completed(server, data_dir, monkeypatch):
  write, seen = unpack._write_member, []

  def interrupted(opened, info, path):
    seen.append(path)
    if len(seen) == 13:
      raise KeyboardInterrupt
    write(opened, info, path)

  with monkeypatch.context() as patch:
    patch.setattr(unpack, '_write_member', interrupted)
    with pytest.raises(KeyboardInterrupt):
      oct2017.download_images(str(data_dir))
  assert len(content(data_dir)) == 12 + 1 and (data_dir / 'kermany2018.zip').exists()
  assert oct2017.download_images(str(data_dir))[0].downloaded
  assert len(server.api_requests) == 1
  (data_dir / 'kermany2018.zip').unlink()
  assert content(data_dir) == EXPECTED


def test_disk_too_small(server, data_dir, monkeypatch):
  needed = oct2017.ARCHIVE_BYTES + oct2017.IMAGE_BYTES
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=needed - 1))
  message = '{:,} bytes free, {:,} are required'.format(needed - 1, needed)
  with pytest.raises(UserError, match=message):
    oct2017.download_images(str(data_dir))
  assert not content(data_dir) and not server.api_requests
  present = data_dir / 'OCT2017 ' / 'val' / 'CNV' / 'CNV-0.jpeg'
  present.parent.mkdir(parents=True)
  present.write_bytes(dict(images())['val/CNV/CNV-0.jpeg'])
  oct2017.download_images(str(data_dir))  # What is there counts.
  assert content(data_dir) == EXPECTED


def test_wrong_counts(server, data_dir):
  server.body = odd_archive({**COUNTS, 'train': (3, 2, 2, 1)})
  with pytest.raises(UserError) as caught:
    oct2017.download_images(str(data_dir))
  assert str(caught.value) == (
      "the images of oct2017 are incomplete: '{0}/OCT2017 ' (train/DRUSEN: 2 of 1, "
      'train/NORMAL: 1 of 2): remove that folder and {0}/kermany2018.zip, and try again'.format(
          data_dir))
  assert sorted(os.listdir(str(data_dir))) == ['OCT2017 ', 'kermany2018.zip']


def test_archive_of_something_else(server, data_dir):
  body = io.BytesIO()
  with zipfile.ZipFile(body, 'w') as file:
    file.writestr('README', 'moved')
  server.body = body.getvalue()
  with pytest.raises(UserError, match='are incomplete: .* .train/CNV: 0 of 3, '):
    oct2017.download_images(str(data_dir))


def test_damaged_archive(server, data_dir):
  server.body = odd_archive().replace(b'train CNV 1', b'train CNV 9')
  with pytest.raises(UserError, match='damaged, .*{}/kermany2018.zip .*remove it and dow'.format(
      data_dir)):
    oct2017.download_images(str(data_dir))


@pytest.mark.parametrize('place', ['mine', '.'])
def test_incomplete_copy_elsewhere_costs_no_download(server, data_dir, place):
  make_copy(data_dir / place)
  with pytest.raises(UserError, match='train/CNV: 0 of 3, .*remove or complete that folder'):
    oct2017.download_images(str(data_dir))
  assert not server.api_requests


def test_incomplete_without_archive_is_completed(server, data_dir):
  make_copy(data_dir / 'OCT2017 ')
  oct2017.download_images(str(data_dir))
  assert content(data_dir) == EXPECTED


def test_data_dir_that_cannot_be(server, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot store the data set: {}/file'.format(tmp_path)):
    oct2017.download_images(str(tmp_path / 'file' / 'below'))
