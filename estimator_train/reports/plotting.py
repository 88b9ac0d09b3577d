"""Plots each chart in two formats with the same geometry: as SVG for the page, and as PNG.

Matplotlib is not used, because the run would wait more than a second for its import and drawing.
"""

import functools
import io
import math
import os
import unicodedata
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from estimator_train.system.formatting import format_number

# In CSS pixels. A phone shows a chart at 3/4 of this width, and its text is still legible.
WIDTH = 480
_FONT_SIZE, _SMALL_FONT_SIZE, _LINE_HEIGHT, _MARGIN = 12, 9.5, 17, 8
_MAX_LARGE_TICKS = 12
_LABEL_GAP = 10  # Between the label of the y axis and the plot.
_MAX_CELL_SIZE, _MIN_LARGE_CELL_SIZE = 72, 45
FONT_FILE = os.path.join(os.path.dirname(__file__), 'fonts', 'DejaVuSans.ttf')
# In pixels per CSS pixel. PNG files have twice the resolution, to be sharp on phones and in print.
# Everything except text is drawn with twice the resolution of the PNG file, and then reduced,
# because Pillow draws lines with hard edges.
_PNG_SCALE, _DRAWN_SCALE = 2, 4
# The colors in a PNG. The SVG refers to CSS variables of the same names, which page.css sets for
# light and dark screens. The last six colors are for lines. They come from the Okabe-Ito palette,
# whose colors color-blind readers can distinguish.
_COLORS = {'ink': '#1f2933', 'faint': '#5b6773', 'line': '#dfe4e9', 'page': '#ffffff',
           'blue': '#0072b2', 'red': '#c44f00', 'green': '#009e73', 'purple': '#cc79a7',
           'orange': '#e69f00', 'sky': '#56b4e9'}
_TIP_WIDTH = 4.  # A tooltip of lines has the values of the points within this width.

Points = List[Tuple[float, float]]


class Chart(NamedTuple):
  """A chart of the report page.

  Attributes:
    name: the name of the PNG file, by which the templates refer to the chart.
    description: a text for readers who cannot see the chart.
    width, height: in CSS pixels.
    shapes: the parts of the chart, which charts.html writes as SVG.
  """
  name: str
  description: str
  caption: str
  width: int
  height: int
  shapes: List[Dict[str, Any]]
  png: bytes


class Axis(NamedTuple):
  """An axis of a plot.

  Attributes:
    low, high: the values at the ends. If the values descend, `low` is greater than `high`.
    is_log: whether the scale is logarithmic.
    ticks: (value, text) of each tick. If empty, the ticks are multiples of a simple number or, on a
      logarithmic scale, powers of ten, perhaps with their multiples by 2 and 5.
    angle: the angle in degrees by which the texts of the ticks are rotated.
  """
  label: str
  low: float
  high: float
  is_log: bool = False
  ticks: Sequence[Tuple[float, str]] = ()
  angle: int = 0
  is_integer: bool = False

  def to_fractions(self, values: Any) -> np.ndarray:
    """Converts values to fractions of the axis, which are from 0 to 1 between its ends."""
    low, high, values = (np.log10(each) if self.is_log else np.asarray(each, float)
                         for each in (self.low, self.high, values))
    return (values - low) / (high - low or 1)

  def make_ticks(self, max_ticks: int) -> Sequence[Tuple[float, str]]:
    """Returns (value, text) of each tick; by default, there are about `max_ticks`."""
    if self.ticks:
      return self.ticks
    if self.is_log:
      return _make_log_ticks(self.low, self.high, max_ticks)
    min_step = (self.high - self.low) / max_ticks
    magnitude = 10. ** math.floor(math.log10(min_step))
    step = magnitude * next(
        factor for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= .999 * min_step)
    step = math.ceil(step) if self.is_integer else step
    multiples = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
    return [(multiple * step, '{:,.10g}'.format(multiple * step)) for multiple in multiples]


class Line(NamedTuple):
  """Points of a plot, and a line through them.

  Attributes:
    color: a name in _COLORS.
    label: the name of the values in the legend and the tooltips; '': in neither.
    width: the width of the line; 0: only the points are drawn.
    dash: the length of the dashes; 0: the line is solid.
    dot: the diameter of the points; 0: only the line is drawn.
  """
  color: str
  xs: Sequence[float]
  ys: Sequence[float]
  label: str = ''
  width: float = 1.6
  dash: float = 0
  dot: float = 0
  in_legend: bool = True


class Box(NamedTuple):
  """A filled rectangle of a plot: a bar, or a cell.

  Attributes:
    x0, y0, x1, y1: two opposite corners, as values on the axes.
    color: a name in _COLORS.
  """
  x0: float
  y0: float
  x1: float
  y1: float
  tip: str
  color: str = 'blue'
  opacity: float = .8
  text: str = ''


def compute_axis_ends(values: Any, margin: float = .05) -> Tuple[float, float]:
  """Returns the smallest and the largest value, with a margin that is a fraction of the range."""
  low, high = float(np.min(values)), float(np.max(values))
  margin = (high - low) * margin or abs(low) / 10 or 1.
  return low - margin, high + margin


def compute_log_axis_ends(values: Any) -> Tuple[float, float]:
  """Like compute_axis_ends, but for positive values on a logarithmic scale."""
  low, high = compute_axis_ends(np.log10(values))
  return 10 ** low, 10 ** high


def _make_log_ticks(low: float, high: float, max_ticks: int) -> List[Tuple[float, str]]:
  decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
  for factors in ((1, 2, 5), (1,)):
    ticks = [factor * 10. ** decade for decade in decades for factor in factors
             if low <= factor * 10. ** decade <= high]
    if len(ticks) <= 1.5 * max_ticks:
      break
  ticks = ticks[::-(-len(ticks) // int(1.5 * max_ticks)) or 1] or [low]
  return [(tick, '{:g}'.format(tick)) for tick in ticks]


@functools.lru_cache()
def _load_font(size: float) -> ImageFont.FreeTypeFont:
  """Returns the font of the PNG files, which has Latin, Greek and Cyrillic letters only.

  The SVG uses the fonts of the browser, which have all letters.
  """
  # The basic layout engine, 0, has no ligatures, but is much faster.
  return ImageFont.truetype(FONT_FILE, int(size * _PNG_SCALE), layout_engine=0)


def _measure_width(text: str) -> float:
  """Returns the width in CSS pixels, measured with a font that is wider than most others."""
  num_wide = sum(unicodedata.east_asian_width(character) in 'WF' for character in text)
  return _load_font(_FONT_SIZE).getlength(text) / _PNG_SCALE + num_wide * _FONT_SIZE / 2


class _Canvas:
  """Collects shapes and draws them. Coordinates are CSS pixels from the top left corner."""

  def __init__(self, width: int, height: int) -> None:
    self.width = width
    self.shapes: List[Dict[str, Any]] = []
    self._image = Image.new('RGB', (width * _DRAWN_SCALE, height * _DRAWN_SCALE), 'white')
    self._draw = ImageDraw.Draw(self._image, 'RGBA')

  def add_line(self, points: Points, color: str, width: float = 1, dash: float = 0) -> None:
    self.shapes.append({'line': points, 'color': color, 'width': width, 'dash': dash})
    for polyline in _split_into_dashes(points, dash) if dash else [points]:
      self._draw.line([coordinate * _DRAWN_SCALE for point in polyline for coordinate in point],
                      _COLORS[color], round(width * _DRAWN_SCALE), 'curve')

  def add_dots(self, points: Points, color: str, diameter: float) -> None:
    self.shapes.append({'dots': points, 'color': color, 'width': diameter})
    for point in points:
      self._draw.ellipse([(center + side * diameter / 2) * _DRAWN_SCALE for side in (-1, 1)
                          for center in point], _COLORS[color])

  def add_box(self, corners: Points, color: str, opacity: float, tip: str) -> None:
    self.shapes.append({'box': corners, 'color': color, 'opacity': opacity, 'tip': tip})
    if opacity:
      self._draw.rectangle([coordinate * _DRAWN_SCALE for point in corners for coordinate in point],
                           '{}{:02x}'.format(_COLORS[color], int(255 * opacity)),
                           _COLORS['page'], _DRAWN_SCALE // 2)

  def add_text(self, x: float, y: float, text: str, anchor: str = 'start', color: str = 'ink',
               angle: int = 0, size: float = _FONT_SIZE) -> None:
    """Adds a line of text; the anchor is the `text-anchor` of SVG."""
    self.shapes.append({'text': text, 'at': (x, y), 'anchor': anchor, 'color': color,
                        'angle': angle, 'size': size})

  def to_png(self) -> bytes:
    image, content = self._image.reduce(_DRAWN_SCALE // _PNG_SCALE), io.BytesIO()
    for shape in self.shapes:
      if 'text' in shape:
        font, (x, y) = _load_font(shape['size']), shape['at']
        # The text begins, is centered, or ends in the middle of a square, which is then rotated.
        half = int(font.getlength(shape['text'])) + font.size
        square = Image.new('L', (2 * half, 2 * half))
        ImageDraw.Draw(square).text((half, half), shape['text'], 255, font, {
            'start': 'ls', 'middle': 'ms', 'end': 'rs'}[shape['anchor']])
        image.paste(_COLORS[shape['color']], (int(x * _PNG_SCALE) - half,
                                              int(y * _PNG_SCALE) - half),
                    square.rotate(shape['angle'], Image.BILINEAR))
    image.save(content, 'PNG')
    return content.getvalue()


def _split_into_dashes(points: Points, dash: float) -> Iterator[Points]:
  xs, ys = np.array(points).T
  lengths = np.concatenate([[0], np.cumsum(np.hypot(np.diff(xs), np.diff(ys)))])
  for start in np.arange(0, lengths[-1], 2 * dash):
    end = min(start + dash, lengths[-1])
    stops = np.concatenate([[start], lengths[(lengths > start) & (lengths < end)], [end]])
    yield list(zip(np.interp(stops, lengths, xs), np.interp(stops, lengths, ys)))


class CellLayout(NamedTuple):
  """The size of a chart of square cells, and the angle of the texts of its x axis."""
  width: int
  height: int
  angle: int


def lay_out_cells(names: Sequence[str], angle: int) -> CellLayout:
  """Chooses the size of a chart whose rows and columns of square cells have the same names.

  Args:
    angle: the angle in degrees of names that are wider than a cell.
  """
  name_width = max(map(_measure_width, names))
  left = _MARGIN + max(_LINE_HEIGHT, name_width)
  cell_size = min(_MAX_CELL_SIZE, (WIDTH - left - 2 * _MARGIN) / len(names))
  angle = 0 if name_width <= cell_size - 4 else angle
  size = cell_size * len(names)
  return CellLayout(
      math.ceil(left + size + max(2 * _MARGIN, name_width / 2 * (not angle))),
      math.ceil(_LABEL_GAP - 4 + size + 3 * _LINE_HEIGHT + _MARGIN / 2 + (
          math.sin(math.radians(angle)) * name_width)), angle)


def draw_chart(name: str, description: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Line] = (),
               boxes: Sequence[Box] = (), caption: str = '', height: int = 300,
               width: int = WIDTH) -> Chart:
  """Draws a chart with two axes and a legend. Lines are cut off at the ends of the y axis."""
  canvas, x_ticks, y_ticks = _Canvas(width, height), x_axis.make_ticks(6), y_axis.make_ticks(5)
  slope = math.sin(math.radians(x_axis.angle))
  left = _MARGIN + max(_LINE_HEIGHT, *(_measure_width(text) for _, text in y_ticks))
  right = width - max(2 * _MARGIN, _measure_width(x_ticks[-1][1]) / 2 * (not slope))
  top = _LABEL_GAP + _draw_y_label_and_legend(canvas, y_axis.label, [
      line for line in lines if line.label and line.in_legend])
  bottom = height - 2 * _LINE_HEIGHT - _MARGIN / 2 - slope * max(
      _measure_width(text) for _, text in x_ticks)

  def to_pixels(xs: Any, ys: Any) -> Points:
    return list(zip(left + x_axis.to_fractions(xs) * (right - left),
                    bottom - y_axis.to_fractions(ys) * (bottom - top)))

  for axis, ticks in ((x_axis, x_ticks), (y_axis, y_ticks)):
    size = _FONT_SIZE if len(ticks) <= _MAX_LARGE_TICKS else _SMALL_FONT_SIZE
    for value, text in ticks:
      if axis is x_axis:
        ends = to_pixels([value, value], [y_axis.low, y_axis.high])
        canvas.add_text(ends[0][0] + 4 * slope, bottom + 15 - 3 * slope, text,
                        'end' if slope else 'middle', angle=axis.angle, size=size)
      else:
        ends = to_pixels([x_axis.low, x_axis.high], [value, value])
        canvas.add_text(left - _MARGIN + 2, ends[0][1] + 4, text, 'end', size=size)
      if not boxes or not (axis is x_axis or axis.ticks):
        canvas.add_line(ends, 'line')
  canvas.add_text((left + right) / 2, height - 5, x_axis.label, 'middle', 'faint')
  for box in boxes:
    corners = [(min(max(x, left), right), min(max(y, top), bottom))
               for x, y in to_pixels([box.x0, box.x1], [box.y0, box.y1])]
    canvas.add_box(corners, box.color, box.opacity, box.tip)
    if box.text:
      x, y = np.mean(corners, axis=0)
      canvas.add_text(x, y + 4, box.text, 'middle', 'page' if box.opacity > .55 else 'ink',
                      size=_FONT_SIZE if corners[1][0] - corners[0][0] >= _MIN_LARGE_CELL_SIZE
                      else _SMALL_FONT_SIZE)
  canvas.add_line([(left, bottom), (right, bottom)], 'faint')
  lines_and_points = [(line, to_pixels(line.xs, line.ys)) for line in lines if len(line.xs)]
  for line, points in lines_and_points:
    if line.width and len(points) > 1:
      for polyline in _cut_off(points, top, bottom):
        canvas.add_line(polyline, line.color, line.width, line.dash)
    if line.dot or len(points) == 1:
      canvas.add_dots([(x, y) for x, y in points if top - .5 <= y <= bottom + .5], line.color,
                      line.dot or 5)
  if not boxes:  # The tooltips of lines would hide those of boxes.
    _add_line_tips(canvas, lines_and_points, x_axis.label, (left, right), (top, bottom))
  return Chart(name, description, caption, width, height, canvas.shapes, canvas.to_png())


def _cut_off(points: Points, top: float, bottom: float) -> Iterator[Points]:
  """Yields the parts of a polyline that are between two heights."""
  part: Points = []
  for (x0, y0), (x1, y1) in zip(points, points[1:]):
    # The fractions of the segment at which it enters and leaves the area.
    enters, leaves = 0., 1.
    if y0 != y1:
      enters, leaves = sorted(((top - y0) / (y1 - y0), (bottom - y0) / (y1 - y0)))
      enters, leaves = max(enters, 0.), min(leaves, 1.)
    elif not top <= y0 <= bottom:
      continue
    if enters < leaves:
      if not part or enters:
        part = [(x0 + enters * (x1 - x0), y0 + enters * (y1 - y0))]
      part.append((x0 + leaves * (x1 - x0), y0 + leaves * (y1 - y0)))
    if part and leaves < 1:
      yield part
      part = []
  if part:
    yield part


def _add_line_tips(canvas: _Canvas, lines_and_points: Sequence[Tuple[Line, Points]], x_label: str,
                   x_ends: Tuple[float, float], y_ends: Tuple[float, float]) -> None:
  """Adds invisible columns whose tooltips have the values of all curves."""
  tips: Dict[float, Dict[str, str]] = {}
  for line, points in lines_and_points:
    # Scatter charts have no line, and all points of a vertical line have the same x.
    if line.label and line.width and (len(points) == 1 or len(set(line.xs)) > 1):
      for (pixel_x, _), x, y in zip(points, line.xs, line.ys):
        tips.setdefault(round(pixel_x / _TIP_WIDTH), {})[line.label] = '{}: {} at {} {}'.format(
            line.label, format_number(float(y)), x_label, format_number(float(x)))
  columns = [column * _TIP_WIDTH for column in sorted(tips)]
  boundaries = [x_ends[0], *(np.add(columns[1:], columns[:-1]) / 2), x_ends[1]]
  for column, start, end in zip(sorted(tips), boundaries, boundaries[1:]):
    canvas.add_box(list(zip((start, end), y_ends)), 'ink', 0, '\n'.join(tips[column].values()))


def _draw_y_label_and_legend(canvas: _Canvas, y_label: str, lines: Sequence[Line]) -> float:
  """Draws the label of the y axis, then the legend; returns the y coordinate of the last line."""
  x, y = 2., _LINE_HEIGHT - 4.
  canvas.add_text(x, y, y_label, color='faint')
  x += _measure_width(y_label) + 3 * _MARGIN if y_label else 0
  for line in lines:
    width = 24 + _measure_width(line.label)
    if x > 2 and x + width > canvas.width:
      x, y = 2., y + _LINE_HEIGHT
    if line.width:
      canvas.add_line([(x, y - 4), (x + 19, y - 4)], line.color, line.width, line.dash)
    if line.dot:
      canvas.add_dots([(x + 9.5, y - 4)], line.color, line.dot)
    canvas.add_text(x + 24, y, line.label)
    x += width + 2 * _MARGIN
  return y
