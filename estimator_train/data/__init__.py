"""Defines the types that describe a data set, its splits, and its files to download."""

import enum
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_train.errors import UserError
from estimator_train.run_dir.data_record import Holdout
from estimator_train.settings.flags import DataFlags

if TYPE_CHECKING:
  from estimator_train.data.record_index import RecordIndex

# A prediction lists the TOP_K most probable classes, or all classes if there are fewer.
TOP_K = 5


class DataFile(NamedTuple):
  """A file that the publisher of a data set provides for download.

  Attributes:
    name: the name of the file in `data_dir`, and the last part of each URL.
    size: the size in bytes.
    md5: the MD5 checksum, as 32 hexadecimal digits.
    urls: the URLs to download from, in the order of attempts, beginning with the publisher's URL.
  """
  name: str
  size: int
  md5: str
  urls: Tuple[str, ...]


ImageShape = Tuple[int, int, int]  # (height, width, channels)


class DataSpec(NamedTuple):
  """The description of a data set that a model, an export or a report requires.

  Attributes:
    name: the name of the data set; for a data set of the user, the value of `--dataset`.
    labels: the class names, in the order of the model's outputs. The tuple is empty if the examples
      have no classes, or if the model has several outputs.
    image_shape: (height, width, channels) of the model's input; None if the examples are not
      images, or have other features besides an image.
  """
  name: str
  labels: Tuple[str, ...]
  image_shape: Optional[ImageShape]

  def require_images(self, required_by: str) -> ImageShape:
    """Returns the image shape; raises a UserError if the examples are not images.

    Args:
      required_by: the flag or split type that requires images, for the error message.
    """
    if self.image_shape is None:
      raise UserError('{} requires images'.format(required_by),
                      '--dataset={} has image_shape=None'.format(self.name),
                      'omit {}, or give another --dataset'.format(required_by))
    return self.image_shape

  def require_classes(self, required_by: str) -> None:
    """Raises a UserError if the examples have no classes; see require_images."""
    if not self.labels:
      raise UserError('{} requires classes'.format(required_by),
                      '--dataset={} has labels=()'.format(self.name),
                      'omit {}, or give another --dataset'.format(required_by))


class Role(enum.Enum):
  """The use of a split in a run."""
  TRAIN = 'train'
  TEST = 'test'  # The run also reads the training examples.
  TEST_ONLY = 'test only'  # The run does not read the training examples.


class IdxSplit(NamedTuple):
  """A split (train or test) stored in two gzipped idx files.

  Attributes:
    images: the path of the file of images, uint8 [examples, height, width].
    labels: the path of the file of class indices, uint8 [examples].
    are_verified: whether the files have been compared with published checksums. The program sets
      this attribute.
  """
  images: str
  labels: str
  are_verified: bool = False


class ImageSplit(NamedTuple):
  """A split stored in image files: JPEG, PNG or GIF.

  Attributes:
    files: the paths of the files.
    classes: the class index of each file, an integer array [examples].
  """
  files: Sequence[bytes]
  classes: Any

  def take(self, indices: Any) -> 'ImageSplit':
    """Returns a split of only the examples at the indices, an integer array."""
    return ImageSplit([self.files[index] for index in indices], self.classes[indices])


class ArraySplit(NamedTuple):
  """A split stored in NumPy arrays, which may be memory-mapped (`np.load(path, mmap_mode='r')`).

  Attributes:
    images: uint8 [examples, height, width, channels].
    classes: the class index of each image, an integer array [examples].
  """
  images: Any
  classes: Any


class BinarySplit(NamedTuple):
  """A split stored in binary files, which are completely read into memory.

  Attributes:
    files: the paths of the files.
    read_files: takes these paths, and returns (images, class indices). The images are uint8
      [examples, height, width, channels], and the class indices uint8 [examples]. The function
      raises a UserError if a file is missing or damaged.
    are_verified: whether the files have been compared with published checksums.
  """
  files: Tuple[str, ...]
  read_files: Callable[[Tuple[str, ...]], Tuple[Any, Any]]
  are_verified: bool = False


class SyntheticSplit(NamedTuple):
  """A split of synthetic images, which repeats one random batch.

  Attributes:
    num_batches: None to repeat the batch infinitely.
    seed: the seed of the batch. The program sets this attribute.
  """
  num_batches: Optional[int]
  seed: int = 1


class ImageRecordSplit(NamedTuple):
  """A split of images in TFRecord files, one tf.train.Example per image.

  Attributes:
    records: the positions of the records.
    image_key: the key of the encoded image, a JPEG, PNG or GIF file.
    label_key: the key of the label, an integer.
    label_offset: the number that is added to a label. The sum is an index into `label_names`. If
      `label_names` is empty, the sum is the class index of the image.
    record_indices: the indices of the records that are read, int64 [examples]; None for all
      records.
    label_names: the class names in `labels.txt` next to the files. The tuple is empty if labels
      refer to the class names of the data set.
  """
  records: 'RecordIndex'
  image_key: str = 'image/encoded'
  label_key: str = 'image/class/label'
  label_offset: int = 0
  record_indices: Optional[Any] = None
  label_names: Tuple[str, ...] = ()

  def take(self, indices: Any) -> 'ImageRecordSplit':
    """Returns a split of only the examples at the indices, an integer array."""
    return self._replace(record_indices=(
        indices if self.record_indices is None else self.record_indices[indices]))


class RecordSplit(NamedTuple):
  """A split stored in TFRecord files.

  If neither `parse` nor `parse_batch` is given, the records must have the standard image schema.

  Attributes:
    pattern: the pattern of the files, such as `DATA/train-*`.
    parse: takes a record, a scalar string tensor, and returns `(features, label)` or `(features,
      label, weight)` of one example.
    parse_batch: like `parse`, but takes a vector of records, which is faster. The first dimension
      of all returned tensors is the dimension of the vector. At most one of `parse` and
      `parse_batch` can be given.
    compression: `auto`, `none`, `gzip` or `zlib`.
  """
  pattern: str
  parse: Optional[Callable[[Any], Any]] = None
  parse_batch: Optional[Callable[[Any], Any]] = None
  compression: str = 'auto'


class ExampleSplit(NamedTuple):
  """A split of examples that a tf.data.Dataset of the user yields.

  Attributes:
    make_dataset: returns a dataset of single examples, `(features, label)` or `(features, label,
      weight)`, always in the same order. Features are a tensor, a tuple or a dict.
    num_examples: None to let the program count the examples once.
  """
  make_dataset: Callable[[], Any]
  num_examples: Optional[int] = None


class ParsedRecordSplit(NamedTuple):
  """A RecordSplit with `parse` or `parse_batch`, after the records in its files have been found.

  Attributes:
    records: the positions of the records.
    parse, parse_batch: see RecordSplit.
  """
  records: 'RecordIndex'
  parse: Optional[Callable[[Any], Any]]
  parse_batch: Optional[Callable[[Any], Any]]


# The program replaces each RecordSplit by an ImageRecordSplit or a ParsedRecordSplit.
Split = Union[IdxSplit, ImageSplit, ArraySplit, BinarySplit, SyntheticSplit, RecordSplit,
              ImageRecordSplit, ParsedRecordSplit, ExampleSplit]


class DataSet(NamedTuple):
  """A data set: images, or any examples that the user's functions make.

  Attributes:
    name, labels, image_shape: see DataSpec.
    train: the training split, or None if the mode does not read training examples.
    test: the test split, or None if the mode does not read test examples.
    files: the published files; missing files are downloaded.
    validation: the training examples that are held out for validation. The program sets this
      attribute.
  """
  name: str
  labels: Tuple[str, ...]
  image_shape: Optional[ImageShape]
  train: Optional[Split] = None
  test: Optional[Split] = None
  files: Tuple[DataFile, ...] = ()
  validation: Optional[Holdout] = None

  @property
  def is_synthetic(self) -> bool:
    """Whether the training examples are synthetic."""
    return type(self.train) is SyntheticSplit

  @property
  def spec(self) -> DataSpec:
    """The description of the data set without its splits."""
    return DataSpec(self.name, self.labels, self.image_shape)


def require_data_dir(flags: DataFlags) -> str:
  """Returns `--data_dir`; raises a UserError if this flag is not given."""
  if not flags.data_dir:
    raise UserError('--data_dir is required for this data set',
                    '--dataset={} without --data_dir'.format(flags.dataset),
                    'give --data_dir=FOLDER; --mode=download downloads the files into it')
  return flags.data_dir
