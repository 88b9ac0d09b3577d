"""Arrays, columns and rows in memory are predicted like the files with the same values."""

import gzip
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

import estimator_train
from estimator_train import UserError
from estimator_train.data import mnist
from estimator_train.modes.predict import in_memory
from estimator_train.modes.predict.row_inputs import RowInput

IDX = os.path.join(mnist.SAMPLE_FOLDER, 't10k-images-idx3-ubyte.gz')


def without_identity(predictions):
  return [{name: value for name, value in prediction.items() if name not in ('file', 'example')}
          for prediction in predictions]


def test_images(finished_run, tmp_path):
  """Batches and single images, lists, and paths, with and without settings."""
  with gzip.open(IDX) as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)[:60]
  settings = estimator_train.Settings(
      dataset='fashion_mnist_sample', model='own_models:two_layers', batch_size=50,
      model_dir=finished_run)
  expected = list(estimator_train.predict(settings, IDX))[:60]
  found = list(estimator_train.predict(settings, images))
  assert [each.example for each in found] == list(range(60))
  assert without_identity(found) == without_identity(expected)
  # An array with a channel; flags are those of the run.
  again = list(estimator_train.predict(model_dir=finished_run, input=images[:2, ..., np.newaxis]))
  # In smaller batches, whose sums are rounded differently on some processors.
  assert [(each.example, each.label) for each in again] == [(each.example, each.label)
                                                            for each in found[:2]]
  assert [each.probability for each in again] == pytest.approx(
      [each.probability for each in found[:2]])
  # Images of other sizes are resized, and color images converted, as those in files are.
  color = np.random.RandomState(1).randint(0, 256, (40, 31, 3)).astype(np.uint8)
  paths = [tmp_path / 'a,b.png', tmp_path / 'c.png']
  for path, image in zip(paths, (color, images[0])):
    Image.fromarray(image).save(str(path))
  from_files = list(estimator_train.predict(settings, paths))
  assert [each.file for each in from_files] == list(map(str, paths))
  from_list = list(estimator_train.predict(settings, [color, images[0]]))
  assert without_identity(from_list) == without_identity(from_files)
  single, = estimator_train.predict(settings, color)  # In a smaller batch.
  assert (single.label, single.example) == (from_files[0].label, 0)
  assert single.probability == pytest.approx(from_files[0].probability)
  assert list(estimator_train.predict(settings, images[:0])) == []
  for values, message in (
      (images / 255, r'must be arrays of uint8 .*: input has the dtype float64: convert it'),
      (images.astype(np.int64), r'the dtype int64: .* by images.astype[(]"uint8"[)]$'),
      ({'a': images}, 'the model takes images: input has an object of the class dict: give NumPy'),
      ([images], r'must have the shape .*: input has the shape \[60, 28, 28\]: reshape it')):
    with pytest.raises(UserError, match=message):
      estimator_train.predict(settings, values)


@pytest.mark.parametrize('values, count, shape', [
    (np.zeros((5, 6), np.uint8), 1, (5, 6, 1)), (np.zeros((5, 6, 3), np.uint8), 1, (5, 6, 3)),
    (np.zeros((5, 6, 1), np.uint8), 1, (5, 6, 1)), (np.zeros((5, 6, 7), np.uint8), 5, (6, 7, 1)),
    (np.zeros((2, 5, 6, 3), np.uint8), 2, (5, 6, 3)),
    ([np.zeros((5, 6), np.uint8), np.zeros((5, 6, 1), np.uint8)], 2, (5, 6, 1)), ([], 0, None),
    # Flattened images of the model's size.
    (np.zeros((4, 24), np.uint8), 4, (2, 4, 3)), (np.zeros(24, np.uint8), 1, (2, 4, 3)),
    ([np.zeros(24, np.uint8)] * 2, 2, (2, 4, 3))])
def test_shapes_of_images(values, count, shape):
  images = in_memory._split_into_images(values, (2, 4, 3))
  assert len(images) == count and {image.shape for image in images} == {shape} - {None}


@pytest.mark.parametrize('values', [
    np.zeros(5, np.uint8), np.zeros((2, 5, 6, 4), np.uint8), np.zeros((1, 2, 5, 6, 3), np.uint8),
    np.zeros((5, 0), np.uint8), [np.zeros((5, 6, 4), np.uint8)], [[1, 2]], 3,
    np.zeros((5, 6), bool)])
def test_what_is_no_image(values):
  with pytest.raises(UserError):
    in_memory._split_into_images(values, (2, 4, 3))


def test_flattened_images_have_their_pixels_in_order():
  images = np.arange(48, dtype=np.uint8).reshape(2, 2, 4, 3)
  found = in_memory._split_into_images(images.reshape(2, -1), (2, 4, 3))
  assert np.array_equal(found, images)


@pytest.mark.parametrize('shape, is_warned', [((9, 25), True), ((2, 4), False), ((9, 24), False),
                                              ((1, 9, 25), False)])
def test_an_array_that_may_be_meant_as_several_images(shape, is_warned, caplog):
  in_memory._split_into_images(np.zeros(shape, np.uint8), (2, 4, 3))
  assert ('shape [9, 25], which is one image, and is resized to [2, 4, 3]' in caplog.text
          ) == is_warned


class Frame:
  """Stands in for a data frame of pandas."""

  def __init__(self, columns):
    self.columns = columns

  def to_dict(self, kind):
    assert kind == 'list'
    return self.columns


def read(values, **kinds):
  """Returns a list of values, or the reason, for each row."""
  with tf.Graph().as_default():
    inputs = {name: RowInput(tf.placeholder(dtype), tf.TensorShape(shape))
              for name, (dtype, shape) in kinds.items()}
    examples = list(in_memory.read_rows(values, inputs))
  assert [example.name for example in examples] == list(range(len(examples)))
  return [example.arrays_or_error if isinstance(example.arrays_or_error, str)
          else [value.tolist() for value in example.arrays_or_error] for example in examples]


NUMBER_AND_TEXT = {'n': (tf.int32, ()), 't': (tf.string, (1,))}


@pytest.mark.parametrize('values', [
    {'n': [1, 2], 't': ['a', 'é'], 'other': [1]},
    {'n': np.array([1, 2]), 't': np.array(['a', 'é'])},
    {'n': np.array([1., 2.]), 't': np.array([b'a', 'é'.encode()], object)},
    Frame({'n': [np.int64(1), 2.], 't': ('a', 'é')}),
    [{'n': 1, 't': 'a'}, {'t': 'é', 'n': '2', 'more': 3}]])
def test_columns_and_rows(values):
  assert read(values, **NUMBER_AND_TEXT) == [[1, [b'a']], [2, ['é'.encode()]]]


def test_errors_of_rows():
  """Invalid rows have errors, and the others are predicted."""
  nan, inf = float('nan'), float('inf')
  assert read({'v': [None, '', 'x', 1e39, nan, inf]}, v=(tf.float32, ())) == [
      'v: no value', 'v: no value', "v: 'x' is not a number",
      'v: 1e+39 is not in the range of float32', [pytest.approx(nan, nan_ok=True)], [inf]]
  assert read([{}, {'v': 1}], v=(tf.float32, ())) == ['v: no value', [1.]]
  assert read(np.array([[1, 2], [3, 300]]), v=(tf.uint8, (2,))) == [
      [[1, 2]], 'v: 300 is no value of uint8']
  assert read(np.array([[.5, 2.], [3., inf]]), v=(tf.int32, (2,))) == [
      'v: 0.5 is no value of int32', 'v: inf is no value of int32']
  assert read(np.array([1e39, nan]), v=(tf.float32, (1,))) == [
      'v: 1e+39 is not in the range of float32', [[pytest.approx(nan, nan_ok=True)]]]
  assert read(np.ones([1, 3]), v=(tf.float32, (2,))) == [
      'v: the shape is [3], but the input has [2]']
  assert read(np.array([[1e39]]), v=(tf.float32, (1,))) == ['v: 1e+39 is no value of float32']


@pytest.mark.parametrize('values, message', [
    ({'n': [1]}, 'column for each input of the model: no t among the columns n: name the columns'),
    ({'n': [1], 't': ['a', 'b']}, 'of the same length: n: 1, t: 2: give a value per example'),
    ({'n': 1, 't': 'ab'}, 'of the same length: n: a single value, t: a single value'),
    (np.ones([3, 2]), 'takes columns or rows by their names: inputs n, t, but input is a ndarray'),
    (3, 'takes columns or rows by their names: inputs n, t, but input is a int: give a dict')])
def test_what_is_no_table(values, message):
  with pytest.raises(UserError, match=message):
    read(values, **NUMBER_AND_TEXT)
