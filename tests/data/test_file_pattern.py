"""File patterns against `glob`, and where ours differs from it."""

import glob
import os
from unittest import mock

import pytest
from file_server import write_files

from estimator_train.data import datasets, file_pattern
from estimator_train.errors import UserError
from estimator_train.settings import Settings


def expand(pattern):
  return list(file_pattern.iter_files(pattern))


@pytest.fixture
def tree(tmp_path, monkeypatch):
  write_files(tmp_path, dict.fromkeys((
      'a.jpeg', 'b.jpeg', 'c.txt', '.hidden.jpeg', 'A/x.jpeg', 'A/y.png', 'B c/x.jpeg',
      'A/deep/deeper/x.jpeg', '.git/x.jpeg', '[1]/x.jpeg', 'A/.x.jpeg', "q'\"/x\ny.jpeg"), b''))
  monkeypatch.chdir(str(tmp_path))
  return tmp_path


PATTERNS = ['*.jpeg', '**/*.jpeg', '**/x*', 'A/**/*.jpeg', '*/x.jpeg', '[AB]*/*', '?/y.png',
            '[[]1]/*', 'A/x.jpeg', '**/deep/**/*', '**', 'A/**', 'none/*', '.*/*.jpeg', '*/.x*',
            './A/*.jpeg', 'A//x.jpeg', 'A/x.jpeg/*', '**/**/*', '*/**', 'A*/**/d*/*/?.jpeg']


def test_commas_in_existing_paths_do_not_separate(tree):
  write_files(tree, {'a,b/x.jpeg': b'', 'c,d,e/x.jpeg': b''})
  for patterns in (['a,b'], ['a,b', 'A'], ['A', 'a,b', 'c,d,e', '*.jpeg'], ['A/*', 'b.jpeg'],
                   ['a,b/*'], ['none', 'A']):
    assert file_pattern.split_patterns(','.join(patterns)) == patterns


def test_like_glob(tree):
  for pattern in PATTERNS + [os.path.join(glob.escape(str(tree)), part) for part in PATTERNS]:
    expected = {os.path.normpath(name) for name in glob.glob(pattern, recursive=True)
                if not os.path.isdir(name)}
    found = [os.path.normpath(os.fsdecode(name)) for name in expand(pattern)]
    assert set(found) == expected and len(found) == len(expected), pattern
  # Always in the same order.
  assert expand('**/*.jpeg') == [
      b'a.jpeg', b'b.jpeg', b'A/x.jpeg', b'A/deep/deeper/x.jpeg', b'B c/x.jpeg', b'[1]/x.jpeg',
      b"q'\"/x\ny.jpeg"]


def test_links(tree):
  """Those to folders are followed, loops end, and those to nowhere or themselves are files."""
  for name, target in (('linked', tree / 'A'), ('A/back', tree), ('A/again', tree / 'A'),
                       ('A/gone.jpeg', 'nowhere'), ('A/loop.jpeg', 'loop.jpeg'),
                       ('A/self', 'self')):
    (tree / name).symlink_to(target)
  found = expand('A/**/x.jpeg')
  assert found.count(b'A/x.jpeg') == 1 and not [name for name in found if b'again' in name]
  # Through the link to the folder above, once: it is another way to the same files, not a loop.
  assert max(name.count(b'back') for name in found) == 1
  assert {b'A/loop.jpeg', b'linked/x.jpeg'} <= set(expand('**/*.jpeg'))
  assert {b'A/self', b'A/gone.jpeg'} <= set(expand('A/*'))
  assert expand('A/gone.jpeg') == [b'A/gone.jpeg']


def test_a_folder_that_cannot_be_listed(tree):
  for name in ('n' * 4000, '/'.join(['n' * 200] * 25)):
    assert expand(name) == []
    with pytest.raises(UserError, match='a folder cannot be listed: n+.*File name too long'):
      expand(name + '/*.jpeg')

  # The tests may run as root, who can list any.
  with mock.patch('os.scandir', side_effect=PermissionError(13, 'Permission denied')), \
      pytest.raises(UserError, match='a folder cannot be listed: A .Permission denied.'):
    expand('A/*.jpeg')


def test_archives(tree):
  write_files(tree, dict.fromkeys(('x.zip', 'zips/a.tar.gz', 'zips/b.TGZ'), b'PK'))
  for dataset in ('image_folder', 'tfrecord'):
    for pattern, names in (('x.zip', 'x.zip'), ('zips/*', 'zips/a.tar.gz, zips/b.TGZ')):
      settings = Settings(dataset=dataset, train_pattern=pattern, mode='train', train_steps=1,
                          model_dir='m')
      with pytest.raises(UserError) as caught:
        datasets.describe_data_set(settings)
      assert str(caught.value) == (
          'an archive is not read: --train_pattern={} ({}): unpack it, and give the folder'.format(
              pattern, names))
  assert '(x.zip is a file): give a pattern of files in a folder; unpack an archive' in str(
      file_pattern.make_no_match_error('none', 'given', 'x.zip/train/*/*.png', 'x'))
