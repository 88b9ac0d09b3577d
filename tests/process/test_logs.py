"""The log of the program: one line per message, whatever its names and values contain."""

import logging

import pytest

from estimator_train.process import logs


def set_up():
  logs.set_up(1)
  return logging.getLogger('estimator_train')


@pytest.mark.parametrize('text, line', [
  ('a class\x1b[2J', r'a class\x1b[2J'), ('a\nerror: forged\r\n', r'a\nerror: forged\r\n'),
  ('\x9b0m\u202egpj\u2028', r'\x9b0m\u202egpj\u2028'), ('Katze, \u00e9, \u732b', None),
  ('\udcff.png', r'\udcff.png'), ('C:\\temp', None)])
def test_control_characters_are_escaped(capsys, text, line):
  set_up().getChild('cluster').info('%s', text)
  assert capsys.readouterr().err == (line or text) + '\n'


def test_long_lines_are_shortened(capsys):
  set_up().warning('%s', ', '.join(map(str, range(10000))))
  (line,) = capsys.readouterr().err.splitlines()
  assert len(line) < 1100 and line.startswith('warning: 0, 1, 2') and line.endswith('9998, 9999')


def test_tracebacks_keep_their_lines(capsys):
  try:
    raise ValueError('odd')
  except ValueError:
    set_up().debug('a\tb', exc_info=True)
  lines = capsys.readouterr().err.splitlines()
  assert lines[0] == r'a\tb' and lines[-1] == 'ValueError: odd' and len(lines) == 5
