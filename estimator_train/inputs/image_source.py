"""The source of image files, which are read in each epoch or cached."""

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
  """The source of an ImageSplit; a worker opens only its own files."""
  kind = 'image_files'
  lists_classes = True
  is_auditable = True
  caches_in_folder = True

  def check(self) -> Optional[int]:
    return len(self.split.files)

  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    if cache == 'none':
      return image_files.make_train_input_fn(self.split, batching)
    return arrays.make_train_input_fn(image_cache.load_images(self.split, batching, cache),
                                      self.split.classes, batching, self.example_order(batching))

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
    load_image = image_files.make_load_image(batching, grey)

    # Each stage returns a scalar that depends on its result. The result itself could not be batched
    # when images have different sizes, and batching would copy it.
    @tf.autograph.experimental.do_not_convert
    def read(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return tf.strings.length(tf.read_file(path))

    @tf.autograph.experimental.do_not_convert
    def decode(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return image_files.decode(path, channels=0 if grey else 3)[0, 0, 0]

    @tf.autograph.experimental.do_not_convert
    def resize(path: tf.Tensor, class_index: tf.Tensor) -> tf.Tensor:
      return load_image(path, class_index)[0][0, 0, 0]

    def make_input_fn(stage: Callable[..., tf.Tensor]) -> InputFn:
      return lambda: batching.use_private_threads(
          image_files.make_path_dataset(self.split, batching).apply(
              tf.data.experimental.map_and_batch(
                  stage, batching.batch_size, num_parallel_calls=batching.num_parallel_calls)))

    return {'read': make_input_fn(read), 'decode': make_input_fn(decode),
            'resize': make_input_fn(resize)}

  def skip_bad_examples(self, name: str, settings: groups.Input,
                        model_dir: str) -> Tuple[ImageSplit, List[BadImage]]:
    split, skipped = bad_images.drop_undecodable(self.split, name, settings, model_dir)
    if name == 'train':
      image_folder.check_classes(self.dataset.labels, split)
    return split, skipped

  def explain_failure(self) -> Optional[UserError]:
    # TensorFlow's error does not name the file.
    first = next(bad_images.find_undecodable(self.split.files), None)
    if first is None:
      return None
    index, why = first
    return UserError('an image cannot be decoded',
                     '{} ({})'.format(printable(os.fsdecode(self.split.files[index])), why),
                     'repair or remove it, --mode=audit lists all; or give --on_bad_image=skip')
