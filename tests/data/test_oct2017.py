"""oct2017: finds its folders in any layout, and downloads them from a local Kaggle server."""

import logging
import os
import shutil
from concurrent import futures

import file_server
import pytest
from conftest import contents_of, wait_until
from file_server import STORAGE, ranged, write_files
from test_unpacking import COUNTS, FILES, make_archive

from estimator_train.data import oct2017
from estimator_train.errors import UserError

ARCHIVE = 'kermany2018.zip'
INCOMPLETE = {path: FILES[path] for path in FILES if path != 'val/NORMAL/NORMAL-0.jpeg'}


def archive_of(folder, files=FILES):
  with open(make_archive(folder, files, prefix='OCT2017 /'), 'rb') as file:
    return file.read()


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
  with file_server.kaggle(monkeypatch, tmp_path / 'config') as server:
    server.answers[STORAGE] = [ranged(archive_of(tmp_path))]
    yield server


@pytest.mark.parametrize('places', [
    ['.'], ['kermany2018/oct2017/OCT2017 ', '__MACOSX/OCT2017 ', '.trash/OCT2017'], ['z', 'a/b'],
    ['a/OCT2017 ', 'b/OCT2017']])
def test_find(tmp_path, places):
  """The highest level comes first, then the first name."""
  write_files(tmp_path / 'half', {path: b'' for path in FILES if 'NORMAL' not in path})
  (tmp_path / 'half' / 'train' / 'NORMAL').write_text('no folder')
  for place in places:
    write_files(tmp_path / place, FILES)
  assert oct2017.find_image_root(str(tmp_path)) == os.path.normpath(str(tmp_path / places[0]))


def test_what_is_not_found(tmp_path):
  write_files(tmp_path / 'a' / 'b' / 'c' / 'OCT2017', FILES)
  for folder in (tmp_path, tmp_path / 'none'):
    with pytest.raises(UserError, match='no folder in {0} has train/CNV, .*: download them with '
                       '--mode=download --dataset=oct2017 --data_dir={0}$'.format(folder)):
      oct2017.find_image_root(str(folder))


def test_eval_folder(tmp_path, log):
  write_files(tmp_path, FILES)
  for name, messages in (('test', []), ('val', ['no test folder: evaluating on {!r}, which has few '
                                                'images'.format(str(tmp_path / 'val'))])):
    assert oct2017.find_test_folder(str(tmp_path)) == str(tmp_path / name)
    assert log.messages == messages
    shutil.rmtree(str(tmp_path / name))
  with pytest.raises(UserError, match="neither test nor val in '{}'".format(tmp_path)):
    oct2017.find_test_folder(str(tmp_path))


def test_two_at_once_download_once(server, data_dir, tmp_path, log, capsys, monkeypatch):
  """A third call, with the images there, needs no key and no right to write."""
  def answer(*given):
    wait_until(lambda: 'waiting for another process' in log.text, file_server.DEADLINE_SECS)
    ranged(archive_of(tmp_path))(*given)

  server.answers[STORAGE] = [answer]
  with futures.ThreadPoolExecutor(2) as threads:  # Locks of files are between open files.
    results = threads.map(oct2017.download_images, 2 * [str(data_dir)])
  there, downloaded = ([('OCT2017 ', sum(map(len, FILES.values())), new)] for new in (False, True))
  assert sorted(results) == [there, downloaded]
  assert os.listdir(str(data_dir)) == ['OCT2017 ']
  assert contents_of(data_dir / 'OCT2017 ') == FILES
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  monkeypatch.setattr(os, 'makedirs', None)
  monkeypatch.setattr(oct2017, 'open_locked', None)
  assert oct2017.download_images(str(data_dir)) == there
  assert len(server.requests) == 2 and not capsys.readouterr().out


def test_a_wrong_archive_and_one_of_the_user(server, data_dir, tmp_path, monkeypatch, log):
  """Both stay; the one of the user needs no credentials."""
  server.answers[STORAGE] = [ranged(archive_of(tmp_path, INCOMPLETE))]
  with pytest.raises(UserError, match='val/NORMAL: 0 of 1.: remove it, and try again'):
    oct2017.download_images(str(data_dir))
  assert (data_dir / ARCHIVE).exists() and not (data_dir / 'OCT2017 ').exists()
  (data_dir / ARCHIVE).unlink()
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  with pytest.raises(UserError, match='or download the archive of .* to .*/' + ARCHIVE):
    oct2017.download_images(str(data_dir))
  write_files(data_dir, {ARCHIVE: archive_of(tmp_path)})
  assert oct2017.download_images(str(data_dir))[0].downloaded and len(server.requests) == 2
  assert (data_dir / ARCHIVE).exists() and contents_of(data_dir / 'OCT2017 ') == FILES
  assert log.messages[-1].endswith('has been unpacked and can be removed')


def test_what_costs_no_download(server, data_dir):
  in_the_way = {'OCT2017 /val/CNV/CNV-0.jpeg': b'half'}  # Not found as a copy of the images.
  for place, files in (('.', in_the_way), ('mine', INCOMPLETE), ('.', INCOMPLETE)):
    write_files(data_dir / place, files)
    with pytest.raises(UserError, match='val/NORMAL: 0 of 1.*remove or complete that folder'):
      oct2017.download_images(str(data_dir))
  shutil.rmtree(str(data_dir))
  write_files(data_dir / 'mine', FILES)
  assert not oct2017.download_images(str(data_dir))[0].downloaded and not server.requests
