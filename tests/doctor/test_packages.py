"""Python, the builds of TensorFlow and the packages under it, from facts."""

import pytest

from estimator_train.doctor import packages

HERE = packages.Interpreter('CPython', (3, 7, 16), 64, 'Linux', 'x86_64')


@pytest.mark.parametrize('change, level', [
    ({}, 'ok'),
    ({'version': (3, 6, 0)}, 'ok'),
    ({'version': (3, 8, 10)}, 'ok'),
    ({'version': (3, 5, 9)}, 'error'),
    ({'version': (3, 9, 0)}, 'error'),
    ({'implementation': 'PyPy'}, 'error'),
    ({'bits': 32}, 'error'),
    ({'machine': 'aarch64'}, 'error'),
    ({'system': 'Darwin'}, 'error'),
])
def test_python(change, level):
  assert packages.check_python(HERE._replace(**change)).level == level


def test_this_python_is_right():
  assert packages.check_python(packages.inspect_python()).level == 'ok'


@pytest.mark.parametrize('installed, level, found', [
    pytest.param({'tensorflow': '1.15.0'}, 'ok', 'stock', id='stock'),
    pytest.param({'tensorflow-gpu': '1.15.5'}, 'ok', 'stock', id='stock for GPUs'),
    pytest.param({'intel-tensorflow': '1.15.2'}, 'ok', 'oneDNN', id='oneDNN'),
    pytest.param({'nvidia-tensorflow': '1.15.5+nv23.3'}, 'ok', 'NVIDIA', id='NVIDIA'),
    pytest.param({'nvidia-tensorflow': '1.15.5+nv23.3', 'tensorflow': '1.15.5+nv23.3'}, 'ok',
                 'NVIDIA', id='NVIDIA under two names'),
    pytest.param({}, 'error', 'not installed', id='none'),
    pytest.param({'tensorflow': '2.4.0'}, 'error', 'tensorflow 2.4.0', id='another version'),
    pytest.param({'tensorflow': '1.14.0'}, 'error', 'tensorflow 1.14.0', id='an older version'),
    pytest.param({'tensorflow': '1.15.0', 'tensorflow-gpu': '1.15.0'}, 'error',
                 'tensorflow 1.15.0 and tensorflow-gpu 1.15.0 are', id='two'),
    pytest.param({'tensorflow': '1.15.0', 'intel-tensorflow': '1.15.2'}, 'error',
                 'intel-tensorflow 1.15.2 are', id='two of different versions'),
])
def test_tensorflow(installed, level, found):
  finding = packages.check_tensorflow(installed)
  assert finding.level == level and found in finding.found
  is_single = found != 'not installed' and ' are' not in found
  assert bool(packages.installed_build(installed)) == is_single
  if ' are' in found:
    names = sorted(installed, key=packages._TENSORFLOW_DISTRIBUTIONS.index)
    assert 'pip uninstall ' + ' '.join(names) in finding.remedy


@pytest.mark.parametrize('build, is_nvidia_build', [
    (packages.TensorFlowBuild('tensorflow', '1.15.0'), False),
    (packages.TensorFlowBuild('tensorflow', '1.15.5+nv23.3'), True),
    (packages.TensorFlowBuild('nvidia-tensorflow', '1.15.5'), True),
])
def test_nvidias_build(build, is_nvidia_build):
  assert build.is_nvidia_build == is_nvidia_build


GOOD = {'tensorflow': '1.15.0', 'protobuf': '3.19.6', 'h5py': '2.10.0', 'numpy': '1.18.5'}


@pytest.mark.parametrize('change, python, levels', [
    pytest.param({}, '3.7', 'ok ok ok', id='good'),
    pytest.param({'protobuf': '3.20.3'}, '3.7', 'ok ok ok', id='3.20 on 3.7'),
    pytest.param({'protobuf': '3.20.3'}, '3.6', 'error ok ok', id='3.20 on 3.6'),
    pytest.param({'protobuf': '4.21.1'}, '3.7', 'error ok ok', id='protobuf 4'),
    pytest.param({'h5py': '3.1.0'}, '3.7', 'ok error ok', id='h5py 3'),
    pytest.param({'numpy': '1.19.0'}, '3.7', 'ok ok warning', id='numpy 1.19'),
    pytest.param({'h5py': '3.1.0', 'tensorflow': '1.15.5+nv23.3'}, '3.8', 'ok warning ok',
                 id='what NVIDIA brings'),
])
def test_pins(change, python, levels):
  findings = packages.check_pins(dict(GOOD, **change), packages.read_requirements(), python)
  assert [finding.name for finding in findings] == ['protobuf', 'h5py', 'numpy']
  assert ' '.join(finding.level for finding in findings) == levels
  for finding in findings:
    assert finding.level == 'ok' or 'pip install "' + finding.name in finding.remedy


def test_pin_that_is_missing():
  installed = {name: version for name, version in GOOD.items() if name != 'h5py'}
  (_, h5py, _) = packages.check_pins(installed, packages.read_requirements(), '3.7')
  assert h5py.level == 'error' and 'not installed' in h5py.found


@pytest.mark.parametrize('installed, level', [({'pillow': '9.5.0'}, 'ok'), ({}, 'warning')])
def test_pillow(installed, level):
  assert packages.check_pillow(installed).level == level


def test_what_is_installed_here():
  installed = packages.installed_versions()
  assert installed['protobuf'].startswith('3.') and packages.installed_build(installed) is not None
