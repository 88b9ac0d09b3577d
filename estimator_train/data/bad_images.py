"""Finds images that training cannot read or decode, by the decoder that training uses."""

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, Optional, Tuple

from estimator_train.data import decoding
from estimator_train.errors import BadExample, UserError, WrongSchema, printable
from estimator_train.system.machine import available_cores
from estimator_train.system.progress import make_progress_bar

_LOG = logging.getLogger('estimator_train')
# The number of examples that are submitted to the thread pool at a time. If a million examples were
# submitted at once, their futures would take 1 GB.
_EXAMPLES_PER_CHUNK = 1024


def map_examples(function: Callable[[int], Any], count: int, description: str) -> Iterator[Any]:
  """Applies a function to the indices of examples in parallel, and shows the progress.

  Args:
    function: takes the index of an example.
    count: the number of examples.
    description: the text in front of the progress bar.

  Yields:
    The result for each example, in order.
  """
  with ThreadPoolExecutor(available_cores()) as threads, \
      make_progress_bar(total=count, desc=description, unit='image') as bar:
    if bar.disable:
      _LOG.info('%s: %d images', description, count)
    for start in range(0, count, _EXAMPLES_PER_CHUNK):
      for result in threads.map(function, range(start, min(start + _EXAMPLES_PER_CHUNK, count))):
        bar.update()
        yield result


def find_undecodable(read_content: Callable[[int], bytes], count: int) -> Iterator[Tuple[int, str]]:
  """Yields (index, reason) for each image that cannot be read or decoded.

  Args:
    read_content: returns the content of the image at an index.
    count: the number of images.

  Raises:
    UserError: an example has other features or labels than the flags state.
  """
  with contextlib.closing(decoding.make_shape_function()) as shape_of:
    def find_reason(index: int) -> Optional[str]:
      try:
        shape_of.call(read_content(index))
      except WrongSchema as error:
        raise error.to_user_error() from error
      except (OSError, ValueError) as error:
        return reason_of(error)
      return None

    for index, reason in enumerate(map_examples(find_reason, count, 'checking images')):
      if reason is not None:
        yield index, reason


def undecodable_error(name: str, reason: str) -> UserError:
  """Returns the error about an image that cannot be read or decoded."""
  return UserError('an image cannot be decoded', '{} ({})'.format(printable(name), reason),
                   'repair or remove it (--mode=audit lists all), or give --on_bad_image=skip')


def reason_of(error: Exception) -> str:
  """Returns the reason in an error about an image, without the name of the file."""
  return (error.reason if isinstance(error, BadExample)
          else getattr(error, 'strerror', None) or str(error))
