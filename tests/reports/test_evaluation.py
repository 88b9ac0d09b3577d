"""The report of an evaluation: figures of classes, and examples for the page."""

import json
import math
import types

import numpy as np
import pytest
from PIL import Image

from estimator_train.reports.evaluation import (
  per_class_metrics,
  write_samples,
)


def test_samples_have_pictures_and_predictions(tmp_path):
  grey, colour = np.full((4, 3, 1), 77, np.uint8), np.zeros((2, 2, 3), np.uint8)
  colour[0, 1] = 10, 20, 30
  some = [types.SimpleNamespace(image=image, class_index=index, outputs=np.array(outputs))
          for image, index, outputs in ((grey, 2, [.25, .5, .25]),
                                        (colour, 0, [0, math.log(2), -100.]))]
  write_samples(str(tmp_path), ['a', 'b', 'c'], [], [])
  assert not list(tmp_path.iterdir())
  write_samples(str(tmp_path), ['a', 'b', 'c'], some, some[1:])
  folder = tmp_path / 'report'
  written = json.loads((folder / 'samples.json').read_text())
  assert written['mistakes'] == [dict(written['samples'][1], image='mistake-00.png')]
  assert written['samples'] == [
      {'label': 'c', 'predicted': 'b', 'probability': .5, 'image': 'sample-00.png'},
      {'label': 'a', 'predicted': 'b', 'probability': pytest.approx(2 / 3),
       'image': 'sample-01.png'}]
  with Image.open(folder / 'sample-00.png') as picture:
    assert picture.mode == 'L' and picture.size == (3, 4) and picture.getpixel((1, 2)) == 77
  with Image.open(folder / 'sample-01.png') as picture:
    assert picture.getpixel((1, 0)) == (10, 20, 30)


def test_figures_of_classes():
  figures = per_class_metrics(('a', 'b', 'c'), [[3, 1, 0], [2, 4, 0], [0, 0, 0]])
  assert figures['a'] == pytest.approx({'precision': 3 / 5, 'recall': 3 / 4, 'f1': 2 / 3,
                                        'support': 4})
  assert figures['b'] == pytest.approx({'precision': 4 / 5, 'recall': 4 / 6, 'f1': 8 / 11,
                                        'support': 6})
  assert figures['c'] == {'precision': None, 'recall': None, 'f1': None, 'support': 0}
