"""Draws the first images of the first training batch, with their class names."""

import io
import os
from typing import Any, List, NamedTuple, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from estimator_train.reports import TRAIN_BATCH_FILE, make_report_folder
from estimator_train.reports.plotting import FONT_FILE
from estimator_train.system import storage

# In pixels. A row of four images fits on the page and, at 4/5 of this size, on a phone.
_COLUMNS, _IMAGE_SIZE, _GAP = 4, 112, 6
_FONT_SIZE, _LINE_HEIGHT, _TEXT_MARGIN = 12, 16, 4
# The captions are readable on light and on dark pages, between which the background is transparent.
_CAPTION_COLOR, _TEXT_COLOR = '#1f2933', '#ffffff'
_FIRST_CHARACTER_WITHOUT_GLYPH = '\u0590'  # The font has Latin, Greek and Cyrillic letters.


class TrainBatch(NamedTuple):
  """A picture of a training batch: the content of a PNG file, and its size in pixels."""
  png: bytes
  width: int
  height: int


def write_train_batch(model_dir: str, class_names: Sequence[str], images: np.ndarray,
                      labels: np.ndarray) -> TrainBatch:
  """Draws images as the model sees them, writes `report/train_batch.png`, and returns the picture.

  Args:
    images: pixel values from 0 to 255, [N, height, width, 1 or 3], after augmentation and mixing,
      but before preprocessing.
    labels: one-hot or mixed [N, num_classes], or class indices [N].
  """
  captions = [_make_caption(class_names, label) for label in labels]
  caption_height = max(map(len, captions)) * _LINE_HEIGHT + _TEXT_MARGIN
  scale = _IMAGE_SIZE / max(images.shape[1:3])
  height, width = (max(round(side * scale), 1) for side in images.shape[1:3])
  columns = min(_COLUMNS, len(images))
  cell = (_IMAGE_SIZE + _GAP, height + caption_height + _GAP)
  size = columns * cell[0] - _GAP, -(-len(images) // columns) * cell[1] - _GAP
  picture = Image.new('RGBA', size)
  draw, font = ImageDraw.Draw(picture), ImageFont.truetype(FONT_FILE, _FONT_SIZE, layout_engine=0)
  for index, (image, caption) in enumerate(zip(images, captions)):
    left, top = index % columns * cell[0], index // columns * cell[1]
    pixels = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    resized = Image.fromarray(np.broadcast_to(pixels, pixels.shape[:2] + (3,))).resize(
        (width, height), Image.NEAREST if scale > 1 else Image.BOX)
    draw.rectangle((left, top, left + _IMAGE_SIZE - 1, top + height + caption_height - 1),
                   _CAPTION_COLOR)
    picture.paste(resized, (left + (_IMAGE_SIZE - width) // 2, top))
    for number, line in enumerate(caption, 1):
      draw.text((left + _TEXT_MARGIN, top + height + number * _LINE_HEIGHT - 3),
                _shorten(line, font), _TEXT_COLOR, font, 'ls')
  content = io.BytesIO()
  picture.save(content, 'PNG')
  storage.write_bytes(os.path.join(make_report_folder(model_dir), TRAIN_BATCH_FILE),
                      content.getvalue())
  return TrainBatch(content.getvalue(), *size)


def _make_caption(class_names: Sequence[str], label: Any) -> List[str]:
  """Returns the class name or, if the label is mixed, the two classes with their weights."""
  if not np.ndim(label):
    return [_printable_name(class_names, int(label))]
  largest = [index for index in np.argsort(-label, kind='stable')[:2] if label[index] >= .005]
  names = [_printable_name(class_names, index) for index in largest]
  return names if len(names) == 1 else [
      '{:.0%} {}'.format(label[index], name) for index, name in zip(largest, names)]


def _printable_name(class_names: Sequence[str], index: int) -> str:
  name = ' '.join(class_names[index].split())
  has_glyphs = all(character < _FIRST_CHARACTER_WITHOUT_GLYPH for character in name)
  return name if name and name.isprintable() and has_glyphs else 'class {}'.format(index)


def _shorten(text: str, font: ImageFont.FreeTypeFont) -> str:
  """Returns a text that is not wider than an image."""
  max_width = _IMAGE_SIZE - 2 * _TEXT_MARGIN
  if font.getlength(text) <= max_width:
    return text
  while text and font.getlength(text + '…') > max_width:
    text = text[:-1]
  return text + '…'
