"""The image: what its build adds to a base, and what Dockerfile and compose file promise."""

import re
import sys

import pkg_resources
import pytest
import yaml
from conftest import ROOT

import estimator_train

sys.path.insert(0, str(ROOT / 'requirements'))
import install_image  # noqa: E402

DOCKERFILE = (ROOT / 'Dockerfile').read_text()
LOCKS = {path.stem: {line.split()[0] for line in path.read_text().splitlines()
                     if re.match(r'[\w-]+==', line)}
         for path in (ROOT / 'requirements').glob('*.txt')}


def test_the_lock_files():
  for image, tested in (('image36', 'py36'), ('image37', 'py37'), ('image37-stock', 'py37')):
    assert LOCKS[image] < LOCKS[tested]
    # TensorFlow is only where no base has it.
    assert any(pin.startswith('tensorflow==') for pin in LOCKS[image]) == ('stock' in image)
  stock, onednn = {'tensorflow==1.15.0'}, {'intel-tensorflow==1.15.2'}
  for version in ('36', '37'):
    tested, for_cpus = LOCKS['py' + version], LOCKS['py{}-onednn'.format(version)]
    assert (tested - for_cpus, for_cpus - tested) == (stock, onednn)
  assert LOCKS['image37-onednn'] - LOCKS['py37'] == onednn
  for lock in {lock for locks in install_image.LOCKS.values() for lock in locks.values()}:
    entries = install_image.read_lock(str(ROOT / 'requirements' / lock))
    assert set(entries) == {pin.partition('==')[0] for pin in LOCKS[lock[:-len('.txt')]]}
    assert all('--hash=sha256:' in entry for entry in entries.values())


def test_the_lock_of_a_base():
  for build, version, lock in (('base', (3, 6), 'image36.txt'), ('base', (3, 8), 'image37.txt'),
                               ('onednn', (3, 7), 'image37-onednn.txt')):
    assert install_image.lock_for(build, version) == lock
  for build, version, message in (
      ('base', (3, 10), '3.6 or 3.7 or 3.8: this one has 3.10: give --build-arg BASE_IMAGE=tenso'),
      ('stock', (3, 8), '3.7: this one has 3.8: give --build-arg BASE_IMAGE=python:3.7-slim')):
    with pytest.raises(install_image.ImageError, match='base image with CPython ' + message):
      install_image.lock_for(build, version)


def test_the_tensorflow_of_a_base(tmp_path, monkeypatch):
  suitable, other = (pkg_resources.Distribution(project_name=name, version='1.15.0')
                     for name in ('tensorflow-estimator', 'tensorflow-gpu'))
  install_image.check_base('stock', [suitable])
  with pytest.raises(install_image.ImageError, match='this one has tensorflow-gpu 1.15.0'):
    install_image.check_base('stock', [suitable, other])
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setenv('PYTHONDONTWRITEBYTECODE', '1')
  for source, message in (
      ("__version__ = '2.4.0'", 'must have TensorFlow 1.15: 2.4.0: give '),
      ("raise ImportError('libcuda is broken')", 'ImportError: libcuda is broken: give ')):
    (tmp_path / 'tensorflow.py').write_text("print('a banner')\n" + source)
    with pytest.raises(install_image.ImageError, match=message):
      install_image.check_base('base', ())
  (tmp_path / 'tensorflow.py').write_text("print('a banner')\n__version__ = '1.15.5'")
  install_image.check_base('base', ())


def distribution(folder, name, version, *requires):
  """Writes what an installed package leaves for others to find it."""
  info = folder / '{}-{}.dist-info'.format(name.replace('-', '_'), version)
  info.mkdir(parents=True)
  (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: {}\nVersion: {}\n{}'.format(
      name, version, ''.join('Requires-Dist: {}\n'.format(each) for each in requires)))


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
  distribution(tmp_path, 'example-user', '1.0', 'example-absent')
  with pytest.raises(install_image.ImageError, match='needs example-absent, and there is none'):
    install_image.unmet({'example-user': ''}, str(tmp_path))


def test_dockerfile_and_compose_file():
  assert 'image.version="{}"'.format(estimator_train.__version__) in DOCKERFILE
  ignored = (ROOT / '.dockerignore').read_text().splitlines()
  copied = [source for line in re.findall(r'^COPY (?!--from)(.*) \S+$', DOCKERFILE, re.MULTILINE)
            for source in line.split()]
  assert ignored[0] == '*' and copied and all('!' + source in ignored for source in copied)
  services = yaml.safe_load((ROOT / 'deploy' / 'docker' / 'compose.yaml').read_text())['services']
  cpu, gpu = services['train-cpu'], services['train']
  assert cpu['volumes'] == ['${DATA:-data}:/data', '${MODEL:-model}:/model']
  device, = gpu['deploy']['resources']['reservations']['devices']
  assert device == {'driver': 'nvidia', 'count': 'all', 'capabilities': ['gpu']}
