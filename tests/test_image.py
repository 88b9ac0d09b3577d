"""The image: what its build adds to a base, and what Dockerfile and compose file promise."""

import re
import sys

import pkg_resources
import pytest
from conftest import ROOT

import estimator_train

sys.path.insert(0, str(ROOT / 'requirements'))
import install_image  # noqa: E402

REQUIREMENTS = ROOT / 'requirements'
DOCKERFILE = (ROOT / 'Dockerfile').read_text()


def pins(name):
  return {line.split()[0] for line in (REQUIREMENTS / name).read_text().splitlines()
          if re.match(r'[\w-]+==', line)}


def names(lock):
  return {pin.partition('==')[0] for pin in pins(lock)}


# The lock files.


@pytest.mark.parametrize('lock, tested', [
    ('image36.txt', 'py36.txt'), ('image37.txt', 'py37.txt'), ('image37-stock.txt', 'py37.txt')])
def test_image_has_the_tested_pins_without_the_tests(lock, tested):
  assert pins(lock) < pins(tested)
  assert not names(lock) & {'pytest', 'pytest-xdist', 'hypothesis'}
  assert {'absl-py', 'kaggle', 'tqdm', 'pillow'} <= names(lock)


@pytest.mark.parametrize('version', ['36', '37'])
def test_build_for_cpus_is_tested_with_the_same_pins(version):
  stock, onednn = pins('py{}.txt'.format(version)), pins('py{}-onednn.txt'.format(version))
  assert (stock - onednn, onednn - stock) == (
      {'tensorflow==1.15.0'}, {'intel-tensorflow==1.15.2'})


def test_tensorflow_is_only_where_no_base_has_it():
  assert not [name for lock in ('image36.txt', 'image37.txt') for name in names(lock)
              if 'tensor' in name]
  assert 'tensorflow' in names('image37-stock.txt')
  assert pins('image37-onednn.txt') - pins('py37.txt') == {'intel-tensorflow==1.15.2'}


def test_every_lock_of_a_base_is_there_and_hashed():
  for locks in install_image.LOCKS.values():
    for lock in locks.values():
      entries = install_image.read_lock(str(REQUIREMENTS / lock))
      assert set(entries) == names(lock)
      assert all('--hash=sha256:' in entry for entry in entries.values())


# What is added to a base.


@pytest.mark.parametrize('build, version, lock', [
    ('base', (3, 6), 'image36.txt'), ('base', (3, 8), 'image37.txt'),
    ('onednn', (3, 7), 'image37-onednn.txt')])
def test_lock_for(build, version, lock):
  assert install_image.lock_for(build, version) == lock


@pytest.mark.parametrize('build, version, told', [
    ('base', (3, 10), 'TENSORFLOW=base needs a base image with CPython 3.6 or 3.7 or 3.8: this one '
     'has 3.10: give --build-arg BASE_IMAGE=tensorflow/'),
    ('stock', (3, 8), 'TENSORFLOW=stock needs a base image with CPython 3.7: this one has 3.8: '
     'give --build-arg BASE_IMAGE=python:3.7-slim')])
def test_no_lock_for(build, version, told):
  with pytest.raises(install_image.ImageError) as error:
    install_image.lock_for(build, version)
  assert str(error.value).startswith(told)


def distribution(folder, name, version, *requires):
  """Writes what an installed package leaves for others to find it."""
  info = folder / '{}-{}.dist-info'.format(name.replace('-', '_'), version)
  info.mkdir(parents=True)
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: {}\nVersion: {}\n{}'.format(
      name, version, ''.join('Requires-Dist: {}\n'.format(each) for each in requires)))


@pytest.mark.parametrize('there, is_refused', [
    ('tensorflow-gpu', True), ('intel-tensorflow', True), ('tensorflow-estimator', False)])
def test_no_second_tensorflow(tmp_path, there, is_refused):
  distribution(tmp_path, there, '1.15.0')
  base = pkg_resources.WorkingSet([str(tmp_path)])
  if not is_refused:
    install_image.check_base('stock', base)
    return
  with pytest.raises(install_image.ImageError, match='this one has ' + there):
    install_image.check_base('stock', base)


@pytest.mark.parametrize('source, told', [
    ("__version__ = '1.15.5'", None),
    ("__version__ = '2.4.0'", 'must have TensorFlow 1.15: 2.4.0: give '),
    ("raise ImportError('libcuda is broken')", 'ImportError: libcuda is broken: give ')])
def test_base_must_have_1_15(tmp_path, monkeypatch, source, told):
  (tmp_path / 'tensorflow.py').write_text("print('a banner')\n" + source)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  if told is None:
    install_image.check_base('base', ())
    return
  with pytest.raises(install_image.ImageError, match=told):
    install_image.check_base('base', ())


def test_what_the_base_has_stays_unless_it_does_not_suit(tmp_path, monkeypatch):
  added, base = tmp_path / 'added', tmp_path / 'base'
  distribution(added, 'example-user', '1.0', 'example-suits>=1', 'example-old>=2')
  distribution(base, 'example-suits', '1.5')
  distribution(base, 'example-old', '1.9')
  monkeypatch.setattr(sys, 'path', [str(base)] + sys.path)
  lock = dict.fromkeys(['example-user', 'example-suits', 'example-old'], '')
  assert install_image.unmet(lock, str(added)) == {
      'example-old': 'example-user 1.0 needs example-old>=2, and there is example-old 1.9'}
  distribution(added, 'example-old', '2.0')
  assert install_image.unmet(lock, str(added)) == {}


def test_what_no_lock_has_is_an_error(tmp_path):
  distribution(tmp_path, 'example-user', '1.0', 'example-absent')
  with pytest.raises(install_image.ImageError, match='needs example-absent, and there is none'):
    install_image.unmet({'example-user': ''}, str(tmp_path))


def test_what_no_run_reads_is_removed(tmp_path):
  for name in ('package/tests/data', 'bin', 'package/mpl-data/sample_data', 'package/testing'):
    (tmp_path / name).mkdir(parents=True)
  install_image.remove_unused(str(tmp_path))
  assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob('*')) == [
      'package', 'package/mpl-data', 'package/testing']


# The Dockerfile and what goes with it.


def test_dockerfile():
  assert 'ARG BASE_IMAGE=tensorflow/tensorflow:1.15.0-gpu-py3\n' in DOCKERFILE
  assert 'ENTRYPOINT ["python", "-m", "estimator_train"]\n' in DOCKERFILE
  assert 'VOLUME /data /model\n' in DOCKERFILE
  version = re.search(r'image\.version="(.*?)"', DOCKERFILE).group(1)
  assert version == estimator_train.__version__
  # As long as only the program changes, nothing before its stage does.
  packages, program = DOCKERFILE.index(' AS packages'), DOCKERFILE.index('COPY estimator_train ')
  assert packages < DOCKERFILE.index('install_image.py "${TENSORFLOW}"') < program


def test_what_the_dockerfile_copies_is_in_its_context():
  ignored = (ROOT / '.dockerignore').read_text().splitlines()
  assert ignored[0] == '*'
  copied = [source for line in re.findall(r'^COPY (?!--from)(.*) \S+$', DOCKERFILE, re.MULTILINE)
            for source in line.split()]
  assert copied and all('!' + source in ignored for source in copied)


def test_compose_file_runs_what_the_readme_runs():
  text = (ROOT / 'deploy' / 'docker' / 'compose.yaml').read_text()
  for line in ('context: ../..', 'image: estimator-train', 'shm_size: 1gb', 'memlock: -1',
               '- ${DATA:-data}:/data', '- ${MODEL:-model}:/model', '- driver: nvidia',
               'count: all', 'capabilities: [gpu]'):
    assert re.search(r'^ +{}$'.format(re.escape(line)), text, re.MULTILINE), line
  assert re.findall(r'^  ([\w-]+):$', text, re.MULTILINE) == ['train-cpu', 'train', 'data', 'model']
