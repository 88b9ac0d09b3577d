"""Describes CIFAR-100 (Krizhevsky, 2009): 60,000 color images, 32x32, of a hundred classes.

A record of the binary version begins with two bytes: the index of the superclass, such as `fish`,
and the index of the class, such as `shark`. Only the class is used. The pixel values
follow, as in CIFAR-10; see cifar10.py.
"""

from typing import Tuple

from estimator_train.data import DataFile, DataSet, cifar10
from estimator_train.settings import Settings

FILES = (DataFile('cifar-100-binary.tar.gz', 168513733, '03b5dce01913d631647c71ecec9e9cb8',
                  ('https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz',)),)
CLASS_NAMES = (
    'apple', 'aquarium_fish', 'baby', 'bear', 'beaver', 'bed', 'bee', 'beetle', 'bicycle', 'bottle',
    'bowl', 'boy', 'bridge', 'bus', 'butterfly', 'camel', 'can', 'castle', 'caterpillar', 'cattle',
    'chair', 'chimpanzee', 'clock', 'cloud', 'cockroach', 'couch', 'crab', 'crocodile', 'cup',
    'dinosaur', 'dolphin', 'elephant', 'flatfish', 'forest', 'fox', 'girl', 'hamster', 'house',
    'kangaroo', 'keyboard', 'lamp', 'lawn_mower', 'leopard', 'lion', 'lizard', 'lobster', 'man',
    'maple_tree', 'motorcycle', 'mountain', 'mouse', 'mushroom', 'oak_tree', 'orange', 'orchid',
    'otter', 'palm_tree', 'pear', 'pickup_truck', 'pine_tree', 'plain', 'plate', 'poppy',
    'porcupine', 'possum', 'rabbit', 'raccoon', 'ray', 'road', 'rocket', 'rose', 'sea', 'seal',
    'shark', 'shrew', 'skunk', 'skyscraper', 'snail', 'snake', 'spider', 'squirrel', 'streetcar',
    'sunflower', 'sweet_pepper', 'table', 'tank', 'telephone', 'television', 'tiger', 'tractor',
    'train', 'trout', 'tulip', 'turtle', 'wardrobe', 'whale', 'willow_tree', 'wolf', 'woman',
    'worm')
TRAIN_FILES, TEST_FILES = ('cifar-100-binary/train.bin',), ('cifar-100-binary/test.bin',)


def describe_data_set(settings: Settings, unused_recorded_names: Tuple[str, ...] = ()) -> DataSet:
  """Describes the data set, whose archive in `--data_dir` need not exist yet."""
  return cifar10.describe_archive(settings, FILES, CLASS_NAMES, (TRAIN_FILES, TEST_FILES),
                                  num_indices=2)
