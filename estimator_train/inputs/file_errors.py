"""What TensorFlow says of files, as errors that a user can act on."""

import os
import re
from contextlib import contextmanager
from typing import Iterator, Optional

import tensorflow.compat.v1 as tf

from estimator_train.datasets import idx
from estimator_train.datasets.description import IdxSplit, ImageSplit, Split
from estimator_train.errors import UserError, printable
from estimator_train.inputs import bad_images

_OF_A_FILE = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnknownError,
              tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


@contextmanager
def reworded(split: Optional[Split]) -> Iterator[None]:
  """Turns errors about the data, or about checkpoints, into UserErrors.

  Args:
    split: what is read meanwhile. TensorFlow does not name the image that it cannot decode, so
      they are decoded again, one by one, up to the first that fails.
  """
  try:
    yield
  except tf.errors.DataLossError as error:
    raise UserError('a file of the data or of --model_dir is damaged',
                    error.message.splitlines()[0],
                    'remove it; get data again with --mode=download') from error
  except _OF_A_FILE as error:
    if 'not found in checkpoint' in error.message:
      raise UserError('--model_dir holds a checkpoint of another model or optimizer',
                      re.sub(r'.*?(Key \S+ not found in checkpoint).*', r'\1', error.message,
                             flags=re.DOTALL), 'give another --model_dir') from error
    if isinstance(split, IdxSplit):
      # They say what is wrong with a file, and which it is.
      idx.read_images(split)
      idx.read_labels(split)
    if not isinstance(split, ImageSplit):
      raise
    bad = next(bad_images.find(split.files), None)
    if bad is None:
      raise
    index, why = bad
    raise UserError('an image cannot be decoded',
                    '{} ({})'.format(printable(os.fsdecode(split.files[index])), why),
                    'mend or remove it, --mode=audit lists all; or give --on_bad_image=skip'
                    ) from error
