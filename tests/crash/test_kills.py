"""A run that is killed (kill -9) here and there ends as if it had been left alone."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

# In TensorFlow's own writing, between a checkpoint's files, in an evaluation, and in the export;
# kills.py has more of them.
POINTS = 'during .*1-9|state before .*-60|promote before|os.rename before'


@pytest.mark.slow
@pytest.mark.parametrize('arguments, kills', [
    (['--kills=2', '--steps=120'], 2), (['--kills=0', '--points=' + POINTS], 7)],
                         ids=['random', 'points'])
def test_the_end_is_that_of_an_undisturbed_run(arguments, kills, tmp_path):
  process = subprocess.run(
      [sys.executable, str(ROOT / 'tests' / 'crash' / 'kills.py'),
       '--keep={}'.format(tmp_path)] + arguments,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=600)
  result = json.loads(process.stdout.splitlines()[-1])
  assert result['differences'] == [] and process.returncode == 0, process.stdout
  assert sum(result['kills'].values()) >= kills and all(result['kills'].values())


@pytest.mark.slow
def test_stop_signals_are_not_lost(tmp_path):
  process = subprocess.run(
      [sys.executable, str(ROOT / 'tests' / 'crash' / 'stop_signals.py'), '--signals=6',
       '--steps=40', '--keep={}'.format(tmp_path)],
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=300)
  result = json.loads(process.stdout.splitlines()[-1])
  assert result['wrong'] == [] and process.returncode == 0, process.stdout
  assert sum(result['signals'].values()) == 6
