"""How the pictures of the page look; imports matplotlib, so import it where a picture is drawn."""

import contextlib
import io
import warnings
from typing import Any, Dict, Iterator, NamedTuple, Sequence, Tuple

import matplotlib
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH = 480  # CSS pixels: a phone shows it at 3/4, where its letters can still be read.
_CSS_DPI = 100
_PIXELS_PER_CSS_PIXEL = 2  # What phones and printers can show.
INK, FAINT = '#1f2933', '#6b7785'
# Okabe and Ito's colours, which colour-blind people can tell apart too.
BLUE, RED, GREEN, PURPLE = '#0072b2', '#d55e00', '#009e73', '#cc79a7'
_STYLE: Dict[str, Any] = {
    'axes.axisbelow': True,
    'axes.edgecolor': '#aab4bf',
    'axes.grid': True,
    'axes.labelcolor': INK,
    'axes.labelsize': 9,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'font.family': 'DejaVu Sans',  # Comes with matplotlib: the same on every machine.
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


class Picture(NamedTuple):
  """A picture of the page.

  Attributes:
    name: of its file, and what the page calls it by.
    alt: what it shows, for who does not see it.
    caption: what is to be said beside it.
    width, height: CSS pixels.
    png: the file.
  """
  name: str
  alt: str
  caption: str
  width: int
  height: int
  png: bytes


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Draws as this module says, whatever the user's settings of matplotlib are."""
  with matplotlib.rc_context(), warnings.catch_warnings():
    # Of a layout that is tight: the picture is as good as it gets.
    warnings.simplefilter('ignore')
    matplotlib.rcdefaults()
    # matplotlib 3.3 has no colour for the labels of ticks.
    matplotlib.rcParams.update(
        {name: value for name, value in _STYLE.items() if name in matplotlib.rcParams})
    yield


def make_axes(height: int, rows: Sequence[int] = (1,)) -> Tuple[Figure, Any]:
  """Returns a figure of a height in CSS pixels, and its axes below each other.

  Args:
    height: of the figure.
    rows: the relative heights of the axes, which share their x axis.
  """
  figure = Figure(figsize=(WIDTH / _CSS_DPI, height / _CSS_DPI))
  FigureCanvasAgg(figure)
  axes = figure.subplots(len(rows), 1, sharex=True, squeeze=False,
                         gridspec_kw={'height_ratios': list(rows)})
  for each in axes[:, 0]:
    each.xaxis.set_major_formatter(_NUMBERS)
    each.yaxis.set_major_formatter(_NUMBERS)
  return figure, axes[:, 0]


def finish(figure: Figure, name: str, alt: str, caption: str = '') -> Picture:
  """Returns the picture of a figure."""
  figure.tight_layout(pad=0.4)
  buffer = io.BytesIO()
  figure.savefig(buffer, format='png', dpi=_CSS_DPI * _PIXELS_PER_CSS_PIXEL, facecolor='white')
  width, height = (int(round(inches * _CSS_DPI)) for inches in figure.get_size_inches())
  return Picture(name, alt, caption, width, height, buffer.getvalue())


def label(text: str, otherwise: str) -> str:
  """Returns a text of the user's as one short line for matplotlib.

  Args:
    text: anything.
    otherwise: what stands for it where the font has not all its letters.
  """
  line = ' '.join(text.split())
  if len(line) > _MAX_LABEL:
    line = line[:_MAX_LABEL - 1] + '…'
  if not line or not line.isprintable() or not _has_letters(line):
    line = otherwise
  return line.replace('$', r'\$')  # Two of them would be a formula.


def _has_letters(line: str) -> bool:
  font = font_manager.get_font(font_manager.findfont('DejaVu Sans'))
  return all(font.get_char_index(ord(letter)) for letter in line)
