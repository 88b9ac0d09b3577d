"""Writes the report page of a run: `report/index.html` in its `model_dir`, with embedded images."""

import base64
import functools
import glob
import logging
import math
import os
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.reports import (
  REPORT_FOLDER,
  TRAIN_BATCH_FILE,
  evaluation,
  make_report_folder,
  page_content,
  report_files,
)
from estimator_train.run_dir import FLAGS_FILE
from estimator_train.settings import Settings, data_folder, parse_flagfile, to_flagfile
from estimator_train.settings.flags import ModelFlags, ReportingFlags
from estimator_train.system import formatting, storage
from estimator_train.version import __version__

_LOG = logging.getLogger('estimator_train')
_CONSEQUENCE_OF_DAMAGE = 'the report page omits it'
_PNG_SIGNATURE = b'\x89PNG\r\n\x1a\n'
# The files of all charts. If this run has no data for a chart, the file of an earlier run is
# removed.
_CHART_FILES = ('step-time.png', 'step-histogram.png', 'loss.png', 'accuracy.png',
                'learning-rate.png', 'confusion-matrix.png', 'reliability.png', 'roc.png',
                'precision-recall.png', 'output-*.png', 'scaling.png', 'scaling-efficiency.png',
                'lr-finder.png', 'rates.png', 'compared-loss.png', 'compared-accuracy.png')
# The longer side of a sample image in CSS pixels. Three samples fit in a row on a phone.
_SAMPLE_SIZE = 112
_UNKNOWN_EXAMPLE = (None, None)
# The legend of more runs would not fit above a chart, and nobody could distinguish their lines.
_MAX_RUNS_IN_CHARTS = 12


class PageData(NamedTuple):
  """The contents of the files in a `model_dir`; empty if a file is missing or damaged.

  Attributes:
    flags: the values of the flags by name; None for a flag that is not set.
    throughput, evaluation and so on: the content of the JSON file of this name; see report_files.
    ledger: the comparison of `--mode=reproduce` with the published results.
  """
  flags: Dict[str, Optional[str]]
  throughput: Dict[str, Any]
  evaluation: Dict[str, Any]
  input_benchmark: Dict[str, Any]
  scaling: Dict[str, Any]
  lr_finder: Dict[str, Any]
  ledger: Dict[str, Any]
  steps: Dict[str, Any]
  curves: Dict[str, Any]
  samples: Dict[str, Any]
  outputs: Dict[str, Any]


class ComparedRun(NamedTuple):
  """A training run to compare with others, under a name for the page."""
  name: str
  folder: str
  data: PageData

  @property
  def rates(self) -> Dict[str, Optional[float]]:
    """The rates of the run by unit; None for a rate that is unknown."""
    return {unit: self.data.throughput.get(unit.replace('/', '_per_'))
            for unit in ('examples/sec', 'steps/sec')}


def read_page_data(model_dir: str) -> PageData:
  flags = storage.load_or_warn(
      os.path.join(model_dir, FLAGS_FILE), storage.parse_text, _CONSEQUENCE_OF_DAMAGE) or ''
  return PageData(parse_flagfile(flags), **{
      name: report_files.read_or_warn(model_dir, name, _CONSEQUENCE_OF_DAMAGE)
      for name in report_files.CHECKS})


def write_page_of_finished_run(model_dir: str, flags: ReportingFlags) -> Optional[str]:
  """Writes the page if `--report_page` is set, and returns its path; None if it was not written.

  If the page cannot be written, the function only logs a warning, so that the run still succeeds.
  """
  if flags.report_page:
    try:
      return write_page(model_dir)
    except OSError as error:
      _LOG.warning('the report page could not be written: %s', error)
  return None


class ComparisonRow(NamedTuple):
  """A row of the table that compares runs.

  Attributes:
    cells: a text for each run.
    are_best: for each run, whether its value is the best.
  """
  title: str
  cells: Sequence[str]
  are_best: Sequence[bool]

  @property
  def is_same(self) -> bool:
    """Whether all runs have the same value."""
    return len(set(self.cells)) == 1


def write_comparison(runs: Sequence[ComparedRun], rows: Sequence[ComparisonRow],
                     output_dir: str) -> str:
  """Writes the page that compares runs, and its charts, to `report/`; returns the path of the page.

  Args:
    output_dir: the folder in which `report/` is made.
  """
  from estimator_train.reports import charts  # On demand, so that the program starts fast.

  data = dict.fromkeys(filter(None, (page_content.describe_data(
      run.data.flags, run.data.throughput.get('dataset')) for run in runs)))
  shown = _select_runs_for_charts(runs)
  return _render_page(output_dir, 'comparison.html', charts.draw_comparison_charts(
      [run.name for run in shown], [run.rates for run in shown],
      [run.data.curves for run in shown]), runs=runs, rows=rows, data=list(data),
                      num_runs_in_charts=len(shown))


def _select_runs_for_charts(runs: Sequence[ComparedRun]) -> List[ComparedRun]:
  """Returns the runs with the highest accuracies and, if these are equal, the lowest losses."""
  def compute_rank(index: int) -> Tuple[float, float]:
    accuracy, loss = map(runs[index].data.evaluation.get, ('accuracy', 'average_loss'))
    return (math.inf if accuracy is None else -accuracy, math.inf if loss is None else loss)

  best = sorted(range(len(runs)), key=compute_rank)[:_MAX_RUNS_IN_CHARTS]
  return [runs[index] for index in sorted(best)]


def write_page(model_dir: str, data: Optional[PageData] = None,
               output_dir: Optional[str] = None) -> str:
  """Writes the page and its charts to `report/`, and returns the path of the page.

  Args:
    model_dir: the folder of the run, from which the images of the samples are read.
    data: the data to show; None to read it from `model_dir`.
    output_dir: the folder of `report/`; None for `model_dir`.
  """
  if data is None:
    data = read_page_data(model_dir)
  # On demand, so that the program starts fast.
  from estimator_train.reports import charts, experiment_charts

  shown_classes = evaluation.select_classes_to_show(data.evaluation)
  chart_list = [*charts.draw_step_charts(data.steps, data.throughput),
                *charts.draw_curves(data.curves), *charts.draw_output_charts(data.outputs),
                *experiment_charts.draw_scaling_charts(data.scaling),
                *experiment_charts.draw_lr_finder_chart(data.lr_finder)]
  confusions: Sequence[evaluation.Confusion] = ()
  if shown_classes is not None:
    chart_list += [*charts.draw_reliability(data.evaluation),
                   *charts.draw_threshold_curves(data.evaluation)]
    if shown_classes.matrix is not None:
      chart_list.append(charts.draw_confusion_matrix(shown_classes))
    # The cells of a small confusion matrix have the numbers of all mistakes.
    if shown_classes.matrix is None or len(shown_classes.rows) > charts.MAX_CLASSES_WITH_COUNTS:
      confusions = shown_classes.confusions
  mistakes, samples = (data.samples.get(kind, []) for kind in ('mistakes', 'samples'))
  shown_mistakes = set(map(_identify_sample, mistakes)) - {_UNKNOWN_EXAMPLE}
  shown_samples = {'mistakes': mistakes, 'samples': [
      sample for sample in samples if _identify_sample(sample) not in shown_mistakes]}
  return _render_page(
      output_dir or model_dir, 'page.html', chart_list, data=data, content=page_content,
      classes=shown_classes, confusions=confusions,
      defaults=_find_defaults(data.flags),
      title=page_content.make_title(data, os.path.basename(os.path.abspath(model_dir))),
      samples={kind: [_load_sample(model_dir, sample) for sample in shown]
               for kind, shown in shown_samples.items()},
      train_batch=_load_image(model_dir, TRAIN_BATCH_FILE))


def _find_defaults(flags: Dict[str, Optional[str]]) -> Dict[str, Optional[str]]:
  """Returns the texts that flags.txt of this run would have if no flag but the data was given."""
  defaults = parse_flagfile(to_flagfile(Settings()))
  defaults.update((name, flags[name]) for name in data_folder.list_found_patterns(flags))
  defaults['preprocess'] = ModelFlags(**{
      name: flags.get(name) or '' for name in ('model', 'weights')}).chosen_preprocess
  return defaults


@functools.lru_cache()
def _make_environment() -> Any:
  import jinja2  # On demand, so that the program starts fast.

  environment = jinja2.Environment(
      loader=jinja2.FileSystemLoader(os.path.dirname(__file__)), autoescape=True,
      trim_blocks=True, lstrip_blocks=True)
  environment.filters.update(
      number=formatting.format_number, percent=page_content.format_percent,
      ratio=formatting.format_ratio,
      data_uri=lambda png: 'data:image/png;base64,' + base64.b64encode(png).decode('ascii'))
  return environment


def _render_page(output_dir: str, template: str, charts: Iterable[Any],
                 **variables: Any) -> str:
  """Renders a template to `report/index.html`, and writes the charts next to it."""
  charts_by_name = {chart.name: chart for chart in charts}
  text = _make_environment().get_template(template).render(
      charts=charts_by_name, version=__version__, **variables)
  folder = make_report_folder(output_dir)
  for pattern in _CHART_FILES:
    for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
      if os.path.basename(path) not in charts_by_name:
        os.remove(path)
  for name, chart in charts_by_name.items():
    storage.write_bytes(os.path.join(folder, name), chart.png)
  path = os.path.join(folder, 'index.html')
  # UTF-8 cannot encode surrogates, which stand for bytes of file names. The page shows a surrogate
  # as text, such as `\udcff`.
  storage.write_bytes(path, text.encode('utf-8', 'backslashreplace'))
  return path


class EmbeddedImage(NamedTuple):
  """An image of the page: the content of a PNG file, and its size in pixels."""
  png: bytes
  width: int
  height: int


def _load_image(model_dir: str, name: str) -> Optional[EmbeddedImage]:
  """Returns an image in `report/`; None if it does not exist, or is not a PNG file."""
  content = storage.load_or_warn(os.path.join(model_dir, REPORT_FOLDER, name),
                                 lambda file: file.read(), _CONSEQUENCE_OF_DAMAGE) or b''
  is_png = content[:8] == _PNG_SIGNATURE and content[12:16] == b'IHDR' and len(content) >= 24
  width, height = struct.unpack('>II', content[16:24]) if is_png else (0, 0)
  return EmbeddedImage(content, width, height) if width and height else None


def _identify_sample(sample: Dict[str, Any]) -> Tuple[Optional[str], Optional[int]]:
  """Returns what identifies the example; _UNKNOWN_EXAMPLE in files of earlier versions."""
  return sample.get('file'), sample.get('example')


def _load_sample(model_dir: str, sample: Dict[str, Any]) -> Dict[str, Any]:
  """Returns the sample with its PNG file as `png`, and its `width` and `height` in CSS pixels.

  If there is no image, or if it is not a PNG file, `png` is None.

  Args:
    sample: an item of samples.json.
  """
  name = sample.get('image') or ''
  # A name with folders could lead outside of `report/`.
  image = _load_image(model_dir, name) if name and os.path.basename(name) == name else None
  if image is None:
    return dict(sample, png=None)
  scale = _SAMPLE_SIZE / max(image.width, image.height)
  return dict(sample, png=image.png, width=max(round(image.width * scale), 1),
              height=max(round(image.height * scale), 1))
