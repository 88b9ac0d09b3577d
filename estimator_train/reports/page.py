"""Writes the report page of a run: `report/index.html` in its `model_dir`, with embedded images."""

import base64
import glob
import logging
import os
import platform
from typing import Any, Dict, List, Mapping, Optional, Sequence

from estimator_train import __version__
from estimator_train.files import atomic
from estimator_train.reports import (
  class_selection,
  number_format,
  page_content,
  page_data,
  run_comparison,
)
from estimator_train.reports.step_curve import REPORT_FOLDER
from estimator_train.settings import groups

_LOG = logging.getLogger('estimator_train')
_PAGE_FILE = 'index.html'
# The files of all charts, except those of outputs. `_write_files` removes the files of charts that
# have no data, because an earlier run may have written these files.
_CHART_FILES = ('step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png',
                'confusion-matrix.png', 'scaling.png', 'scaling-prediction.png', 'rates.png',
                'compared-loss.png', 'compared-accuracy.png')
# The longer side of a sample image in CSS pixels. Three samples fit in a row on a phone.
_SAMPLE_SIZE = 112


def write_page_of_finished_run(model_dir: Optional[str],
                               settings: groups.Reporting) -> Optional[str]:
  """Writes the page if the run has a `model_dir` and `--report_page` is set.

  If the page cannot be written, the function only logs a warning, so that the run still succeeds.

  Returns:
    The path of the page; None if it was not written.
  """
  if settings.report_page and model_dir:
    try:
      return write_page(model_dir)
    except OSError as error:
      _LOG.warning('the report page could not be written: %s', error)
  return None


def write_page(model_dir: str) -> Optional[str]:
  """Writes the page and its charts.

  Args:
    model_dir: model_dir of the run. The page omits a section whose input file is missing.

  Returns:
    The path of the page; None if Jinja2 or matplotlib is not installed.
  """
  return _write_run_page(page_data.read_page_data(model_dir), model_dir, model_dir)


def write_page_of_runs(runs: Sequence[run_comparison.Run], output_dir: str) -> Optional[str]:
  """Writes the page of one run, or the comparison of several runs, to `report/` in `output_dir`.

  Returns:
    The path of the page; None if Jinja2 or matplotlib is not installed.
  """
  if len(runs) == 1:
    return _write_run_page(runs[0].data, runs[0].folder, output_dir)
  if not _has_packages():
    return None
  from estimator_train.reports import comparison_charts

  charts = comparison_charts.draw_comparison_charts(runs)
  header, rows = run_comparison.table(runs)
  return _write_files(output_dir, 'comparison.html', charts, runs=runs, header=header, rows=rows)


def _write_run_page(data: page_data.PageData, model_dir: str, output_dir: str) -> Optional[str]:
  if not _has_packages():
    return None
  try:
    return _render_run_page(data, model_dir, output_dir)
  except OSError:
    raise
  except Exception:  # A file lacks keys, or has values of other types.
    return _render_run_page(_omit_damaged(data, model_dir, output_dir), model_dir, output_dir)


def _omit_damaged(data: page_data.PageData, model_dir: str,
                  output_dir: str) -> page_data.PageData:
  """Returns the data without the files from each of which alone no page can be made."""
  empty_contents: List[Any] = [type(content)() for content in data[1:]]
  empty = page_data.PageData(page_data.RecordedFlags({}, []), *empty_contents)
  for name, content in data._asdict().items():
    try:
      _render_run_page(empty._replace(**{name: content}), model_dir, output_dir)
    except Exception as error:
      _LOG.warning('the report page omits the contents of %s, which are damaged: %s: %s', name,
                   type(error).__name__, error)
      data = data._replace(**{name: getattr(empty, name)})
  return data


def _render_run_page(data: page_data.PageData, model_dir: str, output_dir: str) -> str:
  from estimator_train.reports import page_charts

  shown_classes = class_selection.select_classes(data.evaluation)
  return _write_files(
      output_dir, 'page.html', page_charts.draw_charts(data, shown_classes), data=data,
      content=page_content, classes=shown_classes,
      samples=[_load_sample(model_dir, sample) for sample in data.samples])


def _has_packages() -> bool:
  """Returns whether Jinja2 and matplotlib are installed, and logs a message if not.

  The packages are optional. They are imported only to write a page: the import takes a second.
  """
  # Hides a harmless warning that matplotlib logs if the home folder is not writable.
  logging.getLogger('matplotlib').setLevel(logging.ERROR)
  try:
    import jinja2
    import matplotlib

    return bool(jinja2 and matplotlib)
  except ImportError as error:
    _LOG.info('the report page is not written (%s): install the packages that it requires with '
              '`pip install estimator_train[report]`', error)
    return False


def _write_files(output_dir: str, template: str, charts: Mapping[str, Any],
                 **variables: Any) -> str:
  """Renders a template to `report/index.html`, and writes the charts next to it."""
  import jinja2

  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True,
      trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(
      number=number_format.format_number, percent=number_format.format_percent,
      ratio=number_format.format_ratio, data_uri=_make_data_uri)
  text = environment.get_template(template).render(
      charts=charts, version=__version__, python=platform.python_version(), **variables)
  folder = os.path.join(output_dir, REPORT_FOLDER)
  os.makedirs(folder, exist_ok=True)
  for name in {*_CHART_FILES, *charts, *_find_output_charts(folder)}:
    path = os.path.join(folder, name)
    if name in charts:
      atomic.write_bytes(path, charts[name].png)
    elif os.path.exists(path):
      os.remove(path)
  path = os.path.join(folder, _PAGE_FILE)
  # UTF-8 cannot encode surrogate escapes in file names, so the page shows them as `\udcff`.
  atomic.write_bytes(path, text.encode('utf-8', 'backslashreplace'))
  return path


def _find_output_charts(folder: str) -> List[str]:
  """Returns the names of the existing charts of outputs; see output_charts.py."""
  return [os.path.basename(path)
          for path in glob.glob(os.path.join(glob.escape(folder), 'output-*.png'))]


def _make_data_uri(png: bytes) -> str:
  return 'data:image/png;base64,' + base64.b64encode(png).decode('ascii')


def _load_sample(model_dir: str, sample: Dict[str, Any]) -> Dict[str, Any]:
  """Returns a copy of a sample with the PNG file of its image and the size to show on the page.

  Args:
    model_dir: model_dir of the run.
    sample: an entry of samples.json.

  Returns:
    The entry with the PNG file as `png`, and `width` and `height` in CSS pixels. If there is no
    image, `png` is None.
  """
  image = page_data.read_image(model_dir, sample.get('image') or '')
  if image is None:
    return dict(sample, png=None)
  png, width, height = image
  scale = _SAMPLE_SIZE / max(width, height)
  return dict(sample, png=png, width=max(round(width * scale), 1),
              height=max(round(height * scale), 1))
