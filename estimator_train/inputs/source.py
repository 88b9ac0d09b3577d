"""What the package needs to know of the examples of a split, whatever format they are in."""

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
  """A file that cannot be decoded, and why."""
  file: str
  reason: str


class Source(abc.ABC):
  """The examples of a split; one subclass for each format.

  Args:
    dataset: that the split is of.
    split: where the examples are.

  Attributes:
    split: as given.
    kind: the name of the format in reports.
    lists_classes: whether the class of each example is known without reading a file.
    is_auditable: whether its files are images, which an audit can decode one by one.
    caches_in_folder: whether its examples are worth a cache in a folder.
    is_in_memory: whether examples need neither reading nor decoding.
    last_stage: the name of the last stage of training; None: there is nothing to measure in it.
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
    """Checks the files as far as that is quick, and returns the number of examples.

    Returns:
      None: there is no end to them.

    Raises:
      UserError: a file is missing or is not what it should be; it names the file.
    """

  @abc.abstractmethod
  def make_train_input_fn(self, batching: Batching, cache: str) -> InputFn:
    """Makes the `input_fn` of training: shuffled, without end, every batch full.

    Args:
      batching: how examples become batches.
      cache: where they are kept: `memory`, `none` or a folder.
    """

  @abc.abstractmethod
  def make_eval_input_fn(self, batching: Batching) -> InputFn:
    """Makes the `input_fn` of evaluation: every example once, in the order of the list."""

  @property
  def default_cache(self) -> str:
    """What `--cache=auto` stands for."""
    return 'none'

  def classes(self) -> np.ndarray:
    """Returns the class index of each example, integer [N]; UserError where there is no end."""
    raise self._endless()

  def cache_key(self) -> str:
    """Returns what distinguishes these examples from others on this machine."""
    raise self._endless()

  def content_digest(self) -> str:
    """Returns what distinguishes their list from others, and is equal on all machines.

    Empty where that is ensured otherwise, as by the checksums of published files.
    """
    return fingerprint.of_arrays([self.classes()]) if self.lists_classes else ''

  def skip_bad(self, name: str, settings: groups.Input,
               model_dir: str) -> Tuple[Split, List[BadImage]]:
    """Returns the split without the examples that cannot be decoded, and those.

    Args:
      name: of the split, `train` or `test`.
      settings: of the run.
      model_dir: remembers which are bad.

    Raises:
      UserError: there are more of them than `--max_bad_images` allows, or a class has no other
        example to train on.
    """
    return self.split, []

  def order(self, batching: Batching) -> Optional[np.ndarray]:
    """Returns the order in which examples are listed to be shuffled; None: their own."""
    return batching.order(len(self.classes()))

  def files(self) -> List[Path]:
    """Returns the paths of the files that hold the examples; none where no file does."""
    return []

  def stages(self, batching: Batching, cached: bool, whole: InputFn) -> Dict[str, InputFn]:
    """Returns an `input_fn` for each stage of training, that stage and all before it, in order.

    Args:
      batching: how examples become batches.
      cached: whether only batches are left to be made.
      whole: the `input_fn` of training, which is the last stage.
    """
    if self.last_stage is None:
      return {}
    if cached or self.is_in_memory:
      return {'batch': whole}
    return dict(self.make_stages(batching), **{self.last_stage: whole})

  def make_stages(self, batching: Batching) -> Dict[str, InputFn]:
    """Makes the `input_fn`s of the stages but the last, of training without a cache.

    Of a stage that ends before there are batches the datasets deliver one element in the time of a
    batch.
    """
    return {}

  def explain_failure(self) -> Optional[UserError]:
    """Returns the error that names the file because of which reading failed, if one is found."""
    return None

  def _endless(self) -> UserError:
    return UserError('made-up examples have no end, and cannot be gone through',
                     '--dataset=' + self.dataset.name,
                     'leave --class_weights and --cache_features out')
