"""The examples that a report shows: their pictures, labels and probabilities."""

import json
import math
import sys
from typing import NamedTuple

import numpy as np
import pytest

from estimator_train.reports import samples


class Sample(NamedTuple):
  image: np.ndarray
  class_index: int
  outputs: np.ndarray


def grey(level):
  return np.full((4, 3, 1), level, np.uint8)


def test_pictures_and_what_was_made_of_them(tmp_path):
  image_module = pytest.importorskip('PIL.Image', reason='Pillow is not installed')
  colour = np.zeros((2, 2, 3), np.uint8)
  colour[0, 1] = 10, 20, 30
  samples.write_samples(str(tmp_path), ['a', 'b', 'c'], [
      Sample(grey(77), 2, np.array([.25, .5, .25], np.float32)),
      Sample(colour, 0, np.array([0, math.log(2), -100.], np.float32))])
  told = json.loads((tmp_path / 'report' / 'samples.json').read_text())['samples']
  assert told[0] == {'label': 'c', 'predicted': 'b', 'probability': .5, 'image': 'sample-00.png'}
  assert told[1] == {'label': 'a', 'predicted': 'b', 'probability': pytest.approx(2 / 3),
                     'image': 'sample-01.png'}
  with image_module.open(tmp_path / 'report' / 'sample-00.png') as picture:
    assert picture.mode == 'L' and picture.size == (3, 4) and picture.getpixel((1, 2)) == 77
  with image_module.open(tmp_path / 'report' / 'sample-01.png') as picture:
    assert picture.getpixel((1, 0)) == (10, 20, 30)
  assert not list((tmp_path / 'report').glob('*.part'))


def test_without_pillow(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'PIL', None)
  samples.write_samples(str(tmp_path), ['a'], [Sample(grey(1), 0, np.ones(1, np.float32))])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('outputs, expected', [
    ([.2, .8], [.2, .8]),
    ([0., 0.], [.5, .5]),
    ([1., 1.], [.5, .5]),
    ([1000., 1000 + math.log(3)], [.25, .75]),
    ([-.5, 1.5], [1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))]),
])
def test_outputs_become_probabilities(outputs, expected):
  assert samples.as_probabilities(np.array(outputs, np.float64)) == pytest.approx(expected)
