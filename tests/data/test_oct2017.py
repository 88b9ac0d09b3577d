"""oct2017: finds its folders in any layout, and downloads them from a local Kaggle server."""

import io
import logging
import os
import shutil
import zipfile

import file_server
import pytest
from conftest import contents_of
from file_server import STORAGE_PATH, ranged, write_files

from estimator_train.data import oct2017
from estimator_train.errors import UserError

COUNTS = {'train': (3, 2, 1, 2), 'val': (1, 1, 1, 1), 'test': (2, 2, 2, 2)}
ARCHIVE = 'kermany2018.zip'


def images(root, counts=COUNTS):
  """Returns the bytes of the images by path, in the layout of the data set below a root."""
  return {'{}{}/{}/{}-{}.jpeg'.format(root, split, label, label, number):
          '{} {} {}'.format(split, label, number).encode() * 100
          for split, numbers in counts.items()
          for label, count in zip(oct2017.CLASS_NAMES, numbers) for number in range(count)}


def archive_of(*contents):
  result = io.BytesIO()
  with zipfile.ZipFile(result, 'w') as file:
    for files in contents:
      for path, data in files.items():
        file.writestr(path, data)
  return result.getvalue()


def make_copy(root, labels=oct2017.CLASS_NAMES):
  write_files(root, {'{}/{}/.x'.format(split, label): b'' for split in COUNTS for label in labels})
  return str(root)


EXPECTED = images('OCT2017 /')
ODD_ARCHIVE = archive_of(EXPECTED, images('oct2017/OCT2017 /'), dict.fromkeys([
    'OCT2017 /.DS_Store', 'OCT2017 /train/._CNV',  # As published.
    'oct2017/__MACOSX/OCT2017 /val/CNV/._CNV-0.jpeg'], b'clutter'))


@pytest.fixture
def log(caplog):
  caplog.set_level(logging.INFO, 'estimator_train')
  return caplog


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
  assert sum(map(sum, oct2017.IMAGE_COUNTS.values())) == 83484 + 32 + 968  # As published.
  monkeypatch.setattr(oct2017, 'IMAGE_COUNTS', COUNTS)
  monkeypatch.setattr(oct2017, 'ARCHIVE_BYTES', 10 ** 7)
  return tmp_path / 'data'


@pytest.fixture
def server(monkeypatch, tmp_path):
  with file_server.kaggle(monkeypatch, tmp_path / 'config', oct2017.KAGGLE_DATASET,
                          ODD_ARCHIVE) as server:
    yield server


@pytest.mark.parametrize('places', [
    ['.'], ['kermany2018/oct2017/OCT2017 '], ['z', 'a/b'], ['a/OCT2017 ', 'b/OCT2017']])
def test_find(tmp_path, places):
  """The highest level comes first, then the first name."""
  make_copy(tmp_path / 'half', labels=oct2017.CLASS_NAMES[:3])
  (tmp_path / 'half' / 'train' / 'NORMAL').write_text('no folder')
  copies = [make_copy(tmp_path / place) for place in places]
  assert oct2017.find_image_root(str(tmp_path)) == copies[0]


def test_what_is_not_found(tmp_path):
  for place in ('__MACOSX/OCT2017 ', '.trash/OCT2017', 'a/b/c/d/OCT2017'):
    make_copy(tmp_path / 'data' / place)
  for name in ('data', 'none'):
    with pytest.raises(UserError, match='no folder in {0} has train/CNV, .*: download them with '
                       '--mode=download --dataset=oct2017 --data_dir={0}$'.format(tmp_path / name)):
      oct2017.find_image_root(str(tmp_path / name))


def test_eval_folder(tmp_path, log):
  root = make_copy(tmp_path / 'OCT2017 ')
  for name, messages in (('test', []), ('val', ['no test folder: evaluating on {!r}, which has few '
                                                'images'.format(os.path.join(root, 'val'))])):
    assert oct2017.eval_folder(root) == os.path.join(root, name) and log.messages == messages
    shutil.rmtree(os.path.join(root, name))
  with pytest.raises(UserError, match="neither test nor val in '{}'".format(root)):
    oct2017.eval_folder(root)


def test_download_once(server, data_dir, capsys, monkeypatch):
  size = sum(map(len, EXPECTED.values()))
  assert oct2017.download_images(str(data_dir)) == [('OCT2017 ', size, True)]
  assert contents_of(data_dir) == EXPECTED and os.listdir(str(data_dir)) == ['OCT2017 ']
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  monkeypatch.setattr(os, 'makedirs', None)
  monkeypatch.setattr(oct2017, 'open_locked', None)
  assert oct2017.download_images(str(data_dir)) == [('OCT2017 ', size, False)]
  assert len(server.requests) == 2 and not capsys.readouterr().out


def test_two_at_once_download_once(server, data_dir, log):
  server.answers[STORAGE_PATH] = [file_server.once_another_waits(ranged(ODD_ARCHIVE))]
  results = file_server.call_at_once(2, lambda: oct2017.download_images(str(data_dir))[0])
  assert sorted(result.downloaded for result in results) == [False, True]
  assert len(server.requests) == 2 and os.listdir(str(data_dir)) == ['OCT2017 ']


@pytest.mark.parametrize('root', ['OCT2017 /', 'kermany/OCT2017/', ''])
def test_own_archive_needs_no_credentials_and_stays(server, data_dir, monkeypatch, caplog, root):
  monkeypatch.delenv('KAGGLE_KEY')
  with pytest.raises(UserError, match='or download the archive of .* to .*/' + ARCHIVE):
    oct2017.download_images(str(data_dir))
  archive = archive_of(images(root), dict.fromkeys(['README', '__MACOSX/train/CNV/._x'], b''))
  write_files(data_dir, {ARCHIVE: archive})
  caplog.set_level(logging.INFO, 'estimator_train')
  assert oct2017.download_images(str(data_dir))[0].downloaded
  found = contents_of(data_dir)
  assert found.pop(ARCHIVE) == archive and not server.requests and found.items() >= EXPECTED.items()
  assert caplog.messages[-1].endswith('has been unpacked and can be removed')


@pytest.mark.parametrize('body, message', [
    (archive_of(images('OCT2017 /', {**COUNTS, 'train': (3, 2, 2, 1)})),
     'train/DRUSEN: 2 of 1, train/NORMAL: 1 of 2.: remove it, and try again'),
    (archive_of({'README': b'moved'}), '{0}/kermany2018.zip. .train/CNV: 0 of 3, ')],
                         ids=['counts', 'another'])
def test_wrong_archives(server, data_dir, body, message):
  server.answers[STORAGE_PATH] = [ranged(body)]
  with pytest.raises(UserError, match=message.format(data_dir)):
    oct2017.download_images(str(data_dir))
  assert (data_dir / ARCHIVE).exists() and not (data_dir / 'OCT2017 ').exists()


def test_what_costs_no_download(server, data_dir, tmp_path):
  write_files(data_dir, {'OCT2017 /val/CNV/CNV-0.jpeg': b'half'})  # Not found, but in the way.
  for place in (None, 'mine', '.'):
    if place:
      make_copy(data_dir / place)
    with pytest.raises(UserError, match='train/CNV: 0 of 3, .*remove or complete that folder'):
      oct2017.download_images(str(data_dir))
  shutil.rmtree(str(data_dir))
  write_files(data_dir, images('mine/'))
  assert not oct2017.download_images(str(data_dir))[0].downloaded and not server.requests
