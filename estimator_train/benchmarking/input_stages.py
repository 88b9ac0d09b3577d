"""The pipelines of training, cut off after each stage, to see what every stage costs."""

from typing import Callable, Dict

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import ArraySplit, IdxSplit, ImageSplit, Split
from estimator_train.inputs import idx_files, image_files
from estimator_train.inputs.batching import Batching

InputFn = Callable[[], tf.data.Dataset]


def make_input_fns(split: Split, batching: Batching, cached: bool,
                   whole: InputFn) -> Dict[str, InputFn]:
  """Makes an `input_fn` for each stage, that stage and all before it, in their order.

  The examples are those of training, in its order. Of a stage that ends before there are batches
  the datasets deliver one element in the time of a batch.

  Args:
    split: what is read.
    batching: how it becomes batches.
    cached: whether only batches are left to be made.
    whole: the `input_fn` of training, which is the last stage.

  Returns:
    `read`, `decode`, `resize` and `batch` of image files; `read`, `batch` and `decode` of idx
    files, which are decoded a batch at a time; `batch` of arrays and what is cached; nothing of
    made-up images.
  """
  if isinstance(split, ArraySplit) or (isinstance(split, (ImageSplit, IdxSplit)) and cached):
    return {'batch': whole}
  if isinstance(split, ImageSplit):
    return dict(_of_image_files(split, batching), batch=whole)
  if isinstance(split, IdxSplit):
    return dict(_of_idx_files(split, batching), decode=whole)
  return {}


def _of_image_files(split: ImageSplit, batching: Batching) -> Dict[str, InputFn]:
  grey = image_files.is_grey(split.files)
  load = image_files.make_load(batching, grey)

  # Images of different sizes make no batch, and a batch takes a copy: something small that needs
  # all of the stage's work stands for its result.
  @tf.autograph.experimental.do_not_convert
  def read(path: tf.Tensor, class_number: tf.Tensor) -> tf.Tensor:
    return tf.strings.length(tf.read_file(path))

  @tf.autograph.experimental.do_not_convert
  def decode(path: tf.Tensor, class_number: tf.Tensor) -> tf.Tensor:
    return image_files.decode(path, channels=0 if grey else 3)[0, 0, 0]

  @tf.autograph.experimental.do_not_convert
  def resize(path: tf.Tensor, class_number: tf.Tensor) -> tf.Tensor:
    return load(path, class_number)[0][0, 0, 0]

  def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
    return lambda: batching.on_its_threads(image_files.listed(split, batching).apply(
        tf.data.experimental.map_and_batch(
            stage, batching.batch_size, num_parallel_calls=batching.num_parallel_calls)))

  return {'read': make_input_fn(read), 'decode': make_input_fn(decode),
          'resize': make_input_fn(resize)}


def _of_idx_files(split: IdxSplit, batching: Batching) -> Dict[str, InputFn]:
  size = batching.batch_size

  def read() -> tf.data.Dataset:
    # The last of every so many: the others are read, and go nowhere.
    return idx_files.examples(split, batching).repeat().shard(size, size - 1)

  def batch() -> tf.data.Dataset:
    return batching.shuffled(idx_files.examples(split, batching), idx.count(split)).batch(size)

  return {'read': read, 'batch': batch}
