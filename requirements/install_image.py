"""Installs what the program needs and the image's base lacks: for the Dockerfile.

  PYTHON requirements/install_image.py {base,stock,onednn} FOLDER

`base` uses the base's TensorFlow, which must be 1.15; the others bring one for CPUs. What the base
has stays as it is, as its TensorFlow stands on it, unless something here does not work with it. All
else comes from the hash-locked files beside this script, and goes into FOLDER, for PYTHONPATH:
nothing of the base is changed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

import pkg_resources

REQUIREMENTS = os.path.dirname(os.path.abspath(__file__))
# By the base's Python. The pins for 3.7 have wheels for 3.8 too.
LOCKS = {
  'base': {(3, 6): 'image36.txt', (3, 7): 'image37.txt', (3, 8): 'image37.txt'},
  'stock': {(3, 7): 'image37-stock.txt'},
  'onednn': {(3, 7): 'image37-onednn.txt'},
}
VERSION = 'import tensorflow; print(tensorflow.__version__)'
# Of packages, what no run reads.
UNUSED = ('bin', 'tests', 'sample_data')


def main(argv):
  if len(argv) != 2 or argv[0] not in LOCKS:
    raise ImageError('TENSORFLOW must be one of {}'.format(', '.join(sorted(LOCKS))),
                     ' '.join(argv[:1]) or 'nothing', 'give --build-arg TENSORFLOW=base')
  build, folder = argv
  lock = read_lock(os.path.join(REQUIREMENTS, lock_for(build, sys.version_info[:2])))
  base = pkg_resources.WorkingSet()
  check_base(build, base)
  os.makedirs(folder, exist_ok=True)
  with tempfile.TemporaryDirectory() as work:
    pip = make_pip(os.path.join(work, 'pip'))
    added = set(lock) - set(base.by_key)
    install(pip, folder, lock, added, work)
    unsuited = unmet(lock, folder)
    if set(unsuited) - added:
      install(pip, folder, lock, set(unsuited) - added, work)
      unsuited = unmet(lock, folder)
  if unsuited:
    raise ImageError('the packages do not go together', '; '.join(sorted(unsuited.values())),
                     'give another --build-arg BASE_IMAGE')
  remove_unused(folder)
  version = tensorflow_version(folder)
  if not version.startswith('1.15.'):
    raise ImageError('the installed TensorFlow does not work', version, 'see the lines above')


class ImageError(Exception):
  """What stops the build: what is wrong, what was given, what to do."""

  def __init__(self, problem, given, remedy):
    super().__init__('{}: {}: {}'.format(problem, given, remedy))


def lock_for(build, version):
  """Returns the name of the lock file for a base whose Python is of this version."""
  if version not in LOCKS[build]:
    raise ImageError(
      'TENSORFLOW={} needs a base image with CPython {}'.format(
        build, ' or '.join('{}.{}'.format(*each) for each in sorted(LOCKS[build]))),
      'this one has {}.{}'.format(*version),
      'give --build-arg BASE_IMAGE={}'.format(
        'tensorflow/tensorflow:1.15.0-gpu-py3' if build == 'base' else 'python:3.7-slim'))
  return LOCKS[build][version]


def read_lock(path):
  """Returns the lines of each package, by its name."""
  with open(path) as file:
    entries = re.findall(r'^[\w-].*\n(?: .*\n)*', file.read(), re.MULTILINE)
  return {re.match(r'[\w-]+', entry).group(): entry for entry in entries}


def check_base(build, base):
  """Raises an ImageError unless the base's TensorFlow is 1.15, or absent where it is to be."""
  if build == 'base':
    version = tensorflow_version()
    if not version.startswith('1.15.'):
      raise ImageError('the base image must have TensorFlow 1.15', version,
                       'give --build-arg BASE_IMAGE=tensorflow/tensorflow:1.15.0-gpu-py3, or '
                       'TENSORFLOW=stock with BASE_IMAGE=python:3.7-slim')
    return
  there = [str(found) for found in base if re.match(r'(\w+-)?tensorflow(-\w+)?$', found.key)
           and found.key != 'tensorflow-estimator']
  if there:
    raise ImageError('TENSORFLOW={} is for a base image without TensorFlow'.format(build),
                     'this one has {}'.format(', '.join(there)),
                     'leave TENSORFLOW out, or give --build-arg BASE_IMAGE=python:3.7-slim')


def tensorflow_version(*folders):
  """Returns the version of the TensorFlow that can be imported, or why there is none."""
  done = subprocess.run([sys.executable, '-W', 'ignore', '-c', VERSION], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, universal_newlines=True, env=with_path(*folders))
  lines = (done.stdout if done.returncode == 0 else done.stderr).split('\n')
  return [line for line in lines if line][-1]


def with_path(*folders):
  path = list(folders) + os.environ.get('PYTHONPATH', '').split(os.pathsep)
  return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, path)))


def make_pip(folder):
  """Returns a function that calls the pip that everything was tested with, from `folder`.

  The base's may be too old to know today's wheels, and its setuptools build the few packages that
  have none.
  """
  def call(*arguments):
    done = subprocess.run(
      [sys.executable, '-m', 'pip', 'install', '--disable-pip-version-check', '--no-cache-dir',
       '--quiet', '--no-deps', '--require-hashes', '--no-build-isolation'] + list(arguments),
      env=with_path(folder))
    if done.returncode:
      raise ImageError('the packages cannot be installed', 'pip ended with {}'.format(
        done.returncode), 'see the lines above')

  call('--target', folder, '-r', os.path.join(REQUIREMENTS, 'pip.txt'))
  return call


def install(pip, folder, lock, names, work):
  path = os.path.join(work, 'wanted.txt')
  with open(path, 'w') as file:
    file.write(''.join(lock[name] for name in sorted(names)))
  for name in sorted(names):
    print('adding', lock[name].split(None, 1)[0], flush=True)
  if names:
    pip('--target', folder, '-r', path)


def unmet(lock, folder):
  """Returns a line about each package that is missing, or too old or new for one of `lock`."""
  found = pkg_resources.WorkingSet([folder] + sys.path).by_key
  lines = {}
  for name in lock:
    for requirement in found[name].requires() if name in found else ():
      there = found.get(requirement.key)
      if there is None or there not in requirement:
        lines[requirement.key] = '{} needs {}, and there is {}'.format(
          found[name], requirement, there or 'none')
  unknown = set(lines) - set(lock)
  if unknown:
    raise ImageError('the packages do not go together',
                     '; '.join(lines[name] for name in sorted(unknown)),
                     'give another --build-arg BASE_IMAGE')
  return lines


def remove_unused(folder):
  for path, folders, _ in os.walk(folder):
    for name in [name for name in folders if name in UNUSED]:
      shutil.rmtree(os.path.join(path, name))
      folders.remove(name)


if __name__ == '__main__':
  try:
    main(sys.argv[1:])
  except ImageError as error:
    sys.exit('error: {}'.format(error))
