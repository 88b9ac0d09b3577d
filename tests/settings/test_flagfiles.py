"""Flagfiles: what is read from them, and errors with the file and line."""


import pytest

from estimator_train.errors import UserError
from estimator_train.settings import command_line, to_flagfile
from estimator_train.settings.workloads import FLAGFILE_NAMES

ENOUGH = '--model_dir=x\n--train_steps=1\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
  monkeypatch.chdir(str(tmp_path))
  return lambda name, text: (tmp_path / name).write_bytes(
      text if isinstance(text, bytes) else text.encode())


def error_of(*arguments):
  with pytest.raises(UserError) as caught:
    command_line.parse(arguments)
  assert len(str(caught.value).splitlines()) == 1
  return str(caught.value)


def test_what_is_read(write, tmp_path):
  """Comments, a byte order mark, line ends, and other flagfiles in their place, even twice."""
  write('enough.flags', ENOUGH)
  write('b.flags', '--batch_size=2\n--seed=2\n')
  both = '--batch_size=1\n--flagfile=b.flags\n--seed=3\n--flagfile={}/b.flags\n--seed=4'.format(
      tmp_path)
  for text, batch_size, seed in (
      ('# --batch_size=1\n// --batch_size=2\n\n  # 3\n --batch_size=64 \n', 64, 1),
      ('--seed=3\r\n--batch_size=64\r\n', 64, 3), (b'\xef\xbb\xbf--batch_size=64', 64, 1),
      ('--batch_size\n64\n', 64, 1), (both, 2, 4)):
    write('a.flags', text)
    settings = command_line.parse(['--flagfile=enough.flags', '-flagfile', 'a.flags'])
    assert (settings.optimizer.batch_size, settings.optimizer.seed) == (batch_size, seed), text


def test_names_that_a_shell_would_not_take_literally(write, tmp_path):
  """Values that are meant so: of paths that exist, of the command line, and of the program."""
  for name in ('"a"', '$HOME', 'x # y', 'A'):
    (tmp_path / name).mkdir()
  for line in ('--model_dir="a"', '--model_dir="a"/new', '--model_dir=$HOME/new',
               '--cache=x # y', '--train_pattern=$HOME/*.png,x # y/*', '--train_pattern=*/$HOME/*',
               '--model_dir=runs #2', "--model_dir='80s", '--model_dir=5$', '--labels="a,b",C #1',
               '--labels=A$AP,D #,b #', '--train_pattern=gs://b/x//y'):
    if '*/$' in line:
      (tmp_path / 'A' / '$HOME').mkdir()
    write('a.flags', ENOUGH + '--dataset=image_folder\n' + line)
    command_line.parse(['--flagfile=a.flags'])
  write('a.flags', ENOUGH + '--model_dir=$OTHER')
  assert command_line.parse(['--flagfile=a.flags', '--model_dir=$X']).run.model_dir == '$X'
  settings = command_line.parse(['--train_steps=1', '--model_dir=$X/y', '--cache=a # b'])
  write('flags.txt', to_flagfile(settings))
  assert command_line.parse(['--flagfile=flags.txt']) == settings


def test_mistakes_are_found_by_file_and_line(write):
  write('b.flags', '--flagfile=./a.flags\n')
  for text, message in (
      ('\n--batchsize=3\n', 'unknown flag: --batchsize (a.flags:4): did you mean --batch_size'),
      ('--batch_size 3', '--batch_size 3 (a.flags:3): did you mean --batch_size=VALUE?'),
      ('batch_size=3', 'an argument is not a flag: batch_size=3 (a.flags:3): write it as --FLAG'),
      ('--batch_size=0', '--batch_size is out of range: --batch_size=0 (a.flags:3): give an int'),
      ('--seed\n--batch_size=1', '--seed has no value: --seed (a.flags:3): write it as --seed=V'),
      ('--train_epochs=1', '--train_steps=1 --train_epochs=1 (a.flags:2, a.flags:3): give one'),
      ('--input_pipeline=published\n--cache=memory',
       '--input_pipeline=published with --cache (a.flags:3, a.flags:4): '),
      ('--flagfile=none.flags', ': none.flags, included by a.flags:3 (No such file or directory):'),
      ('--flagfile=b.flags', 'must not include itself: ./a.flags, included by b.flags:1: remove'),
      ('--flagfile', '--flagfile has no file name: a.flags:3: give --flagfile=FILE'),
      (b'--labels=\xff', 'the flagfile cannot be read: a.flags (it is not UTF-8 text): give'),
      ('--flagfile=quikstart', ': did you mean quickstart? give --flagfile=FILE')):
    write('a.flags', ENOUGH.encode() + (text if isinstance(text, bytes) else text.encode()))
    assert message in error_of('--flagfile=a.flags')
  for text, part in (('--model_dir="runs/a"', 'quotes'), ("--model_dir='a b'/c", 'quotes'),
                     ("--train_pattern='A/*','B/*'", 'quotes'), ('--model="mnist"', 'quotes'),
                     ("--labels='a','b'", 'quotes'), ('--model_dir=$HOME/a', 'a variable'),
                     ('--cache=a/${X}', 'a variable'), ('--model_dir=a # b/c', 'a comment'),
                     ('--model_dir=a\t// b', 'a comment'), ('--labels=a,b #c', 'a comment')):
    write('a.flags', ENOUGH + text)
    assert 'taken literally, and has {}: {} (a.flags:3): '.format(
        part, text.replace('\t', '\\t')) in error_of('--flagfile=a.flags')
  assert '--flagfile has no file name: --flagfile=: ' in error_of('--flagfile=')
  assert 'nnn (File name too long): give --flagfile=FILE' in error_of('--flagfile=' + 'n' * 4000)
  # The flagfile is not blamed for the command line.
  write('a.flags', ENOUGH + '--cache=memory\n--batch_size=0\n')
  assert 'out of range: --batch_size=-1: ' in error_of('--flagfile=a.flags', '--batch_size=-1')
  assert ('--input_pipeline=published with --cache (--cache: a.flags:3, --input_pipeline: command '
          'line): give --input_pipeline=exact, or omit --cache') in error_of(
              '--input_pipeline=published', '--batch_size=1', '--flagfile=a.flags')


@pytest.mark.parametrize('mode', ['evaluate', 'predict', 'export'])
def test_a_folder_without_run(tmp_path, mode):
  with pytest.raises(UserError, match=r'^--dataset is required.*has no flags\.txt'):
    command_line.parse(['--mode=' + mode, '--model_dir={}'.format(tmp_path), '--eval_pattern=x'])


def test_published_workloads_evaluate_as_published():
  """Not after each epoch, which is the default."""
  evaluations = {name: command_line.parse(['--flagfile=' + name]).evaluation
                 for name in FLAGFILE_NAMES}
  intervals = {name: (flags.eval_every_epochs, flags.eval_every_steps)
               for name, flags in evaluations.items()}
  assert intervals.pop('quickstart') == (None, None)
  assert intervals.pop('mnist_8gpu') == (None, 59) and set(intervals.values()) == {(0, None)}
  # A flag on the command line replaces the one in the flagfile.
  flags = command_line.parse(['--flagfile=fashion_mnist', '--eval_every_steps=9']).evaluation
  assert (flags.eval_every_epochs, flags.eval_every_steps) == (None, 9)
