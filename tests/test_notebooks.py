"""The notebooks in examples/: their outputs are complete, and their cells run in several orders."""

import hashlib
import json
import logging
import re
import sys

import pytest
from conftest import ROOT, python_installed_by, run_process

NOTEBOOKS = sorted((ROOT / 'examples').glob('*.ipynb'))
PATH = re.compile(r'(?<![\w.:/])/\w[\w.-]*/[\w.-]+')


def code_cells(notebook):
  return [cell for cell in notebook['cells'] if cell['cell_type'] == 'code']


def read(name):
  return json.loads((ROOT / 'examples' / name).read_text(encoding='utf-8'))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.name)
def test_the_outputs_of_notebooks_are_complete(path):
  notebook = read(path.name)
  first = ''.join(notebook['cells'][0]['source'])
  command, = re.findall(r'^    (.*)$', first, re.MULTILINE)
  assert command == 'scripts/jupyter examples/' + path.name
  cells = code_cells(notebook)
  # scripts/run_notebooks stores the digest of the code that it executes.
  code = json.dumps([''.join(cell['source']) for cell in cells])
  assert notebook['metadata']['executed_code_sha256'] == hashlib.sha256(code.encode()).hexdigest()
  for output in (output for cell in cells for output in cell['outputs']):
    assert output['output_type'] in ('stream', 'display_data', 'execute_result')
    output.get('data', {}).pop('image/png', None)
    text = json.dumps(output)
    assert not re.search('Error|Warning', text) and not PATH.search(text)


SHORTER = {
    'fashion_mnist.ipynb': {'STEPS = 300': 'STEPS = 12', 'RATE_STEPS = 40': 'RATE_STEPS = 3'},
    'oct2017.ipynb': {'EPOCHS = 20': 'EPOCHS = 2', '(96, 96)': '(32, 32)'}}


@pytest.mark.parametrize('name, texts', [
    ('fashion_mnist.ipynb', ['step 12, 2 replicas, ', '2 replica(s): ', ' 1000 images']),
    ('oct2017.ipynb', ['truncated: 1', 'images skipped: 1', '\ncached: ', ' 32 images'])])
def test_cells_run_in_their_order(name, texts, capsys, tmp_path, monkeypatch):
  """As Python, in this process; the kernel and the widgets are those of the slow tests."""
  monkeypatch.setenv('MPLBACKEND', 'agg')
  from matplotlib import pyplot
  monkeypatch.setattr(pyplot, 'show', pyplot.close)
  monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
  monkeypatch.delenv('OCT_DIR', raising=False)
  code = '\n'.join(''.join(cell['source']) for cell in code_cells(read(name)))
  for old, new in SHORTER[name].items():
    assert code.count(old) >= 1
    code = code.replace(old, new)
  log = logging.getLogger('tensorflow')
  monkeypatch.setattr(log, 'level', log.level)
  with pyplot.rc_context():
    exec(code.replace('%matplotlib inline', ''), {})
  out = capsys.readouterr().out
  assert all(text in out for text in texts), out


@pytest.fixture(scope='module')
def notebooks_python():
  """The Python of the environment with Jupyter."""
  if sys.version_info[:2] != (3, 7):
    pytest.skip('the environment of the notebooks has CPython 3.7')
  return python_installed_by('install_notebooks', 'Jupyter')


@pytest.fixture
def execute(notebooks_python, tmp_path, monkeypatch):
  """Executes cells of a notebook in this order; returns the texts of each, and the widgets."""
  kernel = tmp_path / 'kernel'
  run_process(notebooks_python, 'scripts/notebook_kernel.py', '--install', kernel, sys.executable,
              check=True)
  monkeypatch.setenv('JUPYTER_PATH', str(kernel))
  monkeypatch.setenv('TMPDIR', str(tmp_path))

  def run(name, cells):
    text = json.dumps(read(name))
    for old, new in SHORTER[name].items():
      text = text.replace(old, new)
    notebook = json.loads(text)
    by_id = {cell['id']: cell for cell in notebook['cells']}
    notebook['cells'] = [dict(by_id[cell], id=str(number)) for number, cell in enumerate(cells)]
    path = tmp_path / name
    path.write_text(json.dumps(notebook))
    done = run_process(notebooks_python, '-m', 'nbconvert', '--to=notebook', '--inplace',
                       '--execute', path, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stderr
    executed = json.loads(path.read_text())
    widgets, = executed['metadata'].get('widgets', {'': {'state': {}}}).values()
    return [(name, ''.join(line for output in cell['outputs'] for line in output.get('text', ())))
            for name, cell in zip(cells, executed['cells'])], [
                widget['state'] for widget in widgets['state'].values()]

  return run


def numbers(cells, cell, pattern):
  """Returns the number after a pattern in the output of each execution of a cell."""
  return [float(re.search(pattern + r' ([\d.]*\d)', text, re.MULTILINE).group(1))
          for name, text in cells if name == cell]


@pytest.mark.slow
def test_cells_run_in_several_orders(execute, tmp_path, monkeypatch):
  monkeypatch.delenv('OCT_DIR', raising=False)
  cells, _ = execute('fashion_mnist.ipynb', [
      'parameters', 'imports', 'load', 'model', 'input', 'train', 'evaluate', 'export', 'predict',
      # Again: the cell that trains, also with a new model, and the cells after it without it.
      'evaluate', 'train', 'model', 'train', 'evaluate', 'load', 'imports', 'predict',
      # A new run.
      'parameters', 'train', 'evaluate'])
  assert numbers(cells, 'train', '^step') == [12, 24, 36, 12]
  accuracies = numbers(cells, 'evaluate', 'accuracy')
  # The model of the third evaluation has been trained for 36 steps.
  assert len(accuracies) == 4 and accuracies[0] == accuracies[1] and accuracies[2] > .5
  assert len(list(tmp_path.glob('fashion_mnist-*'))) == 2

  cells, widgets = execute('oct2017.ipynb', [
      'parameters', 'imports', 'load', 'audit', 'train', 'evaluate', 'predict',
      'train', 'evaluate', 'audit', 'load', 'imports', 'predict',
      # A new run, without the damaged image.
      'parameters', 'load', 'train', 'evaluate'])
  assert numbers(cells, 'train', '^step') == [11, 11, 11]
  assert numbers(cells, 'train', 'skipped:') == [1, 1, 0]
  # Bars: the check of two splits, the features and the steps. The second run has none to train.
  bars = [widget for widget in widgets if widget['_model_name'] == 'FloatProgressModel']
  assert len(bars) >= 8 and all(bar['value'] == bar['max'] for bar in bars)
