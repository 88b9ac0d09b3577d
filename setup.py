"""Installs estimator_train; requirements/*.txt pin what was tested."""

import re
from pathlib import Path

from setuptools import find_packages, setup

# Read, not imported: importing would need the very packages that are about to be installed.
init = (Path(__file__).resolve().parent / 'estimator_train' / '__init__.py').read_text()
version = re.search(r"^__version__ = '(.+)'$", init, re.MULTILINE).group(1)

setup(
  name='estimator_train',
  version=version,
  description='Trains Keras models through TensorFlow 1.15 Estimators, on one to many devices.',
  python_requires='>=3.6,<3.9',
  packages=find_packages(include=['estimator_train', 'estimator_train.*']),
  package_data={
    'estimator_train': ['configs/*.flags', 'datasets/fashion_mnist_sample_files/*'],
  },
  zip_safe=False,
  install_requires=[
    # On 3.8 TensorFlow 1.15 exists only as NVIDIA's distribution, nvidia-tensorflow, which their
    # container brings along; asking for `tensorflow` there would find nothing.
    'tensorflow==1.15.0; python_version < "3.8"',
    # TensorFlow 1.15 sets no upper bounds, but does not import with protobuf 4 or read Keras files
    # with h5py 3, and warns at length with numpy 1.19.
    'protobuf<3.20; python_version < "3.7"',
    'protobuf<3.21; python_version >= "3.7"',
    'h5py<3',
    'numpy>=1.16,<1.19',
    'absl-py',
    'kaggle',
    'tqdm',
  ],
  extras_require={
    # The last releases for each Python.
    'images': [  # For --mode=audit.
      'Pillow==8.4.0; python_version < "3.7"',
      'Pillow==9.5.0; python_version >= "3.7"',
    ],
    'tests': [
      'pytest==7.0.1; python_version < "3.7"',
      'pytest==7.4.4; python_version >= "3.7"',
      'pytest-xdist==3.0.2; python_version < "3.7"',
      'pytest-xdist==3.5.0; python_version >= "3.7"',
      'hypothesis==6.31.6; python_version < "3.7"',
      'hypothesis==6.79.4; python_version >= "3.7"',
    ],
  },
)
