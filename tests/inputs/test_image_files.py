"""What the `input_fn`s of image files deliver."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import batches

from estimator_train.datasets.description import DataSet, ImageSplit
from estimator_train.inputs import encoded_images
from estimator_train.inputs.batching import Batching, Shard
from estimator_train.inputs.image_files import ImageFileSource
from estimator_train.models.preprocessing import make_preprocess

SIZE = (40, 32)


def batching(**given):
  return Batching(SIZE + (3,), 4, one_hot=False, **dict(
      {'examples_per_batch': 4, 'num_parallel_calls': 2}, **given))


def source_of(paths):
  split = ImageSplit([str(path).encode() for path in paths], np.arange(len(paths), dtype=np.int32))
  return ImageFileSource(DataSet('any', ('a', 'b'), SIZE + (3,)), split)


def published(path):
  """The article's map function, by tensorflow.compat.v1."""
  with tf.Graph().as_default(), tf.Session() as session:
    image = tf.image.decode_jpeg(tf.read_file(str(path)), channels=3)
    image = tf.image.convert_image_dtype(image, tf.float32)
    return session.run(tf.image.resize_images(image, SIZE))


def as_the_model_sees(pixels):
  with tf.Graph().as_default(), tf.Session() as session:
    return session.run(make_preprocess('unit', *SIZE, channels=3)(tf.constant(pixels)))


@pytest.fixture
def images(tmp_path, write_images):
  """Five grey images and a colour one, of several sizes; the last is a PNG by another name."""
  random = np.random.RandomState(3)
  paths = [tmp_path / '{} \'".jpeg'.format(index) for index in range(6)]
  write_images({path: random.randint(0, 256, (30 + 7 * index, 50, 3 if index == 4 else 1)).astype(
      np.uint8) for index, path in enumerate(paths)})
  png = tmp_path / 'x.png'
  write_images({png: random.randint(0, 256, (20, 20, 1)).astype(np.uint8)})
  png.rename(paths[5])
  return paths


def test_the_published_pixels(images, monkeypatch):
  monkeypatch.setattr(encoded_images, '_GREY_SAMPLE_SIZE', 1)  # The colour one is unexpected.
  found, _ = batches(source_of(images).make_eval_input_fn(batching(examples_per_batch=2)))
  assert [pixels.shape[-1] for pixels, _ in found] == [1, 1, 3]  # The colour one is in the last.
  assert np.concatenate([classes for _, classes in found]).tolist() == [0, 1, 2, 3, 4, 5]
  for pixels, classes in found:
    for image, number in zip(as_the_model_sees(pixels), classes):
      np.testing.assert_allclose(image, published(images[number]), atol=1e-6)


def test_unexpected_colours_next_to_grey_images(images, monkeypatch):
  """A batch with an image in colour is decoded again, in the same order."""
  monkeypatch.setattr(encoded_images, '_GREY_SAMPLE_SIZE', 1)
  ((pixels, classes),), _ = batches(source_of(images).make_eval_input_fn(
      batching(examples_per_batch=6)))
  assert pixels.shape == (6,) + SIZE + (3,) and classes.tolist() == [0, 1, 2, 3, 4, 5]
  for image, number in zip(as_the_model_sees(pixels), classes):
    np.testing.assert_allclose(image, published(images[number]), atol=1e-6)


def test_the_header_of_a_jpeg_shows_that_it_is_grey(images):
  for path in images[:4]:
    path.write_bytes(path.read_bytes()[:-200])  # Its header is whole, its pixels are not.
  assert source_of(images[:4] + images[5:]).expects_grey()
  assert not source_of(images[4:]).expects_grey()


def test_operations_run_on_one_thread_and_in_the_private_pool(images):
  with tf.Graph().as_default():
    dataset = source_of(images).make_eval_input_fn(batching(private_threadpool_size=3))()
    threading = dataset.options().experimental_threading
  assert (threading.max_intra_op_parallelism, threading.private_threadpool_size) == (1, 3)


def test_the_published_pixels_of_retina_images(oct2017_dir):
  paths = sorted((oct2017_dir / 'val').glob('*/*.jpeg'))[::4]
  ((pixels, _),), _ = batches(source_of(paths).make_eval_input_fn(batching(examples_per_batch=8)))
  assert pixels.shape == (8,) + SIZE + (1,) and pixels.dtype == np.float32
  for image, path in zip(as_the_model_sees(pixels), paths):
    np.testing.assert_allclose(image, published(path), atol=1e-6)


def test_mostly_in_colour(images, write_images, tmp_path):
  """A grey image among colour ones is repeated to three channels."""
  write_images({path: np.full((9, 9, 3), 50 * index, np.uint8)
                for index, path in enumerate(images[:4])})
  found, _ = batches(source_of(images).make_eval_input_fn(batching(examples_per_batch=6)))
  ((pixels, _),) = found
  assert pixels.shape == (6,) + SIZE + (3,)
  np.testing.assert_allclose(as_the_model_sees(pixels)[5], published(images[5]), atol=1e-6)
  assert not source_of(images).expects_grey()


@pytest.mark.parametrize('count', [0, 1, 5, 16, 17, 31, 32, 100])
def test_a_sample_is_evenly_spaced_and_not_larger_than_its_limit(count):
  indices = encoded_images.evenly_spaced(count, 16)
  assert len(indices) == min(count, 16) and indices[:1] == list(range(count))[:1]
  assert set(np.diff(indices)) <= {count // 16, count // 16 + 1}


def order(source, count, **given):
  input_fn = source.make_train_input_fn(batching(**given), 'none')
  found, graph = batches(input_fn, count)
  return [int(number) for _, classes in found for number in classes], graph


def test_training_shuffles_without_end(images):
  numbers, graph = order(source_of(images), 6)
  epochs = [numbers[start:start + 6] for start in range(0, 24, 6)]
  assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) > 1
  assert b'.jpeg' not in graph.as_graph_def().SerializeToString()  # The list is not in the graph.


def test_the_order_is_that_of_the_seed(images):
  source = source_of(images)
  runs = {seed: [order(source, 3, seed=seed)[0] for _ in range(2)] for seed in (1, 2)}
  assert runs[1][0] == runs[1][1] and runs[2][0] == runs[2][1] and runs[1][0] != runs[2][0]


def test_a_resumed_run_continues_with_the_next(images):
  source = source_of(images)
  straight, _ = order(source, 5)
  assert order(source, 3, shard=Shard(first_example=8))[0] == straight[8:]


def test_a_model_of_grey_images_gets_one_channel(images):
  """The fourth of the images is in colour."""
  one_channel = batching(examples_per_batch=6)._replace(image_shape=SIZE + (1,))
  ((pixels, _),), _ = batches(source_of(images).make_eval_input_fn(one_channel))
  assert pixels.shape == (6,) + SIZE + (1,)
