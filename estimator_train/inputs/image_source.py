"""Reads the images of a split from image files, either in each epoch or once into a cache."""

import os
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, image_folder
from estimator_train.datasets.description import ImageSplit
from estimator_train.errors import UserError, printable
from estimator_train.inputs import arrays, bad_images, image_cache, image_files
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import BadImage, FilePath, InputFn, Source
from estimator_train.settings import groups


class ImageSource(Source):
  """The source of an ImageSplit.

  A worker without a cache opens only the files of its shard, and a small sample of all files.
  """
  format_name = 'image_files'
  class_indices_are_known = True
  is_auditable = True
  can_cache_in_folder = True

  def check_and_count(self) -> Optional[int]:
    return len(self.split.files)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    if cache == 'none':
      return image_files.make_train_input_fn(self.split, batching)
    return arrays.make_train_input_fn(image_cache.load_images(self.split, batching, cache),
                                      self.split.classes, batching, self.make_permutation(batching))

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return image_files.make_eval_input_fn(self.split, batching)

  def class_indices(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return fingerprint.of_files(self.split.files)

  def files(self) -> List[FilePath]:
    return list(self.split.files)

  def input_fns_before_last_stage(self, batching: Batching) -> Dict[str, InputFn]:
    expect_grey = image_files.is_sample_grey(self.split.files)
    load_image = image_files.make_load_image(batching, expect_grey)

    # Each stage computes its complete result, but returns only a scalar. Images of different sizes
    # cannot be batched, and copying images would add to the measured time.
    @tf.autograph.experimental.do_not_convert
    def read(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return tf.strings.length(tf.read_file(path))

    @tf.autograph.experimental.do_not_convert
    def decode(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return image_files.decode(path, channels=0 if expect_grey else 3)[0, 0, 0]

    @tf.autograph.experimental.do_not_convert
    def resize(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return load_image(path, class_index)[0][0, 0, 0]

    def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
      return lambda: batching.use_private_threadpool(
          image_files.make_path_dataset(self.split, batching).apply(
              tf.data.experimental.map_and_batch(stage, batching.examples_per_batch,
                                                 num_parallel_calls=batching.num_parallel_calls)))

    return {'read': make_input_fn(read), 'decode': make_input_fn(decode),
            'resize': make_input_fn(resize)}

  def skip_bad_examples(self, split_name: str, settings: groups.Input,
                        model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
    split, skipped = bad_images.drop_undecodable(self.split, split_name, settings, model_dir)
    if split_name == 'train':
      image_folder.check_no_class_missing(self.dataset.labels, split)
    return split, skipped

  def explain_failure(self) -> Optional[UserError]:
    # Decode the images again, because TensorFlow's error does not name the file.
    first = next(bad_images.find_undecodable(self.split.files), None)
    if first is None:
      return None
    index, reason = first
    return UserError('an image cannot be decoded',
                     '{} ({})'.format(printable(os.fsdecode(self.split.files[index])), reason),
                     'repair or remove it (--mode=audit lists all), or give --on_bad_image=skip')
