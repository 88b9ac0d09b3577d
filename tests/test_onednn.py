"""The settings for TensorFlow's build with oneDNN."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from estimator_train import onednn

# What the program has set by the time that TensorFlow is imported.
ASKS = '''
import os, sys
from estimator_train import __main__, modes
modes.run = lambda settings: {
  'value': os.environ['KMP_BLOCKTIME'], 'tensorflow': 'tensorflow' in sys.modules}
sys.exit(__main__.main(['--model_dir=x', '--train_steps=1']))
'''


@pytest.mark.parametrize('given, value', [({}, '0'), ({'KMP_BLOCKTIME': '7'}, '7')])
def test_it_is_set_before_tensorflow_is_imported(given, value):
  environment = {name: text for name, text in os.environ.items() if name not in onednn.THREADS}
  done = subprocess.run([sys.executable, '-c', ASKS], cwd=str(ROOT), timeout=60,
                        env=dict(environment, **given), stdout=subprocess.PIPE,
                        universal_newlines=True)
  assert (done.returncode, done.stdout) == (
      0, '{{"value": "{}", "tensorflow": false}}\n'.format(value))
