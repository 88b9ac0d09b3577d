"""A pseudo-terminal of a given width, and the text that a user sees on it."""

import fcntl
import os
import re
import struct
import sys
import termios


class Terminal:
  """Standard error of this process within a `with` block, as a terminal.

  Args:
    monkeypatch: of the test.
    columns, rows: the size; 0 for a terminal that reports none.

  Attributes:
    written: the bytes that were written, as text; set at the end of the block.
    lines: the lines that remain on the screen, without empty lines at the end; set as well.
  """

  def __init__(self, monkeypatch, columns, rows=24):
    self._monkeypatch, self._columns, self._rows = monkeypatch, columns, rows
    self.written, self.lines = '', []

  def __enter__(self):
    self._screen, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack('4H', self._rows, self._columns, 0, 0))
    self._file = open(follower, 'w', encoding='utf-8')  # noqa: SIM115 (__exit__ closes it.)
    self._monkeypatch.setattr(sys, 'stderr', self._file)
    return self

  def __exit__(self, *_):
    self._file.flush()
    self._monkeypatch.undo()
    content = b''
    self._file.close()
    try:
      while True:  # Until the error after the last byte, since the other side is closed.
        content += os.read(self._screen, 1 << 16)
    except OSError:
      os.close(self._screen)
    self.written = content.decode('utf-8')
    self.lines = show(self.written, self._columns or 80)


def show(text, columns):
  """Returns the lines of a screen, as wide as the terminal, to which a text was written."""
  lines, row, column = [''], 0, 0
  for control, count, character in re.findall(r'\x1b\[(\d*)([A-Z])|([\s\S])', text):
    if count == 'A':
      row -= int(control or 1)
    elif count == 'K':
      lines[row] = lines[row][:column]
    elif character == '\r':
      column = 0
    elif character == '\n':
      row += 1
    elif character:
      if column == columns:
        row, column = row + 1, 0
      lines += [''] * (row + 1 - len(lines))
      lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1:]
      column += 1
    lines += [''] * (row + 1 - len(lines))
  shown = [line.rstrip() for line in lines]
  while shown and not shown[-1]:
    shown.pop()
  return shown
