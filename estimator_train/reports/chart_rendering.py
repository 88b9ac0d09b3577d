"""Renders the charts of the report page as PNG images, all in the same style.

This module imports matplotlib, which is slow to import. Therefore, reports/page.py imports the
modules of the charts only inside the functions that write a page.
"""

import contextlib
import io
import warnings
from typing import Any, Dict, Iterator, NamedTuple, Sequence, Tuple

import matplotlib
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# In CSS pixels. The text of a chart is legible even on a phone, which shows the chart at 3/4 of
# this width.
CHART_WIDTH = 480
_CSS_DPI = 100
_PIXELS_PER_CSS_PIXEL = 2  # Keeps the charts sharp on phones and in print.
TEXT_COLOR, MUTED_COLOR = '#1f2933', '#6b7785'
# Colours of the Okabe-Ito palette, which colour-blind readers can distinguish.
BLUE, RED, GREEN, PURPLE = '#0072b2', '#d55e00', '#009e73', '#cc79a7'
_STYLE: Dict[str, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': '#aab4bf',
    'axes.grid': True,
    'axes.labelcolor': TEXT_COLOR,
    'axes.labelsize': 9,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'font.family': 'DejaVu Sans',  # Comes with matplotlib, so every machine has this font.
    'font.size': 9,
    'grid.color': '#e6eaee',
    'legend.fontsize': 8.5,
    'legend.frameon': False,
    'lines.linewidth': 1.6,
    'text.color': TEXT_COLOR,
    'text.usetex': False,
    'xtick.color': MUTED_COLOR,
    'xtick.labelcolor': TEXT_COLOR,
    'ytick.color': MUTED_COLOR,
    'ytick.labelcolor': TEXT_COLOR,
}
_MAX_TICK_LABEL_LENGTH = 18  # In characters.
TICK_FORMATTER = ticker.StrMethodFormatter('{x:,.10g}')


class Chart(NamedTuple):
  """A rendered chart of the report page.

  Attributes:
    name: file name of the chart; page.html refers to the chart by this name.
    alt: alternative text for readers who cannot see the chart.
    caption: caption below the chart; may be empty.
    width, height: size in CSS pixels.
    png: contents of the PNG file.
  """
  name: str
  alt: str
  caption: str
  width: int
  height: int
  png: bytes


@contextlib.contextmanager
def apply_chart_style() -> Iterator[None]:
  """Returns a context in which the style of this module replaces the user's matplotlib settings."""
  with matplotlib.rc_context(), warnings.catch_warnings():
    # tight_layout warns if the axis labels do not fit. The chart is usable anyway.
    warnings.simplefilter('ignore')
    matplotlib.rcdefaults()
    # An old matplotlib lacks some of the settings: 3.3 has no `xtick.labelcolor`.
    matplotlib.rcParams.update(
        {name: value for name, value in _STYLE.items() if name in matplotlib.rcParams})
    yield


def make_subplots(height: int, height_ratios: Sequence[int] = (1,)) -> Tuple[Figure, Any]:
  """Returns a matplotlib figure with subplots that share one x axis, and an array of their axes.

  Args:
    height: height of the figure in CSS pixels.
    height_ratios: relative heights of the subplots, from top to bottom.
  """
  figure = Figure(figsize=(CHART_WIDTH / _CSS_DPI, height / _CSS_DPI))
  FigureCanvasAgg(figure)
  all_axes = figure.subplots(len(height_ratios), 1, sharex=True, squeeze=False,
                             gridspec_kw={'height_ratios': list(height_ratios)})[:, 0]
  for axes in all_axes:
    axes.xaxis.set_major_formatter(TICK_FORMATTER)
    axes.yaxis.set_major_formatter(TICK_FORMATTER)
  return figure, all_axes


def render_chart(figure: Figure, name: str, alt: str, caption: str = '') -> Chart:
  """Renders a matplotlib figure and returns the Chart; see Chart for the other arguments."""
  figure.tight_layout(pad=0.4)
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png', dpi=_CSS_DPI * _PIXELS_PER_CSS_PIXEL, facecolor='white')
  width, height = (int(round(inches * _CSS_DPI)) for inches in figure.get_size_inches())
  return Chart(name, alt, caption, width, height, buffer.getvalue())


def format_tick_label(class_name: str, fallback: str) -> str:
  """Converts a class name to one short line of text that matplotlib can draw.

  Args:
    class_name: the class name, which may contain any characters.
    fallback: the text to return if the class name is empty or not printable, or if the font lacks
      a character of the class name.
  """
  line = ' '.join(class_name.split())
  if len(line) > _MAX_TICK_LABEL_LENGTH:
    line = line[:_MAX_TICK_LABEL_LENGTH - 1] + '…'
  if not line or not line.isprintable() or not _has_glyphs(line):
    line = fallback
  return line.replace('$', r'\$')  # Otherwise, `$` could begin a formula.


def _has_glyphs(line: str) -> bool:
  """Returns whether the font of the charts has all characters of the line."""
  font = font_manager.get_font(font_manager.findfont('DejaVu Sans'))
  return all(font.get_char_index(ord(character)) for character in line)
