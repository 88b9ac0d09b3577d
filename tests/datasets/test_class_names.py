"""Class names from labels.txt and folders: labels that are not indices, encodings, equal names."""

import pytest

from estimator_train.datasets import image_folder, tfrecord
from estimator_train.errors import UserError
from estimator_train.settings import Settings

NFC, NFD = 'caf\u00e9', 'cafe\u0301'


def names_in(folder, content, **given):
  (folder / 'labels.txt').write_bytes(content)
  return tfrecord.describe_classes(Settings(dataset='tfrecord', train_pattern=str(folder / '*'),
                                            **given)).labels


LABEL_FILES = [
    (b'a\nb\n', 0), (b'a\nb', 0), (b'a\r\nb\r\n', 0), (b'a\nb\n\n \n', 0),
    (b'\xef\xbb\xbfa\nb\n', 0),
    (b'0:a\n1:b\n', 0), (b'1: b\n0: a\n', 0), (b'\xef\xbb\xbf0:a\r\n1:b\r\n\r\n', 0),
    (b'1:a\n2:b\n', -1), (b'10:a\n11:b\n', -10), (b'a\nb\n', -1)]


def test_labels_file(tmp_path):
  for content, offset in LABEL_FILES:
    assert names_in(tmp_path, content, label_offset=offset) == ('a', 'b'), content
  assert names_in(tmp_path, '10:30\nnoon\n\u00b2:x\n'.encode()) == ('10:30', 'noon', '\u00b2:x')


@pytest.mark.parametrize('content, given, message', [
    (b'1:a\n2:b\n', {}, 'has 2 lines with labels from 1 to 2: give --label_offset=-1'),
    (b'0:a\n1:b\n', {'label_offset': -1}, 'from 0 to 1 with --label_offset=-1: give .*=0'),
    (b'0:a\n2:b\n', {}, 'has 2 lines with labels from 0 to 2: write a line for each label'),
    (b'0:a\n0:b\n1:c', {}, 'has 3 lines with labels from 0 to 1: write a line'),
    (b'a\n\nb\n', {}, 'a different name in each line'),
    (b'a\na\n', {}, 'a different name in each line'),
    ('{}\n{}\n'.format(NFC, NFD).encode(), {}, 'a different name in each line'),
    (b'\xff\xfea\0\n\0', {}, "labels.txt cannot be read: .*codec can't decode .* UTF-8"),
    (b'\n', {}, 'at least two classes'),
])
def test_invalid_labels_files(tmp_path, content, given, message):
  with pytest.raises(UserError, match=message):
    names_in(tmp_path, content, **given)


def describe_images(folder, **given):
  return image_folder.describe(Settings(
      dataset='image_folder', train_steps=1, train_pattern=str(folder / 'train/*/*'),
      eval_pattern=str(folder / 'test/*/*'), model_dir=str(folder / 'model'), **given))


def test_unicode_forms_of_folders(tmp_path):
  for name in ('train/tea', 'train/' + NFC, 'test/' + NFD):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / '1.jpg').write_bytes(b'')
  assert describe_images(tmp_path).test.classes.tolist() == [0]
  (tmp_path / 'train' / NFD).mkdir()
  (tmp_path / 'train' / NFD / '2.jpg').write_bytes(b'')
  with pytest.raises(UserError, match=r"only in their Unicode form: 'cafe\\u0301', 'caf\\xe9'"):
    describe_images(tmp_path)
  assert describe_images(tmp_path, labels=('tea', NFD)).train.classes.tolist() == [1, 1, 0]
  with pytest.raises(UserError, match='labels must be different names'):
    Settings(labels=(NFC, NFD))
