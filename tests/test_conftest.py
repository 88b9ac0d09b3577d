"""What pytest says at its end about tests that were skipped for want of data."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

SECS = 300


@pytest.mark.parametrize('tests, told', [
    (['tests/datasets/test_mnist.py::test_published_files'],
     '1 test was skipped: it needs the data sets in ../shared/data, which are not next to this '
     'checkout'),
    (['tests/datasets/test_mnist.py'],
     '2 tests were skipped: they need the data sets in ../shared/data, which are not next to this '
     'checkout'),
    (['tests/datasets/test_mnist.py::test_addresses'], None),
])
def test_summary_without_the_data(tmp_path, tests, told):
  environment = {name: value for name, value in os.environ.items() if name != 'PYTEST_ADDOPTS'}
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', *tests], cwd=str(ROOT),
      env=dict(environment, TESTS_REAL_DATA=str(tmp_path / 'none')), timeout=SECS,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
  assert done.returncode == 0, done.stdout
  found = [line for line in done.stdout.splitlines() if 'next to this checkout' in line]
  assert found == ([told] if told else [])
