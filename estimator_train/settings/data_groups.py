"""Declares the flags of the groups `run`, `data` and `model`; see groups.py."""

import unicodedata
from typing import Optional, Sequence, Tuple, Union

import attr

from estimator_train.settings import choices
from estimator_train.settings.flag import (
    check_not_a_pattern,
    flag,
    flag_group,
    int_range,
    not_empty,
    satisfies,
)


def _check_weights(name: str, path: str) -> None:
  not_empty('give none, or the path of a file')(name, path)
  if not path.endswith('.h5'):
    check_not_a_pattern(name, path)


def normalize(name: str) -> str:
  """Returns a class name in the form that equals that of each name which looks the same."""
  return unicodedata.normalize('NFC', name)


def are_distinct(names: Sequence[str]) -> bool:
  """Returns whether class names are different for a reader, not only in their Unicode form."""
  return len(set(map(normalize, names))) == len(names)


@flag_group('run')
@attr.s(auto_attribs=True, frozen=True)
class Run:
  mode: str = flag('train_and_evaluate', 'what to do', choices=choices.MODES)
  model_dir: Optional[str] = flag(
      None, 'folder for everything that the run writes; if the folder already contains a run, that '
      'run is resumed', check=check_not_a_pattern, is_path=True)
  verbosity: int = flag(0, '1: also show debug messages, tracebacks, and the log and warnings of '
                        'TensorFlow')

  @property
  def trains(self) -> bool:
    """Whether the mode trains."""
    return self.mode in choices.TRAINING_MODES

  @property
  def evaluates(self) -> bool:
    """Whether the mode evaluates checkpoints on the test examples."""
    return self.mode in ('train_and_evaluate', 'evaluate')


@flag_group('data')
@attr.s(auto_attribs=True, frozen=True)
class Data:
  dataset: str = flag(
      'fashion_mnist_sample', '{names}, or package.module:function, a function that returns an '
      'estimator_train.DataSet', built_in_names=choices.DATASETS)
  data_dir: Optional[str] = flag(
      None, 'folder of the files of the data set; missing files are downloaded (oct2017: only by '
      '--mode=download)', is_path=True)
  train_pattern: Optional[str] = flag(
      None, 'pattern of the files to train on; with --dataset=image_folder, such as '
      '\'DATA/train/**/*.jpeg\', where the class of a file is the name of its folder; with '
      '--dataset=tfrecord, such as \'DATA/train-*-of-*\'', is_path=True)
  eval_pattern: Optional[str] = flag(None, 'pattern of the files to evaluate on', is_path=True)
  labels: Tuple[str, ...] = flag(
      (), 'with --dataset=image_folder, tfrecord or synthetic: class names, in the order of the '
      'model\'s outputs; if not given, the sorted names of the folders (tfrecord: the lines of '
      'labels.txt next to the files; synthetic: ten classes)',
      check=satisfies(lambda labels: are_distinct(labels) and all(labels),
                      'must be different names, none of them empty', 'name each class once'))
  image_size: Optional[Union[Tuple[int, int], Tuple[int, int, int]]] = flag(
      None, 'with --dataset=image_folder or oct2017: height,width in pixels to which images are '
      'resized, 224,224 if not given; tfrecord: height,width[,channels], 224,224,3 if not given; '
      'synthetic: height,width[,channels], 28,28,1 if not given',
      parse_rule='must be height,width in pixels', parse_remedy='give a size such as 28,28')
  image_key: str = flag('image/encoded', 'with --dataset=tfrecord: key of the encoded image',
                        check=not_empty('give a key'))
  label_key: str = flag('image/class/label', 'with --dataset=tfrecord: key of the integer label',
                        check=not_empty('give a key'))
  label_offset: int = flag(0, 'with --dataset=tfrecord: number to add to a label to get the class '
                           'index, such as -1 where 0 is a background class')
  compression: str = flag('auto', 'with --dataset=tfrecord: compression of the files; auto: '
                          'detected from their content', choices=choices.COMPRESSIONS)


@flag_group('model')
@attr.s(auto_attribs=True, frozen=True)
class Model:
  model: str = flag(
      'fashion_cnn', '{names}, or package.module:function, a function that returns a Keras model',
      built_in_names=choices.MODELS)
  weights: str = flag(
      'none', 'initial weights: none (random), imagenet (downloaded), or the path of an .h5 file, '
      'a checkpoint or a model_dir', check=_check_weights, is_path=True)
  trainable_layers: Optional[int] = flag(
      None, 'number of layers at the end of a pretrained network that are trained in addition to '
      'the new head; if not given, 4 for vgg16 and all for other networks', check=int_range(0))
  preprocess: str = flag(
      'unit', 'scaling of pixel values, to [0, 1] or as required by ImageNet weights',
      choices=choices.PREPROCESSINGS)
