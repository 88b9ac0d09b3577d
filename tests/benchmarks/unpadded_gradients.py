"""Runs the program without padded images for the gradient of the first layer.

  PYTHONPATH=.:tests/benchmarks python -m unpadded_gradients FLAG...

For the comparison `padded_gradient`; see estimator_train/tf_patches/optimizers.py.
"""

import sys

from estimator_train import __main__
from estimator_train.system import machine

if __name__ == '__main__':
  machine.needs_padded_gradients = lambda: False
  sys.exit(__main__.main())
