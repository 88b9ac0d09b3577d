"""A run that is killed (kill -9) or stopped here and there ends as if it had been left alone."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

# In TensorFlow's own writing, between a checkpoint's files, in an evaluation, and in the export;
# kills.py has more of them.
POINTS = 'during .*1-9|state before .*-60|promote before|os.rename before'


@pytest.mark.slow
@pytest.mark.parametrize('script, arguments, kind, faults', [
    ('kills.py', ['--kills=1', '--steps=80', '--points=' + POINTS], 'kills', 8),
    ('stop_signals.py', ['--signals=4', '--steps=40'], 'signals', 4)])
def test_the_end_is_that_of_an_undisturbed_run(script, arguments, kind, faults, tmp_path):
  process = subprocess.run(
      [sys.executable, str(ROOT / 'tests' / 'crash' / script), '--keep={}'.format(tmp_path),
       *arguments],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=600)
  result = json.loads(process.stdout.splitlines()[-1])
  assert result['wrong'] == [] and process.returncode == 0, process.stdout
  assert sum(result[kind].values()) >= faults and all(result[kind].values())
