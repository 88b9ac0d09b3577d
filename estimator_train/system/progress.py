"""Shows the progress of long work as bars."""

import sys
from typing import Any


def make_progress_bar(**options: Any) -> Any:
  """Makes a progress bar of tqdm, whose attribute `disable` is True if nothing is shown.

  On a terminal, the bar is text on standard error. In a Jupyter kernel, it is a widget, or text if
  ipywidgets is missing, and stays after it is closed. Elsewhere, nothing is shown.

  Args:
    **options: arguments of `tqdm`, except `file` and `disable`.
  """
  from tqdm import tqdm  # Imported here so that the program starts quickly.
  if not is_jupyter_kernel():
    return tqdm(file=sys.stderr, disable=None, **options)
  options['leave'] = True
  try:
    import ipywidgets  # noqa: F401
  except ImportError:
    return tqdm(file=sys.stderr, **options)
  from tqdm.notebook import tqdm as notebook_tqdm
  return notebook_tqdm(**options)


def shows_progress_bars() -> bool:
  return sys.stderr.isatty() or is_jupyter_kernel()


def is_jupyter_kernel() -> bool:
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython is not None else None
  return getattr(shell, 'kernel', None) is not None
