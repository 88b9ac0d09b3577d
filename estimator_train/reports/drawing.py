"""Style and rendering of the report page's charts.

Imports matplotlib, so import this module only where a chart is drawn.
"""

import contextlib
import io
import warnings
from typing import Any, Dict, Iterator, NamedTuple, Sequence, Tuple

import matplotlib
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH = 480  # CSS pixels. A phone scales charts to 3/4 of this width, where text is still legible.
_CSS_DPI = 100
_PIXELS_PER_CSS_PIXEL = 2  # The resolution of phones and printers.
INK, FAINT = '#1f2933', '#6b7785'
# The palette of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, RED, GREEN, PURPLE = '#0072b2', '#d55e00', '#009e73', '#cc79a7'
_STYLE: Dict[str, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': '#aab4bf',
    'axes.grid': True,
    'axes.labelcolor': INK,
    'axes.labelsize': 9,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'font.family': 'DejaVu Sans',  # Ships with matplotlib, so it is the same on every machine.
    'font.size': 9,
    'grid.color': '#e6eaee',
    'legend.fontsize': 8.5,
    'legend.frameon': False,
    'lines.linewidth': 1.6,
    'text.color': INK,
    'text.usetex': False,
    'xtick.color': FAINT,
    'xtick.labelcolor': INK,
    'ytick.color': FAINT,
    'ytick.labelcolor': INK,
}
_MAX_LABEL = 18
_NUMBERS = ticker.StrMethodFormatter('{x:,.10g}')


class Chart(NamedTuple):
  """A rendered chart of the report page.

  Attributes:
    name: file name, and key in the page's template.
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
def chart_style() -> Iterator[None]:
  """Applies the style of this module in place of the user's matplotlib settings."""
  with matplotlib.rc_context(), warnings.catch_warnings():
    # tight_layout warns if labels do not fit; the best available layout is used then.
    warnings.simplefilter('ignore')
    matplotlib.rcdefaults()
    # matplotlib 3.3 has no separate colour for tick labels.
    matplotlib.rcParams.update(
        {name: value for name, value in _STYLE.items() if name in matplotlib.rcParams})
    yield


def make_axes(height: int, rows: Sequence[int] = (1,)) -> Tuple[Figure, Any]:
  """Returns a figure and an array of its axes, from top to bottom.

  Args:
    height: height of the figure in CSS pixels.
    rows: relative heights of the axes, which share their x axis.
  """
  figure = Figure(figsize=(WIDTH / _CSS_DPI, height / _CSS_DPI))
  FigureCanvasAgg(figure)
  axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False,
                         gridspec_kw={'height_ratios': list(rows)})
  for each in axes[:, 0]:
    each.xaxis.set_major_formatter(_NUMBERS)
    each.yaxis.set_major_formatter(_NUMBERS)
  return figure, axes[:, 0]


def render_chart(figure: Figure, name: str, alt: str, caption: str = '') -> Chart:
  """Renders a figure as PNG."""
  figure.tight_layout(pad=0.4)
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png', dpi=_CSS_DPI * _PIXELS_PER_CSS_PIXEL, facecolor='white')
  width, height = (int(round(inches * _CSS_DPI)) for inches in figure.get_size_inches())
  return Chart(name, alt, caption, width, height, buffer.getvalue())


def chart_label(text: str, fallback: str) -> str:
  """Converts text from the user to one short line that matplotlib can draw.

  Args:
    text: any text.
    fallback: returned if the font lacks a glyph of the text.
  """
  line = ' '.join(text.split())
  if len(line) > _MAX_LABEL:
    line = line[:_MAX_LABEL - 1] + '…'
  if not line or not line.isprintable() or not _has_glyphs(line):
    line = fallback
  return line.replace('$', r'\$')  # matplotlib parses text between two `$` as a formula.


def _has_glyphs(line: str) -> bool:
  font = font_manager.get_font(font_manager.findfont('DejaVu Sans'))
  return all(font.get_char_index(ord(character)) for character in line)
