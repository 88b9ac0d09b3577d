"""Progress bars: widgets or text in notebooks, text on terminals, nothing elsewhere."""

import sys
import types
import warnings

import pytest

from estimator_train.process import progress_bar


def use_bar(**options):
  """Uses a progress bar, and returns whether it is shown."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    with progress_bar.make_progress_bar(total=4, desc='filling', **options) as bar:
      bar.update(4)
      return not bar.disable


def test_nothing_is_shown_without_a_terminal(capsys):
  assert not use_bar() and not progress_bar.is_shown() and capsys.readouterr().err == ''


@pytest.mark.parametrize('leave', [True, False])
def test_text_on_a_terminal(capsys, monkeypatch, leave):
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
  assert progress_bar.is_shown() and use_bar(leave=leave)
  shown = capsys.readouterr().err
  assert 'filling: ' in shown and ('100%' in shown) == leave


def test_text_in_a_notebook_without_widgets(capsys, jupyter_kernel):
  assert progress_bar.is_shown() and use_bar(leave=False)
  assert capsys.readouterr().err.splitlines()[-1].startswith('filling: 100%')


def test_a_widget_in_a_notebook(monkeypatch, capsys, jupyter_kernel):
  made = []

  class Widget:
    disable = False

    def __init__(self, **options):
      made.append(options)

    def __enter__(self):
      return self

    def __exit__(self, *unused):
      made.append('closed')

    def update(self, count):
      made.append(count)

  monkeypatch.setitem(sys.modules, 'ipywidgets', types.ModuleType('ipywidgets'))
  monkeypatch.setitem(sys.modules, 'tqdm.notebook', types.SimpleNamespace(tqdm=Widget))
  assert use_bar(leave=False)
  assert made == [{'total': 4, 'desc': 'filling', 'leave': True}, 4, 'closed']
  assert capsys.readouterr() == ('', '')


def test_ipython_on_a_terminal_is_no_notebook(jupyter_kernel):
  del jupyter_kernel.kernel
  assert not use_bar() and not progress_bar.is_shown()
