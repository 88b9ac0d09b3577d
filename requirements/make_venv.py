"""Makes a virtual environment from a lock file, by the Python that runs this.

  PYTHON requirements/make_venv.py VENV LOCK [--without-project]

VENV/installed.txt is written last: the lock's text and the checkout's path. While both are right
there is nothing to do; otherwise the environment is made from scratch, so that an interrupted
install, a changed lock or a moved checkout (the project is installed editable) heal by starting
again. VENV/setup.log keeps what pip said. Progress goes to standard error.
"""

import argparse
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent
ROOT = REQUIREMENTS.parent
CLEAR_LINE = '\r\x1b[K'
REDRAW_SECS = 1


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  # Resolved, as VENV may be a link to a roomier disk.
  parser.add_argument('venv', type=lambda path: Path(path).resolve())
  parser.add_argument('lock', type=Path)
  parser.add_argument('--without-project', action='store_true', help='install the lock file only')
  arguments = parser.parse_args()
  try:
    with arguments.lock.open('rb') as lock_file:
      wait_for_lock(lock_file, arguments.venv)
      # Environments of one lock file are made one after the other; who waited finds it done.
      content = b'%s\n%s\n' % (lock_file.read().rstrip(b'\n'), os.fsencode(str(ROOT)))
      if not is_complete(arguments.venv, content):
        checkout = arguments.venv.parent
        if checkout != ROOT and (checkout / 'requirements' / 'make_venv.py').exists():
          raise InstallError('it belongs to another checkout: remove the link to it')
        make(arguments.venv, arguments.lock, lock_file, not arguments.without_project)
        write_marker(arguments.venv, content)
  except (OSError, InstallError) as error:
    sys.exit('error: {} was not made: {}'.format(arguments.venv, error))
  except KeyboardInterrupt:
    sys.exit(130)


class InstallError(Exception):
  """A command of the installation failed."""


def wait_for_lock(lock_file, venv):
  try:
    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    say('Another start is setting up from {}: waiting to use {}'.format(lock_file.name, venv))
    fcntl.flock(lock_file, fcntl.LOCK_EX)


def is_complete(venv, content):
  try:
    if (venv / 'installed.txt').read_bytes() != content:
      return False
    python = [str(venv / 'bin' / 'python'), '-I', '-S', '-c', '']
    return subprocess.call(python, stderr=subprocess.DEVNULL) == 0
  except OSError:
    return False


def make(venv, lock, lock_file, with_project):
  clear(venv)
  python = str(venv / 'bin' / 'python')
  pip = [python, '-I', '-m', 'pip', '--disable-pip-version-check', 'install']
  locked = pip + ['--require-hashes', '--no-build-isolation', '-r']
  stages = [
    ('Making {} with CPython {}.{}.{}'.format(venv, *sys.version_info[:3]),
     [sys.executable, '-I', '-m', 'venv', str(venv)]),
    # An older pip finds no wheel of TensorFlow 1.15.
    ('Updating pip', locked + [str(REQUIREMENTS / 'pip.txt')]),
    ('Installing {} (downloads take a while the first time)'.format(lock.name),
     locked + [str(lock)]),
  ]
  if with_project:
    # Build isolation would download a setuptools that nobody pinned.
    stages.append(('Installing the project',
                   pip + ['--no-deps', '--no-build-isolation', '--editable', str(ROOT)]))
  start = time.monotonic()
  for title, command in stages:
    say(title)
    if run(command, venv / 'setup.log', lock_file) != 0:
      say(tail(venv / 'setup.log'))
      raise InstallError('"{}" failed; all of its output is in {}'.format(
        title, venv / 'setup.log'))
  say('Done in {:.0f} s'.format(time.monotonic() - start))


def clear(venv):
  """Leaves an empty `venv` but for setup.log, which also says that the folder is ours to remove."""
  marker, log = venv / 'installed.txt', venv / 'setup.log'
  if marker.exists():
    # First, so that it never stands for a half-removed environment.
    marker.unlink()
  if log.exists():
    shutil.rmtree(str(venv))
  elif venv.exists() and os.listdir(str(venv)):
    kept = '{}-kept-{:.0f}'.format(venv, time.time())
    venv.rename(kept)
    say('{} was not made by this script: kept as {}'.format(venv, kept))
  venv.mkdir(parents=True, exist_ok=True)
  log.touch()


def run(command, log, lock_file):
  """Runs a command into the log, shows its large downloads, and returns its exit code.

  The command inherits the lock: when this process is killed, a new start waits until the command
  has ended as well, and the two do not write into one folder.
  """
  start = time.monotonic()
  # PIP_USER would be an error inside a virtual environment.
  environment = dict(os.environ, PIP_USER='0')
  # Bytes, as not every locale can decode every path.
  with show_seconds(start), log.open('ab') as log_file, subprocess.Popen(
      command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      env=environment, pass_fds=[lock_file.fileno()]) as process:
    for line in process.stdout:
      log_file.write(line)
      news = progress(line.decode('utf-8', 'replace').split())
      if news:
        say('  {:3.0f} s  {}'.format(time.monotonic() - start, news))
  return process.returncode


@contextlib.contextmanager
def show_seconds(start):
  """On a terminal, shows each second how long the command has been running, in the last line."""
  ended = threading.Event()

  def show():
    while not ended.wait(REDRAW_SECS):
      print('{}  {:3.0f} s'.format(CLEAR_LINE, time.monotonic() - start), end='', file=sys.stderr,
            flush=True)

  ticker = threading.Thread(target=show, daemon=True)
  if sys.stderr.isatty():
    ticker.start()
  try:
    yield
  finally:
    ended.set()
    if ticker.is_alive():
      ticker.join()


def progress(words):
  """Returns what to show of a line of pip's: the downloads worth waiting for, and the last step."""
  if words[:1] == ['Downloading'] and words[-1] == 'MB)':
    return 'downloading {} {} {}'.format('-'.join(words[1].split('-')[:2]), *words[-2:])
  if words[:3] == ['Installing', 'collected', 'packages:']:
    return 'unpacking'
  return None


def tail(log):
  return '\n'.join(log.read_text(encoding='utf-8', errors='replace').splitlines()[-15:])


def write_marker(venv, content):
  part = venv / 'installed.txt.part'
  part.write_bytes(content)
  os.replace(str(part), str(venv / 'installed.txt'))


def say(line):
  print((CLEAR_LINE if sys.stderr.isatty() else '') + line, file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
