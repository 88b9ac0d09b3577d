"""Executes notebooks in JupyterLab in headless Chromium; see scripts/run_notebooks."""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import nbformat
import websocket

ROOT = Path(__file__).resolve().parent.parent
TOKEN = 'notebooks'  # The server listens on this machine only, as long as this script runs.
START_SECS, RUN_SECS = 120, 1800
WIDTH, HEIGHT = 1000, 900
# Without it, JupyterLab asks whether it may show news.
SETTINGS = {'@jupyterlab/apputils-extension/notification.jupyterlab-settings':
            {'fetchNews': 'false', 'checkForUpdates': False}}
# Clickable texts of JupyterLab's menus and dialogs, and the center of one of them that is visible.
CENTER = '''(() => {
  const labels = '.lm-MenuBar-itemLabel, .lm-Menu-itemLabel, .jp-Dialog-buttonLabel';
  for (const element of document.querySelectorAll(labels)) {
    const box = element.getBoundingClientRect();
    if (element.textContent.startsWith(%s) && box.width && box.height)
      return [box.x + box.width / 2, box.y + box.height / 2];
  }
})()'''
IS_READY = '''!document.querySelector('#jupyterlab-splash') &&
  !!document.querySelector('.jp-Notebook .jp-CodeCell') &&
  !!document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')'''
PROMPTS = '''[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].map(
  prompt => prompt.textContent)'''
ERRORS = '''[...document.querySelectorAll(
  '.jp-Notebook [data-mime-type="application/vnd.jupyter.error"]')].map(
  output => output.textContent)'''
# The text of each widget in the order of the cells.
WIDGET_TEXTS = '''[...document.querySelectorAll(
  '.jp-Notebook .jp-OutputArea-output > .jupyter-widgets')].map(
  widget => widget.innerText.replace(/\\s+/g, ' ').trim())'''
WIDGET_TYPE = 'application/vnd.jupyter.widget-view+json'
# The height of all cells, which the window must have for a screenshot of all of them.
CELLS_HEIGHT = '''document.querySelector('.jp-Notebook').scrollHeight +
  document.querySelector('.jp-Notebook').getBoundingClientRect().y + 40'''


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--update', action='store_true')
  parser.add_argument('--output', type=Path, default=ROOT / 'runs' / 'notebooks')
  parser.add_argument('notebooks', type=Path, nargs='*',
                      default=sorted((ROOT / 'examples').glob('*.ipynb')))
  arguments = parser.parse_args()
  arguments.output.mkdir(parents=True, exist_ok=True)
  for path in arguments.notebooks:
    write_without_outputs(path, arguments.output / path.name)
  with tempfile.TemporaryDirectory() as folder, \
      run_jupyter(Path(folder), arguments.output) as address, run_chromium(Path(folder)) as page:
    for path in arguments.notebooks:
      executed = arguments.output / path.name
      secs, widget_texts = execute(page, address, executed)
      finish(executed, widget_texts)
      print('{}: {} cells in {:.0f} s: {}'.format(
          path.name, len(code_cells(executed)), secs, executed), flush=True)
      if arguments.update:
        shutil.copyfile(str(executed), str(path))


def code_cells(path):
  return [cell for cell in nbformat.read(str(path), 4).cells if cell.cell_type == 'code']


def write_without_outputs(source, target):
  notebook = nbformat.read(str(source), 4)
  notebook.metadata.pop('widgets', None)
  for cell in notebook.cells:
    cell.metadata = {}
    if cell.cell_type == 'code':
      cell.outputs, cell.execution_count = [], None
  nbformat.write(notebook, str(target))


def finish(path, widget_texts):
  """Replaces widgets by their text, and stores the digest of the executed code.

  A widget is empty without the kernel that made it. By the digest, the tests notice that the code
  has changed.
  """
  notebook = nbformat.read(str(path), 4)
  notebook.metadata.pop('widgets', None)
  widgets = [output for cell in notebook.cells if cell.cell_type == 'code'
             for output in cell.outputs if WIDGET_TYPE in output.get('data', {})]
  assert len(widgets) == len(widget_texts)
  for output, text in zip(widgets, widget_texts):
    output.data = {'text/plain': text}
  code = json.dumps([cell.source for cell in notebook.cells if cell.cell_type == 'code'])
  notebook.metadata['executed_code_sha256'] = hashlib.sha256(code.encode()).hexdigest()
  nbformat.write(notebook, str(path) + '.part')
  os.replace(str(path) + '.part', str(path))


@contextlib.contextmanager
def running(command, environment=None):
  """Runs a program, and ends it and its child processes at the end."""
  process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True)
  try:
    yield process
  finally:
    process.terminate()  # The server ends its kernels, which have sessions of their own.
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(20)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)


def wait_for(description, function, secs=START_SECS):
  """Returns the first true result of a function."""
  deadline = time.monotonic() + secs
  while True:
    result = function()
    if result:
      return result
    if time.monotonic() > deadline:
      sys.exit('error: {} within {} s: it did not happen'.format(description, secs))
    time.sleep(.2)


@contextlib.contextmanager
def run_jupyter(folder, notebooks):
  """Runs a server without the user's settings, and yields its address."""
  environment = dict(os.environ, **{
      'JUPYTER_{}_DIR'.format(kind): str(folder / kind) for kind in ('CONFIG', 'DATA', 'RUNTIME')})
  for kind in ('SETTINGS', 'WORKSPACES'):
    environment['JUPYTERLAB_{}_DIR'.format(kind)] = str(folder / kind)
  for name, values in SETTINGS.items():
    (folder / 'SETTINGS' / name).parent.mkdir(parents=True)
    (folder / 'SETTINGS' / name).write_text(json.dumps(values))
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  command = [sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root',
             '--ip=127.0.0.1', '--port={}'.format(port), '--ServerApp.port_retries=0',
             '--FileCheckpoints.checkpoint_dir={}'.format(folder / 'checkpoints'),
             '--ServerApp.token=' + TOKEN, '--ServerApp.root_dir={}'.format(notebooks.resolve())]
  address = 'http://127.0.0.1:{}'.format(port)
  with running(command, environment):
    wait_for('JupyterLab starts', lambda: is_listening(address))
    yield address


def is_listening(address):
  with contextlib.suppress(OSError), urllib.request.urlopen(address + '/api', timeout=10):
    return True
  return False


@contextlib.contextmanager
def run_chromium(folder):
  """Runs a browser, and yields its page."""
  chromium = shutil.which('chromium') or shutil.which('chromium-browser')
  if chromium is None:
    sys.exit('error: Chromium is required: not found: run scripts/install_ci_tools as root')
  command = [chromium, '--headless', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run',
             '--disable-background-networking', '--remote-debugging-port=0',
             '--window-size={},{}'.format(WIDTH, HEIGHT),
             '--user-data-dir={}'.format(folder / 'profile'), 'about:blank']
  if os.getuid() == 0:
    command.insert(1, '--no-sandbox')  # It refuses to start without.
  with running(command):
    port_file = folder / 'profile' / 'DevToolsActivePort'
    port = wait_for('Chromium starts',
                    lambda: port_file.exists() and port_file.read_text().partition('\n')[0])
    with urllib.request.urlopen('http://127.0.0.1:{}/json'.format(port)) as response:
      targets = json.loads(response.read().decode())
    yield Page(next(each for each in targets if each['type'] == 'page')['webSocketDebuggerUrl'])


class Page:
  """A page of the browser, controlled by Chromium's DevTools protocol."""

  def __init__(self, address):
    self._socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
    self._id = 0

  def call(self, method, **parameters):
    self._id += 1
    self._socket.send(json.dumps({'id': self._id, 'method': method, 'params': parameters}))
    while True:
      message = json.loads(self._socket.recv())
      if message.get('id') == self._id:
        assert 'error' not in message, message
        return message['result']

  def evaluate(self, script):
    result = self.call('Runtime.evaluate', expression=script, returnByValue=True)
    return result['result'].get('value')

  def click(self, label):
    """Clicks the menu, the menu item or the button whose text begins with `label`."""
    x, y = wait_for('JupyterLab shows "{}"'.format(label),
                    lambda: self.evaluate(CENTER % json.dumps(label)))
    for kind in ('mouseMoved', 'mousePressed', 'mouseReleased'):
      self.call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)

  def resize(self, height):
    self.call('Emulation.setDeviceMetricsOverride', width=WIDTH, height=height,
              deviceScaleFactor=1, mobile=False)


def execute(page, address, path):
  """Executes all cells of a notebook in a new kernel, saves it, and takes a screenshot.

  Returns:
    The seconds from the start of the kernel to the end of the last cell, and the texts of widgets.
  """
  page.resize(HEIGHT)
  page.call('Page.navigate', url='{}/lab/tree/{}?reset&token={}'.format(address, path.name, TOKEN))
  wait_for('JupyterLab opens {}'.format(path.name), lambda: page.evaluate(IS_READY))
  page.click('View')
  page.click('Show Left Sidebar')
  page.click('Kernel')
  page.click('Restart Kernel and Run All Cells')
  page.click('Restart')
  began = time.monotonic()
  wait_for('the cells of {} are executed'.format(path.name), lambda: is_executed(page), RUN_SECS)
  secs = time.monotonic() - began
  page.click('File')
  page.click('Save Notebook')
  wait_for('JupyterLab saves {}'.format(path.name), lambda: is_saved(path))
  page.resize(page.evaluate(CELLS_HEIGHT))
  time.sleep(1)  # Until the page has its new layout.
  picture = page.call('Page.captureScreenshot', format='png')['data']
  path.with_suffix('.png').write_bytes(base64.b64decode(picture))
  return secs, page.evaluate(WIDGET_TEXTS)


def is_executed(page):
  errors = page.evaluate(ERRORS)
  if errors:
    sys.exit('error: a cell failed:\n{}'.format(errors[0]))
  prompts = page.evaluate(PROMPTS)
  return all(prompt.strip('[]: ').isdigit() for prompt in prompts)


def is_saved(path):
  """Returns whether all cells in the file have been executed; exits if one has failed."""
  cells = code_cells(path)
  for cell in cells:
    for output in cell.outputs:
      if output.output_type == 'error':
        sys.exit('error: a cell failed: {}: {}'.format(output.ename, output.evalue))
  return all(cell.execution_count for cell in cells)


if __name__ == '__main__':
  main()
