"""Finds images that cannot be read or decoded, with the decoder that training uses."""

import contextlib
import fractions
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_train.data import decoding
from estimator_train.errors import BadExample, UserError, WrongSchema, printable
from estimator_train.system import json_values, storage
from estimator_train.system.machine import available_cores
from estimator_train.system.progress import make_bar

_LOG = logging.getLogger('estimator_train')
_SKIPPED_FILE = 'skipped_images.json'
_SKIPPED_SCHEMA = json_values.mapping(json_values.fields({
    'files': json_values.text,
    'bad': json_values.list_of(json_values.tuple_of(json_values.integer(), json_values.text))}))
# The number of examples that are submitted to the thread pool at a time. The futures of a million
# examples would take 1 GB.
_EXAMPLES_PER_CHUNK = 1024


class BadImage(NamedTuple):
  """An image that cannot be decoded.

  Attributes:
    file: the path of the file and, if the file has several images, the position of this image.
  """
  file: str
  reason: str


def map_in_parallel(function: Callable[[int], Any], count: int, description: str) -> Iterator[Any]:
  """Calls a function in parallel for the indices of all examples, and yields the results in order.

  Args:
    description: the text in front of the progress bar.
  """
  with ThreadPoolExecutor(available_cores()) as threads, \
      make_bar(description, count, 'images') as bar:
    if not bar.is_shown:
      _LOG.info('%s: %d images', description, count)
    for start in range(0, count, _EXAMPLES_PER_CHUNK):
      for result in threads.map(function, range(start, min(start + _EXAMPLES_PER_CHUNK, count))):
        bar.update(1)
        yield result


def iter_undecodable_images(read_content: Callable[[int], bytes],
                            count: int) -> Iterator[Tuple[int, str]]:
  """Yields (index, reason) for each image that cannot be read or decoded.

  Args:
    read_content: takes the index of an image, and returns the content of its file.

  Raises:
    UserError: the features or the label of an example do not match the flags.
  """
  with contextlib.closing(decoding.make_shape_function()) as shape_function:
    def find_reason(index: int) -> Optional[str]:
      try:
        shape_function.call(read_content(index))
      except WrongSchema as error:
        raise error.to_user_error() from error
      except (OSError, ValueError) as error:
        return error_reason(error)
      return None

    for index, reason in enumerate(map_in_parallel(find_reason, count, 'checking images')):
      if reason is not None:
        yield index, reason


def load_or_find_undecodable_images(read_content: Callable[[int], bytes], count: int, folder: str,
                                    split_name: str, files_digest: str) -> List[Tuple[int, str]]:
  """Returns the results of iter_undecodable_images, and stores them in a folder for the next run.

  Args:
    files_digest: a digest of the files. If it differs from the stored digest, the images are
      decoded again.
  """
  path = os.path.join(folder, _SKIPPED_FILE)
  results = storage.load_json_or_warn(path, _SKIPPED_SCHEMA) or {}
  stored = results.get(split_name)
  if stored is None or stored['files'] != files_digest or any(
      index >= count for index, _ in stored['bad']):
    results[split_name] = {'files': files_digest, 'bad': list(iter_undecodable_images(
        read_content, count))}
    storage.write_json(path, results)
  undecodable: List[Tuple[int, str]] = results[split_name]['bad']
  return undecodable


def check_and_log_skipped(bad: Sequence[BadImage], count: int, max_bad_images: float) -> None:
  """Logs the bad images of a split, which are skipped.

  Args:
    count: the number of all images, including the bad images.
    max_bad_images: the value of `--max_bad_images`.

  Raises:
    UserError: the fraction of bad images exceeds the value of `--max_bad_images`.
  """
  # Fractions make this comparison exact: as a float, 0.29 * 100 is less than 29.
  if len(bad) > fractions.Fraction(str(max_bad_images)) * count:
    raise UserError('the fraction of images that cannot be decoded exceeds --max_bad_images',
                    '{} of {} with --max_bad_images={:g}, the first is {} ({})'.format(
                        len(bad), count, max_bad_images, printable(bad[0].file), bad[0].reason),
                    'repair or remove them (--mode=audit lists them), or give a larger fraction')
  for image in bad:
    _LOG.warning('skipping %s (%s)', printable(image.file), image.reason)


def make_undecodable_error(image_name: str, reason: str) -> UserError:
  return UserError('an image cannot be decoded', '{} ({})'.format(printable(image_name), reason),
                   BadExample.remedy)


def error_reason(error: Exception) -> str:
  """Returns the reason in an error about an image, without the name of the image."""
  return (error.reason if isinstance(error, BadExample)
          else getattr(error, 'strerror', None) or str(error))
