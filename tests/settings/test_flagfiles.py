"""Flagfiles: what is read from them, and errors with the file and line."""

import os

import pytest

from estimator_train import flags
from estimator_train.errors import UserError

ENOUGH = '--model_dir=x\n--train_steps=1\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))
  return lambda name, text: (tmp_path / name).write_bytes(
      text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize('text', [
    pytest.param('# --batch_size=1\n// --batch_size=2\n\n  # 3\n --batch_size=64 \n',
                 id='comments'),
    pytest.param('--seed=3\r\n--batch_size=64\r\n', id='lines of Windows'),
    pytest.param(b'\xef\xbb\xbf--batch_size=64', id='byte order mark, and no line end'),
    pytest.param('--batch_size\n64\n', id='value on the next line'),
])
def test_good(write, text):
  write('a.flags', text)
  write('enough.flags', ENOUGH)
  settings = flags.parse(['--flagfile=enough.flags', '-flagfile', 'a.flags'])
  assert settings.batch_size == 64


def test_a_flagfile_in_another_is_in_its_place(write, tmp_path):
  (tmp_path / 'in').mkdir()
  write('in/b.flags', '--batch_size=2\n--seed=2\n')
  write('a.flags', ENOUGH + '--batch_size=1\n--flagfile=in/b.flags\n--seed=3\n')
  # Twice is no loop.
  settings = flags.parse(['--flagfile=a.flags', '--flagfile={}/in/b.flags'.format(tmp_path),
                          '--flagfile=a.flags'])
  assert (settings.batch_size, settings.seed) == (2, 3)


@pytest.mark.parametrize('text, message', [
    ('\n--batchsize=3\n', 'unknown flag: --batchsize (a.flags:4): did you mean --batch_size'),
    ('--batch_size 3\n', 'unknown flag: --batch_size 3 (a.flags:3): did you mean --batch_size=VAL'),
    ('batch_size=3\n', 'an argument is not a flag: batch_size=3 (a.flags:3): write it as --FLAG'),
    ('--batch_size=x\n', '--batch_size must be an integer: --batch_size=x (a.flags:3): see'),
    ('--batch_size=0\n', '--batch_size is out of range: --batch_size=0 (a.flags:3): give an int'),
    ('--seed\n--batch_size=1\n', '--seed has no value: --seed (a.flags:3): write it as --seed=V'),
    ('--train_epochs=1\n', 'exclude each other: --train_steps=1 --train_epochs=1 '
     '(a.flags:2, a.flags:3): give one of them'),
    ('--augment=flip\n--cache=memory\n', '--augment=flip with --cache (a.flags:3, a.flags:4): give '
     '--augment=none or --cache=none'),
    ('--weights=a\0b\n', "line break or a null character: --weights='a\\x00b' (a.flags:3): remove"),
    ('--flagfile=gone.flags\n', 'the flagfile cannot be read: gone.flags, included by a.flags:3 '
     '(No such file or directory): give --flagfile=FILE'),
    ('--flagfile=a.flags\n', 'a flagfile must not include itself: a.flags, included by a.flags:3: '
     'remove that'),
    ('--flagfile=b.flags\n', 'a flagfile must not include itself: ./a.flags, included by b.flags'
     ':1: remove that'),
    ('--flagfile\n', '--flagfile has no file name: a.flags:3: give --flagfile=FILE'),
    ('--flagfile=\0\n', '--flagfile has no file name: a.flags:3: give --flagfile=FILE'),
    (b'--labels=\xff\n', 'the flagfile cannot be read: a.flags (it is not UTF-8 text): give'),
])
def test_bad(write, text, message):
  write('a.flags', ENOUGH.encode() + (text if isinstance(text, bytes) else text.encode()))
  write('b.flags', '--flagfile=./a.flags\n')
  with pytest.raises(UserError) as caught:
    flags.parse(['--flagfile=a.flags'])
  assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_the_origins_of_two_flags(write):
  write('a.flags', ENOUGH + '--cache=memory\n')
  with pytest.raises(UserError) as caught:
    flags.parse(['--augment=flip', '--flagfile=a.flags'])
  assert ('--augment=flip with --cache (--cache: a.flags:3, --augment: command line): give '
          '--augment=none or --cache=none') in str(caught.value)


def test_the_flagfile_is_not_blamed_for_the_command_line(write):
  write('a.flags', ENOUGH + '--batch_size=0\n')
  with pytest.raises(UserError, match='out of range: --batch_size=-1: '):
    flags.parse(['--flagfile=a.flags', '--batch_size=-1'])


@pytest.mark.parametrize('arguments, message', [
    (['--flagfile'], '--flagfile has no file name: --flagfile: '),
    (['--flagfile='], '--flagfile has no file name: --flagfile=: '),
    (['--flagfile=.'], 'cannot be read: . (Is a directory): '),
    (['--flagfile=' + 'n' * 4000], 'nnn... (4021 characters) ...nnn'),
    (['--flagfile=' + 'n' * 4000], 'nnn (File name too long): give --flagfile=FILE'),
    (['--flagfile=loop'], 'cannot be read: loop (Too many levels of symbolic links): '),
])
def test_no_file(write, tmp_path, arguments, message):
  (tmp_path / 'loop').symlink_to('loop')
  with pytest.raises(UserError) as caught:
    flags.parse(arguments)
  assert message in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason='root may read any file')
def test_unreadable(write, tmp_path):
  write('a.flags', ENOUGH)
  (tmp_path / 'a.flags').chmod(0)
  with pytest.raises(UserError, match='cannot be read: a.flags .Permission denied.: '):
    flags.parse(['--flagfile=a.flags'])
