"""Makes the images in docs/images/: the terminal and the report page of a quickstart run.

  .venv/bin/python scripts/doc_images.py

Runs the quickstart on a terminal of 100 columns, and takes a screenshot of its report page with
Chromium.
"""

import fcntl
import html
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests'))
import terminal  # noqa: E402

IMAGES = ROOT / 'docs' / 'images'
COLUMNS = 100
LAST_LINES = 18


def main():
  IMAGES.mkdir(exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    model_dir = os.path.join(folder, 'runs', 'quickstart')
    lines = _run(['-m', 'estimator_train', '--model_dir=runs/quickstart',
                  '--flagfile={}/estimator_train/configs/quickstart.flags'.format(ROOT)], folder)
    _write_svg(['$ ./run_train.sh', '…'] + lines[-LAST_LINES:])
    _take_picture('file://{}/report/index.html'.format(model_dir))


def _run(arguments, folder):
  """Runs the program on a terminal; returns the lines that remain on it."""
  leader, follower = pty.openpty()
  fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack('HHHH', 50, COLUMNS, 0, 0))
  process = subprocess.Popen([sys.executable] + arguments, cwd=folder, stdout=follower,
                             stderr=follower, env=dict(
                                 os.environ, PYTHONPATH=str(ROOT),
                                 ESTIMATOR_TRAIN_COMMAND='./run_train.sh'))
  os.close(follower)
  output = b''
  while True:
    try:
      read = os.read(leader, 65536)
    except OSError:  # On Linux, reading from a terminal fails after its last process has ended.
      break
    output += read
  if process.wait():
    sys.exit(output.decode())
  return [line for line in terminal.show(output.decode(), COLUMNS) if line]


def _write_svg(lines):
  height = 20 * len(lines) + 24
  rows = ''.join('<text x="14" y="{}" xml:space="preserve">{}</text>\n'.format(
      28 + 20 * number, html.escape(line)) for number, line in enumerate(lines))
  (IMAGES / 'terminal.svg').write_text(
      '<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{0}" viewBox="0 0 860 {0}">\n'
      '<rect width="860" height="{0}" rx="8" fill="#1e1e1e"/>\n'
      '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13.7" '
      'fill="#d4d4d4">\n{1}</g>\n</svg>\n'.format(height, rows), encoding='utf-8')


def _take_picture(address):
  path = IMAGES / 'report.png'
  subprocess.run(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars',
                  '--disable-background-networking', '--window-size=1200,1500',
                  '--screenshot={}'.format(path), address], check=True, timeout=120,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  Image.open(str(path)).convert('P', palette=Image.ADAPTIVE).save(str(path), optimize=True)


if __name__ == '__main__':
  main()
