"""A run that is killed (kill -9) here and there ends as if it had been left alone."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

# In TensorFlow's own writing, between a checkpoint's files, and in the export; kills.py has more.
POINTS = 'during .*1-9|state before .*-60|os.rename before'


@pytest.mark.slow
def test_the_end_is_that_of_an_undisturbed_run(tmp_path):
  process = subprocess.run(
      [sys.executable, str(ROOT / 'tests' / 'crash' / 'kills.py'), '--keep={}'.format(tmp_path),
       '--kills=1', '--steps=80', '--points=' + POINTS],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=600)
  result = json.loads(process.stdout.splitlines()[-1])
  assert result['wrong'] == [] and process.returncode == 0, process.stdout
  assert sum(result['kills'].values()) >= 6 and all(result['kills'].values())
