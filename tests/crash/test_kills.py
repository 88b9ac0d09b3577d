"""A run that is killed (kill -9) here and there ends as if it had been left alone."""

import json
import sys

import pytest
from conftest import run_process

# In TensorFlow's own writing, between a checkpoint's files, and in the export; kills.py has more.
POINTS = 'during .*1-9|state before .*-60|os.rename before'


@pytest.mark.slow
def test_the_end_is_that_of_an_undisturbed_run(tmp_path):
  done = run_process(sys.executable, 'tests/crash/kills.py', '--keep={}'.format(tmp_path),
                     '--kills=1', '--steps=80', '--points=' + POINTS, timeout=600)
  assert done.returncode == 0, done.stdout + done.stderr
  result = json.loads(done.stdout.splitlines()[-1])
  assert sum(result['kills'].values()) >= 6 and all(result['kills'].values())
