"""Defines Source, the interface to the examples of a split, and translates errors about examples.

Each format has its own subclass of Source.
"""

import abc
import contextlib
import functools
import hashlib
import json
import re
from typing import (
  Any,
  Callable,
  ClassVar,
  Dict,
  Iterator,
  List,
  Optional,
  Tuple,
  TypeVar,
  Union,
)

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.data import DataSpec, Role
from estimator_train.data.bad_images import BadImage
from estimator_train.data.batching import BatchSettings, OrderSettings, PixelSettings
from estimator_train.errors import BadExample, UserError, first_line
from estimator_train.settings.flags import InputFlags
from estimator_train.system import storage

# --cache=auto caches decoded images in memory if they take at most this number of bytes.
MAX_AUTO_CACHED_BYTES = 256 << 20
InputFn = Callable[[], tf.data.Dataset]
FilePath = Union[str, bytes]
AnySource = TypeVar('AnySource', bound='Source')
_FILE_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.NotFoundError, tf.errors.UnknownError,
                tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError)


class _SerializedUserError(Exception):
  """A UserError in a function that TensorFlow calls. The message is a JSON list of its parts."""


class Source(abc.ABC):
  """The examples of a split. A subclass reads one file format, NumPy arrays or synthetic data.

  Four methods summarize the examples, so that a change of the examples is noticed:

    method               depends on              the result is compared
    files_fingerprint    paths, file times       by later runs on the same machine
    digest_for_workers   class indices or        by the workers of one run, when it starts
                         record lengths
    content_digest       content, not paths      by evaluations, even if the files have moved
    describe_content     content, not paths      as a part of content_digest

  Attributes:
    format_name: the name of the format in reports.
    class_indices_are_known: whether the class indices are known without reading a file.
    can_augment: whether `--augment` is supported.
    can_cache_in_folder: whether the examples can be cached in a folder.
    is_in_memory: whether the examples are in memory, so that nothing is read or decoded.
    is_user_defined: whether a function of the user makes the examples.
    is_sequential: whether the examples are read one after the other, through a shuffle buffer.
    last_stage: the name of the last stage of the input pipeline. It is None if the input pipeline
      has no stages that --mode=input_benchmark can measure.
    num_examples: the number of examples. It is None before `open` has counted them, and if the data
      set is infinite.
  """
  format_name: ClassVar[str]
  class_indices_are_known = False
  can_augment = False
  can_cache_in_folder = False
  is_in_memory = False
  is_user_defined = False
  is_sequential = False
  last_stage: ClassVar[Optional[str]] = 'batch'
  num_examples: Optional[int] = None
  _digest: Optional[str] = None

  def __init__(self, spec: DataSpec, split: Any, role: Role = Role.TRAIN) -> None:
    self.spec, self.split, self.role = spec, split, role

  def open(self, folder: str) -> None:
    """Checks the files, and sets num_examples.

    Results that take long to compute are stored for the next run.

    Args:
      folder: the folder of the run.

    Raises:
      UserError: a file is missing or invalid, or the examples cannot be counted.
    """
    self.num_examples = self.check_and_count_examples()

  @abc.abstractmethod
  def check_and_count_examples(self) -> Optional[int]:
    """Runs quick checks of the files, and returns the number of examples.

    Returns None if the data set is infinite.

    Raises:
      UserError: a file is missing or invalid.
    """

  def exclude_bad_images(self: AnySource, flags: InputFlags,
                         folder: str) -> Tuple[AnySource, List[BadImage]]:
    """Returns a source without the images that cannot be decoded, and a list of these images.

    The list is stored in the folder for the next run.

    Raises:
      UserError: the fraction of bad images exceeds `--max_bad_images`, or a class would have no
        training images left.
    """
    return self, []

  @abc.abstractmethod
  def make_train_input_fn(self, order: OrderSettings, pixels: PixelSettings, batch: BatchSettings,
                          cache: str) -> InputFn:
    """Makes the `input_fn` of training, whose dataset is shuffled and infinite, with full batches.

    Args:
      order, pixels, batch: the settings of the dataset.
      cache: `none`, `memory`, or the path of a folder that stores the cached examples.
    """

  def make_published_input_fn(self, order: OrderSettings, pixels: PixelSettings,
                              batch: BatchSettings) -> InputFn:
    """Makes the `input_fn` of training with the input pipeline of 2018; see decoding.py.

    Raises:
      UserError: the format has no such input pipeline.
    """
    raise UserError('--input_pipeline=published requires image files or TFRecord files',
                    '--dataset=' + self.spec.name, 'give --input_pipeline=exact, or omit it')

  @abc.abstractmethod
  def make_eval_input_fn(self, pixels: PixelSettings, batch: BatchSettings) -> InputFn:
    """Makes the `input_fn` of evaluation: each example once, in the order of the split."""

  def make_stage_input_fns(self, order: OrderSettings, pixels: PixelSettings,
                           batch: BatchSettings) -> Dict[str, InputFn]:
    """Returns one `input_fn` for each stage of the input pipeline before the last stage, by name.

    Each `input_fn` runs the stages up to and including its own, without a cache. Each element of
    its dataset counts as `batch.size` examples in the measured rate.
    """
    return {}

  @property
  def default_cache(self) -> str:
    """The value that `--cache=auto` stands for: `memory` or `none`."""
    return 'none'

  def cache_if_small(self, num_examples: int) -> str:
    """Returns `memory` if this number of decoded images takes little memory, otherwise `none`."""
    size = num_examples * int(np.prod(self.spec.image_shape))
    return 'memory' if size <= MAX_AUTO_CACHED_BYTES else 'none'

  def wait_until_cached(self) -> None:  # noqa: B027
    """Waits until the cache of the training examples is full, if there is a cache."""

  @abc.abstractmethod
  def read_class_indices(self) -> np.ndarray:
    """Returns the class indices, integer [N]; raises a UserError for infinite data."""

  def count_examples_by_class(self) -> List[int]:
    """Returns the number of examples per class; raises a UserError for infinite data."""
    return np.bincount(self.read_class_indices(), minlength=len(self.spec.labels)).tolist()

  def list_files(self) -> List[FilePath]:
    """Returns the paths of the files that contain the examples; [] if there are no files."""
    return []

  def files_fingerprint(self) -> str:
    """Returns a fingerprint that changes if a file changes or, without files, if an array changes.

    Fingerprints from different machines must not be compared, because they depend on the absolute
    paths, sizes and modification times of the files.

    Raises:
      UserError: the program cannot notice changes of the examples.
    """
    return storage.fingerprint_files(self.list_files())

  def digest_for_workers(self) -> str:
    """Returns a digest that must be the same on all workers.

    By default, this is a digest of the class indices. It is '' if the workers need not compare
    their examples, or if computing it would require reading all examples.
    """
    if not self.class_indices_are_known:
      return ''
    return storage.fingerprint_arrays([self.read_class_indices()])

  def content_digest(self) -> str:
    """Returns a digest that is the same for a copy of the examples in another folder.

    Only the first call computes the digest; see identity.py.

    Raises:
      UserError: the examples cannot be read.
    """
    if self._digest is None:
      with translate_errors(self):
        text = '{} {}'.format(self.format_name, self.describe_content())
      self._digest = hashlib.md5(text.encode()).hexdigest()
    return self._digest

  @abc.abstractmethod
  def describe_content(self) -> str:
    """Returns a text that differs from the texts of all other examples in the same format."""

  def identify_example(self, index: int) -> Dict[str, Any]:
    """Returns the keys and values that identify an example in predictions.

    These are its file or record if it has one, and otherwise its index.
    """
    return {'example': index}

  def find_example_error(self) -> Optional[UserError]:
    """Reads all examples, and returns an error about the first one that cannot be read or decoded.

    Returns None if there is no such example.
    """
    return None


def preserve_user_errors(function: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a function for tf.numpy_function, so that translate_errors can restore its UserErrors."""
  # TensorFlow keeps only the name and the message of an exception in a Python function. The wrapper
  # therefore stores all parts of the UserError in the message.
  @functools.wraps(function)
  def call(*arguments: Any) -> Any:
    try:
      return function(*arguments)
    except (BadExample, UserError) as error:
      user_error = error.to_user_error() if isinstance(error, BadExample) else error
      raise _SerializedUserError(json.dumps([
          user_error.what, str(user_error.given), user_error.remedy])) from error

  return call


@contextlib.contextmanager
def translate_errors(source: Optional[Source] = None) -> Iterator[None]:
  """Translates TensorFlow's errors about data files and checkpoints into UserErrors.

  Args:
    source: the examples, which are read again to find the unreadable file, because TensorFlow's
      error may not name it. If it is None, errors about unreadable files are not translated.
  """
  try:
    yield
  except BadExample as error:
    raise error.to_user_error() from error
  except tf.errors.DataLossError as error:
    raise UserError('a file of the data set or of --model_dir is damaged', first_line(error),
                    'remove it; --mode=download downloads data files again') from error
  except _FILE_ERRORS as error:
    user_error = _find_user_error(error, source)
    if user_error is None:
      raise
    raise user_error from error


def _find_user_error(error: tf.errors.OpError, source: Optional[Source]) -> Optional[UserError]:
  """Returns a UserError that explains an error of TensorFlow; None if the cause is not known."""
  serialized = re.search(_SerializedUserError.__name__ + r': (\[.*\])', error.message)
  if serialized:
    return UserError(*json.loads(serialized.group(1)))
  missing = re.search(r'Key \S+ not found in checkpoint', error.message)
  if missing:
    return UserError('--model_dir holds a checkpoint of another model or optimizer',
                     missing.group(), 'give another --model_dir')
  user_error = source.find_example_error() if source is not None else None
  if user_error is None and source is not None and source.is_user_defined:
    return UserError('the model cannot process an example',
                     '--dataset={} ({})'.format(source.spec.name, first_line(error)),
                     'check the shapes and the values that the functions of the data set return, '
                     'such as class indices')
  return user_error
