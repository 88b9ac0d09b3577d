"""Which build of TensorFlow is recommended, from measured rates and from child processes."""

import os
import re
import sys

import pytest

from estimator_train.doctor import build_rates
from estimator_train.doctor.build_rates import BuildRate
from estimator_train.doctor.packages import TensorFlowBuild
from estimator_train.files import paths

STOCK, ONEDNN = TensorFlowBuild('tensorflow', '1.15.0'), TensorFlowBuild(
    'intel-tensorflow', '1.15.2')


@pytest.mark.parametrize('rates, build, found, remedy', [
    pytest.param([('stock', 1000.), ('oneDNN', 2600.)], STOCK,
                 'the oneDNN build is 2.6 times as fast',
                 '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh` uses it', id='the other is faster'),
    pytest.param([('oneDNN', 1000.), ('stock', 1200.)], ONEDNN,
                 'the stock build is 1.2 times as fast', '`./run_train.sh` uses it',
                 id='stock is faster'),
    pytest.param([('oneDNN', 2600.), ('stock', 1000.)], ONEDNN,
                 'the oneDNN build is 2.6 times as fast', None, id='this one is faster'),
    pytest.param([('stock', 1000.), ('oneDNN', 1140.)], STOCK,
                 '1,000 examples/sec with the stock build, 1,140 examples/sec with the oneDNN '
                 'build: a difference below 15% can be chance', None, id='equal'),
    pytest.param([('stock', 1000.), ('oneDNN', None)], STOCK,
                 'not with the oneDNN build (ended by SIGILL)', None, id='the other fails'),
    pytest.param([('stock', 1000.)], STOCK, '1,000 examples/sec with the stock build',
                 '`ESTIMATOR_TRAIN_TF=onednn ./run_train.sh --mode=doctor` installs', id='alone'),
    pytest.param([('oneDNN', 1000.)], ONEDNN, '1,000 examples/sec with the oneDNN build',
                 '`./run_train.sh --mode=doctor` installs the stock build', id='oneDNN alone'),
])
def test_measured_rates_decide(rates, build, found, remedy):
  check = build_rates.check_build_rates(
      [BuildRate(name, rate, '' if rate else 'ended by SIGILL') for name, rate in rates], build)
  assert check.level == 'ok' and found in check.found
  assert remedy in check.remedy if remedy else check.remedy == ''


@pytest.mark.parametrize('name', ['tensorflow', 'tensorflow-gpu'])
def test_what_to_install(name):
  check = build_rates.check_build_rates([BuildRate('stock', 1.)], TensorFlowBuild(name, '1.15.0'))
  assert '`pip uninstall {}`'.format(name) in check.remedy
  assert 'pip install intel-tensorflow==' in check.remedy


@pytest.mark.parametrize('name, build, remedy', [
    ('stock', STOCK, 'docker build '), ('oneDNN', ONEDNN, '')])
def test_in_the_image_another_image_is_the_hint(name, build, remedy):
  check = build_rates.check_build_rates([BuildRate(name, 1.)], build, in_image=True)
  assert remedy in check.remedy and 'pip' not in check.remedy
  assert bool(check.remedy) == bool(remedy)


def test_a_build_that_does_not_train_is_a_warning():
  check = build_rates.check_build_rates(
      [BuildRate('stock', None, 'ended by SIGILL'), BuildRate('oneDNN', 1000.)], STOCK)
  assert check.level == 'warning' and 'not with the stock build (ended by SIGILL)' in check.found
  assert sys.executable in check.remedy


@pytest.fixture
def other(tmp_path, monkeypatch):
  """Makes the only environment next to the package a script that stands in for its Python."""
  monkeypatch.setattr(paths, 'PACKAGE_PARENT_DIR', str(tmp_path))
  # The child of this interpreter needs the package itself.
  monkeypatch.setenv('PYTHONPATH', os.path.dirname(paths.PACKAGE_DIR))

  def write(venv, script):
    python = tmp_path / venv / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n' + script)
    python.chmod(0o755)

  return write


@pytest.fixture
def this_one_prints(monkeypatch):
  """Replaces the training by code for the child process of this interpreter."""
  return lambda code: monkeypatch.setattr(build_rates, '_CHILD_CODE', code)


RATE = 'print(\'{"examples_per_sec": 1000.0}\')'


@pytest.mark.parametrize('build, names', [(STOCK, ['stock', 'oneDNN']),
                                          (ONEDNN, ['oneDNN', 'stock'])])
def test_other_build_is_measured_where_it_is_installed(other, this_one_prints, build, names):
  this_one_prints(RATE)
  assert build_rates.measure_builds(build) == [BuildRate(names[0], 1000.)]
  other('.venv-onednn' if build is STOCK else '.venv',
        'echo starting\necho \'{"examples_per_sec": 2000}\'')
  assert build_rates.measure_builds(build) == [BuildRate(names[0], 1000.),
                                               BuildRate(names[1], 2000)]


@pytest.mark.parametrize('script, failure', [
    ('kill -ILL $$', 'ended by SIGILL'), ('echo broken >&2; exit 3', 'exit code 3: broken'),
    ('sleep 60', 'no answer within 5 s'), ('true', 'no result')])
def test_other_build_fails(other, this_one_prints, script, failure):
  this_one_prints(RATE)
  other('.venv-onednn', script)
  (own, failed) = build_rates.measure_builds(STOCK, timeout_secs=5.)
  assert own == BuildRate('stock', 1000.)
  assert failed.examples_per_sec is None and failed.failure == failure
  assert build_rates.check_build_rates([own, failed], STOCK).level == 'ok'


def test_an_environment_that_cannot_be_started(other, this_one_prints, tmp_path):
  this_one_prints(RATE)
  other('.venv-onednn', '')
  (tmp_path / '.venv-onednn' / 'bin' / 'python').write_text('#!/no/such/interpreter\n')
  failed = build_rates.measure_builds(STOCK)[1]
  assert failed.examples_per_sec is None and 'No such file' in failed.failure


def test_this_interpreter_trains(other):
  (rate,) = build_rates.measure_builds(STOCK)
  assert rate.examples_per_sec > 0 and not rate.failure, rate
  check = build_rates.check_build_rates([rate], STOCK)
  assert re.search(r'fashion_cnn trains [\d,]+ examples/sec with the stock build', check.found)
