"""The interface to the examples of a split, with one implementation per format."""

import abc
from typing import Any, Callable, ClassVar, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_train.datasets import fingerprint
from estimator_train.datasets.description import DataSet, Split
from estimator_train.errors import UserError
from estimator_train.inputs.batching import Batching
from estimator_train.settings import groups

InputFn = Callable[[], tf.data.Dataset]
Path = Union[str, bytes]


class BadImage(NamedTuple):
  """An image file that cannot be decoded, and the reason."""
  file: str
  reason: str


class Source(abc.ABC):
  """The examples of a split; each format has a subclass.

  Args:
    dataset: the data set of the split.
    split: the location of the examples.

  Attributes:
    kind: the name of the format in reports.
    lists_classes: whether the class indices are known without reading a file.
    is_auditable: whether the files are images, which --mode=audit can check.
    caches_in_folder: whether the examples can be cached in a folder.
    is_in_memory: whether the examples are in memory, so that nothing is read or decoded.
    last_stage: the name of the last stage of the input pipeline; None: the pipeline has no stages
      to measure.
  """
  kind: ClassVar[str]
  lists_classes = False
  is_auditable = False
  caches_in_folder = False
  is_in_memory = False
  last_stage: ClassVar[Optional[str]] = 'batch'

  def __init__(self, dataset: DataSet, split: Any) -> None:
    self.dataset, self.split = dataset, split

  @abc.abstractmethod
  def check(self) -> Optional[int]:
    """Runs quick checks of the files.

    Returns:
      The number of examples, or None if the data set is infinite.

    Raises:
      UserError: a file is missing or invalid.
    """

  @abc.abstractmethod
  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    """Makes the `input_fn` of training: shuffled, infinite, with full batches.

    Args:
      batching: how the examples are combined into batches.
      cache: where the examples are cached: `memory`, `none` or the path of a folder.
    """

  @abc.abstractmethod
  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    """Makes the `input_fn` of evaluation: each example once, in the order of the split."""

  @property
  def default_cache(self) -> str:
    """The value of `--cache` that `auto` stands for."""
    return 'none'

  def classes(self) -> np.ndarray:
    """Returns the class index of each example, integer [N]; UserError if the data set is
    infinite."""
    raise self._infinite_error()

  def cache_key(self) -> str:
    """Returns a key that identifies the examples on this machine; UserError if there are infinitely
    many."""
    raise self._infinite_error()

  def content_digest(self) -> str:
    """Returns a digest of the list of examples that is equal on all machines.

    It is '' if the list is verified in another way, for example by the checksums of published
    files.
    """
    return fingerprint.of_arrays([self.classes()]) if self.lists_classes else ''

  def skip_bad_examples(self, name: str, settings: groups.Input,
                        model_dir: str) -> Tuple[Split, List[BadImage]]:
    """Removes the examples that cannot be decoded.

    Args:
      name: the name of the split, `train` or `test`.
      settings: the input flags of the run.
      model_dir: the folder in which the result is stored for the next run.

    Returns:
      The split without these examples, and the removed examples.

    Raises:
      UserError: their fraction exceeds `--max_bad_images`, or a class would have no training
        examples left.
    """
    return self.split, []

  def example_order(self, batching: Batching) -> Optional[np.ndarray]:
    """Returns the permutation of the examples before they are shuffled; None: no permutation."""
    return batching.permutation(len(self.classes()))

  def files(self) -> List[Path]:
    """Returns the paths of the files with the examples; [] if there are no files."""
    return []

  def stages(self, batching: Batching, is_cached: bool,
             train_input_fn: InputFn) -> Dict[str, InputFn]:
    """Returns one `input_fn` per stage of the input pipeline; each runs all stages up to its own.

    Args:
      batching: how the examples are combined into batches.
      is_cached: whether the examples are cached, in which case only the batch stage runs.
      train_input_fn: the `input_fn` of training, which runs all stages.
    """
    if self.last_stage is None:
      return {}
    if is_cached or self.is_in_memory:
      return {'batch': train_input_fn}
    return dict(self.make_stages(batching), **{self.last_stage: train_input_fn})

  def make_stages(self, batching: Batching) -> Dict[str, InputFn]:
    """Makes the `input_fn`s of all stages but the last one, for training without a cache.

    The datasets of stages before batching yield one element per `batch_size` examples.
    """
    return {}

  def explain_failure(self) -> Optional[UserError]:
    """Returns an error that names the file that cannot be read, or None if all can be read."""
    return None

  def _infinite_error(self) -> UserError:
    return UserError('this requires a finite data set, but synthetic data is infinite',
                     '--dataset=' + self.dataset.name,
                     'omit --class_weights and --cache_features')
