"""The source of images in files: read for each epoch, or cached."""

import os
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint, image_folder
from estimator_train.datasets.description import ImageSplit
from estimator_train.errors import UserError, printable
from estimator_train.inputs import arrays, bad_images, image_cache, image_files
from estimator_train.inputs.batching import Batching
from estimator_train.inputs.source import BadImage, InputFn, Path, Source
from estimator_train.settings import groups


class ImageSource(Source):
  """Image files; a worker opens its own only."""
  kind = 'image_files'
  lists_classes = True
  is_auditable = True
  caches_in_folder = True

  def check(self) -> Optional[int]:
    return len(self.split.files)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    if cache == 'none':
      return image_files.make_train_input_fn(self.split, batching)
    return arrays.make_train_input_fn(image_cache.images(self.split, batching, cache),
                                      self.split.classes, batching, self.order(batching))

  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    return image_files.make_eval_input_fn(self.split, batching)

  def classes(self) -> np.ndarray:
    return np.asarray(self.split.classes)

  def cache_key(self) -> str:
    return fingerprint.of_files(self.split.files)

  def files(self) -> List[Path]:
    return list(self.split.files)

  def make_stages(self, batching: Batching) -> Dict[str, InputFn]:
    grey = image_files.is_grey(self.split.files)
    load = image_files.make_load(batching, grey)

    # Images of different sizes make no batch, and a batch takes a copy: something small that needs
    # all of the stage's work stands for its result.
    @tf.autograph.experimental.do_not_convert
    def read(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return tf.strings.length(tf.read_file(path))

    @tf.autograph.experimental.do_not_convert
    def decode(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return image_files.decode(path, channels=0 if grey else 3)[0, 0, 0]

    @tf.autograph.experimental.do_not_convert
    def resize(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return load(path, class_index)[0][0, 0, 0]

    def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
      return lambda: batching.on_its_threads(image_files.listed(self.split, batching).apply(
          tf.data.experimental.map_and_batch(
              stage, batching.batch_size, num_parallel_calls=batching.num_parallel_calls)))

    return {'read': make_input_fn(read), 'decode': make_input_fn(decode),
            'resize': make_input_fn(resize)}

  def skip_bad(self, name: str, settings: groups.Input,
               model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
    split, skipped = bad_images.skip(self.split, name, settings, model_dir)
    if name == 'train':
      image_folder.check_classes(self.dataset.labels, split)
    return split, skipped

  def explain_failure(self) -> Optional[UserError]:
    # TensorFlow does not name the image that it cannot decode.
    bad = next(bad_images.find(self.split.files), None)
    if bad is None:
      return None
    index, why = bad
    return UserError('an image cannot be decoded',
                     '{} ({})'.format(printable(os.fsdecode(self.split.files[index])), why),
                     'mend or remove it, --mode=audit lists all; or give --on_bad_image=skip')
