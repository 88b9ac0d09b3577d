"""The last lines of pytest's output: skipped tests by their reasons, and what was left out."""

import os
import subprocess
import sys

from conftest import ROOT


def test_summary_without_the_data(tmp_path):
  environment = {name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'}
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-m', 'not slow',
       'tests/datasets/test_idx.py'], cwd=str(ROOT), timeout=300,
      env=dict(environment, TESTS_REAL_DATA=str(tmp_path / 'none'), TESTS_BEGAN_SECS='0'),
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
  assert done.returncode == 0, done.stdout
  for text in ('requires the published data sets in ../shared/data\n',
               'Tests of data sets used generated files only: there is no ../shared/data\n',
               'Tests that are marked slow are left out: tests/run.sh --all runs them\n',
               's without their set-up, on {} cores\n'.format(len(os.sched_getaffinity(0)))):
    assert done.stdout.count(text) == 1, done.stdout
