"""One page about a run, `report/index.html` in its `model_dir`, which needs nothing else."""

import base64
import logging
import os
import platform
from typing import Any, Dict, Optional

from estimator_train import __version__
from estimator_train.files import atomic
from estimator_train.reports import classes, page_figures, page_files, words
from estimator_train.reports.step_curve import FOLDER
from estimator_train.settings import groups

_LOG = logging.getLogger('estimator_train')
FILE = 'index.html'
# All that there can be; those of an earlier run may not apply to this one.
_PICTURES = ('step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png',
             'confusion-matrix.png', 'scaling.png')
_SAMPLE_WIDTH = 112  # CSS pixels: three beside each other on a phone.


def write_after(model_dir: Optional[str], settings: groups.Reporting) -> None:
  """Writes the page of a finished run, if it has a `model_dir` and its flags ask for one.

  Failing to write the page logs a warning; the results of the run are kept.
  """
  if settings.report_page and model_dir:
    try:
      write(model_dir)
    except OSError as error:
      _LOG.warning('the page about the run could not be written: %s', error)


def write(model_dir: str) -> Optional[str]:
  """Writes the page and its pictures about what is in a `model_dir`.

  Args:
    model_dir: its files may all be missing; the page is without their part then.

  Returns:
    The path of the page; None where a package that it takes is not installed.
  """
  # Imported only here: they take a second, and a run can do without them. matplotlib tells of a
  # home folder that it cannot write to, which does not matter to who trains.
  logging.getLogger('matplotlib').setLevel(logging.ERROR)
  try:
    import jinja2

    from estimator_train.reports import pictures
  except ImportError as error:
    _LOG.info('there is no page about the run (%s): `pip install estimator_train[report]`', error)
    return None
  files = page_files.read(model_dir)
  shown = classes.choose(files.evaluation)
  drawn = pictures.draw(files, shown)
  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True,
      trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(number=words.number, percent=words.percent, secs=words.secs,
                             times=words.times, data_uri=_data_uri)
  text = environment.get_template('page.html').render(
      files=files, figures=page_figures, pictures=drawn, classes=shown,
      samples=[_sample(model_dir, sample) for sample in files.samples], version=__version__,
      python=platform.python_version())
  folder = os.path.join(model_dir, FOLDER)
  os.makedirs(folder, exist_ok=True)
  for name in _PICTURES:
    path = os.path.join(folder, name)
    if name in drawn:
      atomic.write_bytes(path, drawn[name].png)
    elif os.path.exists(path):
      os.remove(path)
  path = os.path.join(folder, FILE)
  # A file's name may hold bytes that are no text.
  atomic.write_bytes(path, text.encode('utf-8', 'backslashreplace'))
  return path


def _data_uri(png: bytes) -> str:
  return 'data:image/png;base64,' + base64.b64encode(png).decode('ascii')


def _sample(model_dir: str, sample: Dict[str, Any]) -> Dict[str, Any]:
  """Returns a sample with its image's bytes, and the size that the page shows it in."""
  image = page_files.read_image(model_dir, sample.get('image') or '')
  if image is None:
    return dict(sample, png=None)
  png, width, height = image
  scale = _SAMPLE_WIDTH / max(width, height)
  return dict(sample, png=png, width=max(round(width * scale), 1),
              height=max(round(height * scale), 1))
