"""Translates TensorFlow's errors about files into UserErrors."""

import re
from contextlib import contextmanager
from typing import Iterator, Optional

import tensorflow.compat.v1 as tf

from estimator_train.data.source import BadExample, Source, WrongSchema
from estimator_train.errors import UserError

_FILE_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnknownError,
              tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


@contextmanager
def translate_errors(source: Optional[Source] = None) -> Iterator[None]:
  """Raises a UserError in place of TensorFlow's errors about data files and checkpoints.

  Args:
    source: the source of the examples. The source finds the unreadable file, because TensorFlow's
      error may not name the file. None: errors about unreadable files are not translated.
  """
  try:
    yield
  except tf.errors.DataLossError as error:
    raise UserError('a file of the data set or of --model_dir is damaged',
                    error.message.splitlines()[0],
                    'remove it; --mode=download downloads data files again') from error
  except WrongSchema as error:
    raise error.to_user_error() from error
  except BadExample as error:
    raise _to_user_error(str(error)) from error
  except _FILE_ERRORS as error:
    if 'not found in checkpoint' in error.message:
      raise UserError('--model_dir holds a checkpoint of another model or optimizer',
                      re.sub(r'.*?(Key \S+ not found in checkpoint).*', r'\1', error.message,
                             flags=re.DOTALL), 'give another --model_dir') from error
    # A Python function of the input pipeline names the example itself.
    wrong_schema = re.search(r'WrongSchema: (.*) \((.*)\): (.*)', error.message)
    if wrong_schema:
      raise WrongSchema(*wrong_schema.groups()).to_user_error() from error
    bad_example = re.search(r'BadExample: (.*)', error.message)
    if bad_example:
      raise _to_user_error(bad_example.group(1)) from error
    not_stored = re.search(r'CacheNotStored: (.*)', error.message)
    if not_stored:
      raise cache_not_stored(not_stored.group(1)) from error
    user_error = source.explain_failure() if source is not None else None
    if user_error is None and source is not None and source.is_made_by_user:
      user_error = UserError('the model cannot process an example', '--dataset={} ({})'.format(
          source.dataset.name, error.message.splitlines()[0]),
                             'check the shapes and the values that the functions of the data set '
                             'return, such as class indices')
    if user_error is None:
      raise
    raise user_error from error


def cache_not_stored(given: str) -> UserError:
  """Returns the error about a cache that cannot be written to the disk."""
  return UserError('the cache cannot be stored', given,
                   'give a writable folder on a disk with enough free space')


def _to_user_error(bad_example: str) -> UserError:
  return UserError('an example cannot be read', bad_example,
                   'repair or remove it (--mode=audit lists all), or give --on_bad_image=skip')
