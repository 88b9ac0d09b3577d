"""Installs estimator_train; requirements/*.txt pin what was tested."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from setuptools import find_packages, setup

# pip may hide the installed packages from this script: with -E, a child process finds them.
FIND = 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tensorflow_core") is None)'
if sys.version_info >= (3, 8) and importlib.util.find_spec('tensorflow_core') is None and (
    subprocess.call([sys.executable, '-E', '-c', FIND])):
  sys.exit('error: estimator_train requires TensorFlow 1.15, which exists for Python 3.6 and 3.7: '
           'this is Python {}.{}: use ./run_train.sh, which sets up Python 3.7, or the image of '
           'docs/docker.md'.format(*sys.version_info))

# Read, not imported: importing would need the very packages that are about to be installed.
package = Path(__file__).resolve().parent / 'estimator_train'
version = re.search(r"^__version__ = '(.+)'$", (package / 'version.py').read_text(),
                    re.MULTILINE).group(1)
requirements = [line for line in (package / 'install_requires.txt').read_text().splitlines()
                if line and not line.startswith('#')]

setup(
  name='estimator_train',
  version=version,
  description='Trains Keras models through TensorFlow 1.15 Estimators, on one to many devices.',
  python_requires='>=3.6,<3.9',
  packages=find_packages(include=['estimator_train', 'estimator_train.*']),
  package_data={
    'estimator_train': ['configs/*.flags', 'data/fashion_mnist_sample_files/*',
                        'install_requires.txt', 'reports/*.html', 'reports/page.css',
                        'reports/fonts/*', 'py.typed', '__init__.pyi'],
  },
  entry_points={'console_scripts': ['estimator-train = estimator_train.__main__:run_and_exit']},
  zip_safe=False,
  install_requires=requirements,
  extras_require={
    # These are part of the package; their names are still accepted.
    'images': [],
    'report': [],
    # For --distribution_strategy=horovod. scripts/install_horovod sets the variables of its build.
    'horovod': ['horovod==0.28.1', 'cloudpickle==2.2.1', 'PyYAML==6.0.1'],
    'onnx': [  # For --export_format=onnx.
      'tf2onnx==1.14.0',  # Later versions require protobuf 3.20, which CPython 3.6 does not have.
      'onnx==1.11.0; python_version < "3.7"',
      'onnx==1.14.1; python_version >= "3.7"',
      'onnxruntime==1.10.0',  # Later versions require numpy 1.21.
      'packaging',  # tf2onnx imports it, but does not require it.
    ],
    'notebooks': [  # For examples/*.ipynb.
      'matplotlib==3.3.4; python_version < "3.7"',
      'matplotlib==3.5.3; python_version >= "3.7"',
    ],
    'search': ['optuna==3.6.2; python_version >= "3.7"'],  # For examples/search.py.
    'tests': [
      'pytest==7.0.1; python_version < "3.7"',
      'pytest==7.4.4; python_version >= "3.7"',
      'pytest-xdist==3.0.2; python_version < "3.7"',
      'pytest-xdist==3.5.0; python_version >= "3.7"',
      'hypothesis==6.31.6; python_version < "3.7"',
      'hypothesis==6.79.4; python_version >= "3.7"',
      # For the manifests in deploy/.
      'jsonschema==3.2.0; python_version < "3.7"',
      'jsonschema==4.17.3; python_version >= "3.7"',
      'PyYAML==6.0.1',
    ],
  },
)
