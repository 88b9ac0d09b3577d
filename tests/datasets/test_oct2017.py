"""oct2017: finds its folders in any layout, and downloads them from a local Kaggle server."""

import io
import itertools
import logging
import os
import shutil
import zipfile

import file_server
import pytest
from file_server import STORAGE_PATH, ranged

from estimator_train.datasets import oct2017, unpack
from estimator_train.errors import UserError

COUNTS = {'train': (3, 2, 1, 2), 'val': (1, 1, 1, 1), 'test': (2, 2, 2, 2)}
ARCHIVE = 'kermany2018.zip'


def images(counts=None):
  """Returns the bytes of the images by path, in the layout of the data set."""
  return {'{}/{}/{}-{}.jpeg'.format(split, label, label, number):
          '{} {} {}'.format(split, label, number).encode() * 100
          for split, numbers in (counts or COUNTS).items()
          for label, count in zip(oct2017.CLASS_NAMES, numbers) for number in range(count)}


def archive_of(files):
  result = io.BytesIO()
  with zipfile.ZipFile(result, 'w') as file:
    for path, data in files.items():
      file.writestr(path, data)
  return result.getvalue()


def odd_archive(counts=None):
  """Returns the bytes of an archive of the published shape."""
  files = {'OCT2017 /' + path: data for path, data in images(counts).items()}
  clutter = {'oct2017/__MACOSX/OCT2017 /{}/._{}'.format(*os.path.split(path)): b'clutter'
             for path in images(counts)}
  return archive_of(dict(files, **{'oct2017/' + path: data for path, data in files.items()},
                         **{'OCT2017 /.DS_Store': b'clutter', 'OCT2017 /train/._CNV': b'clutter'},
                         **clutter))


def make_copy(root, labels=oct2017.CLASS_NAMES):
  for split, label in itertools.product(('train', 'val', 'test'), labels):
    (root / split / label).mkdir(parents=True)
  return str(root)


def write(folder, files):
  for path, data in files.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


def content(folder):
  return {str(path.relative_to(folder)): path.read_bytes()
          for path in folder.rglob('*') if path.is_file()}


EXPECTED = {'OCT2017 /' + path: data for path, data in images().items()}


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
  with file_server.kaggle(monkeypatch, tmp_path / 'config', oct2017.KAGGLE_DATASET,
                          odd_archive()) as server:
    yield server


def test_published_counts():
  assert {split: sum(counts) for split, counts in oct2017.IMAGE_COUNTS.items()} == {
      'train': 83484, 'val': 32, 'test': 968}


@pytest.mark.parametrize('places, expected', [
    (['.'], '.'), (['OCT2017'], 'OCT2017'), (['kermany2018/oct2017/OCT2017 '], None),
    (['OCT2017 ', 'oct2017/OCT2017 '], 'OCT2017 '), (['a/b', 'z'], 'z'),
    (['OCT2017 ', 'OCT2017'], 'OCT2017'), (['b/OCT2017', 'a/OCT2017 '], 'a/OCT2017 ')])
def test_find(tmp_path, log, places, expected):
  """The highest level comes first, then the first name."""
  make_copy(tmp_path / 'half', labels=oct2017.CLASS_NAMES[:3])
  (tmp_path / 'half' / 'train' / 'NORMAL').write_text('no folder')
  roots = {place: make_copy(tmp_path / place) for place in places}
  chosen = roots.pop(expected or places[0])
  assert oct2017.find_image_root(str(tmp_path)) == chosen
  assert log.messages == ['using {!r}; ignoring another copy: {!r}'.format(chosen, ignored)
                          for ignored in roots.values()]


@pytest.mark.parametrize('place', ['__MACOSX/OCT2017 ', '._OCT2017', '.DS_Store', '.trash/OCT2017',
                                   'a/b/c/d/OCT2017', None])
def test_what_is_not_found(tmp_path, place):
  if place:
    make_copy(tmp_path / 'data' / place)
  with pytest.raises(UserError) as caught:
    oct2017.find_image_root(str(tmp_path / 'data'))
  assert str(caught.value) == (
      'the images of oct2017 are missing: no folder in {0} has train/CNV, train/DME, train/DRUSEN, '
      'train/NORMAL: download them with --mode=download --dataset=oct2017 '
      '--data_dir={0}'.format(tmp_path / 'data'))
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot be read: .*file .Not a directory'):
    oct2017.find_image_root(str(tmp_path / 'file'))


def test_eval_folder(tmp_path, log, oct2017_dir):
  assert oct2017.find_image_root(str(oct2017_dir)) == str(oct2017_dir)
  assert oct2017.eval_folder(str(oct2017_dir)) == str(oct2017_dir / 'val')
  log.clear()
  root = make_copy(tmp_path / 'OCT2017 ')
  assert oct2017.eval_folder(root) == os.path.join(root, 'test') and not log.messages
  shutil.rmtree(os.path.join(root, 'test'))
  assert oct2017.eval_folder(root) == os.path.join(root, 'val')
  assert log.messages == ['no test folder: evaluating on {!r}, which has few images'
                          .format(os.path.join(root, 'val'))]
  shutil.rmtree(os.path.join(root, 'val'))
  with pytest.raises(UserError, match="neither test nor val in '{}'".format(root)):
    oct2017.eval_folder(root)


def test_download_once(server, data_dir, log, capsys, monkeypatch):
  size = sum(map(len, EXPECTED.values()))
  assert oct2017.download_images(str(data_dir)) == [('OCT2017 ', size, True)]
  assert content(data_dir) == EXPECTED and os.listdir(str(data_dir)) == ['OCT2017 ']
  assert 'skipped macOS metadata (22), second copies (20)' in log.text
  assert not capsys.readouterr().out
  assert oct2017.find_image_root(str(data_dir)) == str(data_dir / 'OCT2017 ')
  monkeypatch.delenv('KAGGLE_KEY')
  file_server.forget_kaggle(monkeypatch)
  monkeypatch.setattr(os, 'makedirs', None)
  monkeypatch.setattr(oct2017, 'open_locked', None)
  assert oct2017.download_images(str(data_dir)) == [('OCT2017 ', size, False)]
  assert len(server.requests) == 2


@pytest.mark.parametrize('present, num_requests', [
    ({'mine/' + path: data for path, data in images().items()}, 0),
    ({'OCT2017 /val/CNV/CNV-0.jpeg': images()['val/CNV/CNV-0.jpeg']}, 2),
    ({'OCT2017 /{}/x.jpeg'.format(label): b'' for label in oct2017.CLASS_NAMES}, 2),
    ({ARCHIVE + '.part': odd_archive()[:1000]}, 2)], ids=['copy', 'file', 'folders', 'part'])
def test_what_is_there_counts(server, data_dir, present, num_requests):
  write(data_dir, present)
  server.answers[STORAGE_PATH] = [ranged(odd_archive())]
  result, = oct2017.download_images(str(data_dir))
  assert len(server.requests) == num_requests and result.downloaded == bool(num_requests)
  assert len(content(data_dir)) >= len(EXPECTED) and not (data_dir / ARCHIVE).exists()
  assert [start for path, start in server.requests if path == STORAGE_PATH] == (
      [1000 if ARCHIVE + '.part' in present else None] if num_requests else [])


def test_own_archive_needs_no_credentials_and_stays(server, data_dir, monkeypatch, log):
  monkeypatch.delenv('KAGGLE_KEY')
  with pytest.raises(UserError, match='or download the archive of kaggle.com/datasets/{} to {}'
                     .format(oct2017.KAGGLE_DATASET, data_dir / ARCHIVE)):
    oct2017.download_images(str(data_dir))
  assert not content(data_dir)
  made = odd_archive()  # Its members have the time when it is made.
  write(data_dir, {ARCHIVE: made})
  assert oct2017.download_images(str(data_dir))[0].downloaded
  assert content(data_dir) == {ARCHIVE: made, **EXPECTED} and not server.requests
  assert log.messages[-1] == '{} has been unpacked and can be removed'.format(data_dir / ARCHIVE)


def test_interrupted_unpacking_is_completed(server, data_dir, monkeypatch):
  write_member, seen = unpack._write_member, []

  def interrupted(opened, info, path):
    seen.append(path)
    if len(seen) == 13:
      raise KeyboardInterrupt
    write_member(opened, info, path)

  with monkeypatch.context() as patch:
    patch.setattr(unpack, '_write_member', interrupted)
    with pytest.raises(KeyboardInterrupt):
      oct2017.download_images(str(data_dir))
  assert len(content(data_dir)) == 12 + 1 and (data_dir / ARCHIVE).exists()
  assert oct2017.download_images(str(data_dir))[0].downloaded and len(server.requests) == 2
  (data_dir / ARCHIVE).unlink()
  assert content(data_dir) == EXPECTED


def test_disk_too_small(server, data_dir, monkeypatch):
  needed = oct2017.ARCHIVE_BYTES + oct2017.IMAGE_BYTES
  usage = shutil.disk_usage('/')
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage._replace(free=needed - 1))
  with pytest.raises(UserError, match='{:,} bytes free, {:,} are required'.format(
      needed - 1, needed)):
    oct2017.download_images(str(data_dir))
  assert not content(data_dir) and not server.requests
  write(data_dir, {'OCT2017 /val/CNV/CNV-0.jpeg': images()['val/CNV/CNV-0.jpeg']})
  oct2017.download_images(str(data_dir))  # What is there counts.
  assert content(data_dir) == EXPECTED


@pytest.mark.parametrize('body, message', [
    (odd_archive({**COUNTS, 'train': (3, 2, 2, 1)}),
     "the images of oct2017 are incomplete: '{0}/OCT2017 ' .train/DRUSEN: 2 of 1, train/NORMAL: 1 of "
     '2.: remove that folder and {0}/kermany2018.zip, and try again$'),
    (archive_of({'README': b'moved'}), 'are incomplete: .* .train/CNV: 0 of 3, '),
    (odd_archive().replace(b'train CNV 1', b'train CNV 9'),
     'damaged, .*{0}/kermany2018.zip .*remove it and dow')],
                         ids=['counts', 'another', 'damaged'])
def test_wrong_archives(server, data_dir, body, message):
  server.answers[STORAGE_PATH] = [ranged(body)]
  with pytest.raises(UserError, match=message.format(data_dir)):
    oct2017.download_images(str(data_dir))
  assert (data_dir / ARCHIVE).exists() and not (data_dir / (ARCHIVE + '.lock')).exists()


@pytest.mark.parametrize('place', ['mine', '.'])
def test_incomplete_copy_elsewhere_costs_no_download(server, data_dir, place):
  make_copy(data_dir / place)
  with pytest.raises(UserError, match='train/CNV: 0 of 3, .*remove or complete that folder'):
    oct2017.download_images(str(data_dir))
  assert not server.requests


def test_data_dir_that_cannot_be(server, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot store the data set: {}/file'.format(tmp_path)):
    oct2017.download_images(str(tmp_path / 'file' / 'below'))
