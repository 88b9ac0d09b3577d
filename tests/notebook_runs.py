"""Executes cells of notebooks in one kernel; runs in .venv-notebooks, which has nbclient.

  .venv-notebooks/bin/python tests/notebook_runs.py NOTEBOOK CELLS...

CELLS are ids of code cells, in the order of their execution. Replacements of text in the notebook
are read from standard input, as a JSON list of [old, new]. Prints, as JSON,
the outputs of each execution and the states of all widgets.
"""

import json
import sys
from pathlib import Path

import nbclient
import nbformat

CELL_TIMEOUT_SECS = 200


def main(path, names):
  text = Path(path).read_text(encoding='utf-8')
  for old, new in json.load(sys.stdin):
    assert text.count(old) == 1, old
    text = text.replace(old, new)
  notebook = nbformat.reads(text, 4)
  cells = {cell.id: (index, cell) for index, cell in enumerate(notebook.cells)}
  client = nbclient.NotebookClient(notebook, timeout=CELL_TIMEOUT_SECS, kernel_name='python3')
  outputs = []
  with client.setup_kernel():
    for name in names:
      index, cell = cells[name]
      client.execute_cell(cell, index)
      outputs.append(cell.outputs)
  print(json.dumps([outputs, list(client.widget_state.values())]))


if __name__ == '__main__':
  main(sys.argv[1], sys.argv[2:])
