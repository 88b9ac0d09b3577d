"""Runs the program in Docker as `run_train.sh FLAG...` would here: for `run_train.sh --docker`.

  PYTHON deploy/docker/run.py FLAG...

Builds the image of this checkout first; Docker's cache makes that a matter of a second when nothing
changed. Files and folders that flags name are mounted at their own paths, so that every flag,
those inside of flagfiles too, means the same in there; folders that a run writes are made first, as
Docker would make them as root. It runs as the calling user, with the GPUs if there are any.

Environment: BASE_IMAGE and TENSORFLOW are passed to the build when set; ESTIMATOR_TRAIN_TF=onednn
stands for those of the build for CPUs, as an image of its own. Any Python from 3.6 on runs this.
"""

import csv
import glob
import io
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# By ESTIMATOR_TRAIN_TF: the image, and its build's arguments unless others are given.
IMAGES = {
    'stock': ('estimator-train', {}),
    'onednn': ('estimator-train-onednn',
               {'BASE_IMAGE': 'python:3.7-slim', 'TENSORFLOW': 'onednn'})}
HOME = '/tmp'  # In the image.

# What flags name.
WRITTEN_FOLDERS = ('model_dir', 'data_dir', 'export_dir', 'cache')
WRITTEN_FILES = ('output',)
PATTERNS = ('train_pattern', 'eval_pattern', 'input')
FILES = ('weights', 'checkpoint')  # Or folders, or what a checkpoint's files begin with.
WORDS = {'cache': ('auto', 'none', 'memory'), 'weights': ('none', 'imagenet'),
         'checkpoint': ('latest', 'best'), 'output': ('-',)}
PATH_FLAGS = WRITTEN_FOLDERS + WRITTEN_FILES + PATTERNS + FILES + ('flagfile',)

# Over these a mount would hide what the image itself runs from.
SYSTEM_FOLDERS = ('/', '/bin', '/dev', '/etc', '/lib', '/lib64', '/opt', '/proc', '/sbin', '/sys',
                  '/usr', '/usr/bin', '/usr/lib', '/usr/local', '/opt/estimator_train')
# What the program and its libraries read; passed by name, as `ps` would show values.
VARIABLES = re.compile(r'(TF_|NCCL_|XLA_|OMP_|KMP_|MKL_)\w+$|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)$|'
                       r'(?i:https?_proxy|no_proxy)$')
KAGGLE_VARIABLES = ('KAGGLE_USERNAME', 'KAGGLE_KEY')


class Failed(Exception):
  """What ends this: one line, and the exit code."""

  def __init__(self, problem, given, remedy, code=2):
    super().__init__('error: {}: {}: {}'.format(problem, given, remedy))
    self.code = code


class Mounts:
  """What the container gets to see of this machine, by the path there."""

  def __init__(self):
    self._by_target = {}

  def add(self, source, target, writable, flag):
    """Adds a file or folder that is there.

    Raises:
      Failed: it would hide a part of the image.
    """
    if target in SYSTEM_FOLDERS:
      raise Failed('Docker cannot mount this folder over the image\'s own',
                   '{} for {}'.format(target, flag), 'name a folder below it, or another')
    # The image's home must stay writable.
    writable = writable or target == HOME or self._by_target.get(target, ('', False))[1]
    self._by_target[target] = (source, writable)

  def arguments(self):
    """Returns the arguments of `docker run`; those above others first."""
    found = []
    for target, (source, writable) in sorted(self._by_target.items()):
      fields = ['type=bind', 'source=' + source, 'target=' + target]
      # As Docker reads it, a comma in a path is quoted.
      line = io.StringIO()
      csv.writer(line, lineterminator='').writerow(fields + ([] if writable else ['readonly']))
      found += ['--mount', line.getvalue()]
    return found


def main(argv):
  try:
    image, arguments = image_and_arguments(os.environ)
    check_docker()
    flags = read_flags(argv)
    mounts = find_mounts(flags)
    build(image, arguments)
    command = ['docker', 'run'] + options(flags) + mounts.arguments() + [image] + argv
    # In place of this process: signals, the exit code and the terminal are Docker's business.
    os.execvp('docker', command)
  except Failed as failed:
    say(failed)
    return failed.code


def say(text):
  print(text, file=sys.stderr, flush=True)  # What is not written yet, exec would lose.


def read_flags(argv):
  """Returns the flags and their values in the order of argv, flagfiles' flags in their place.

  Only those whose values matter here are right: which flags are switches is for the program to
  know.
  """
  found, rest = [], list(argv)
  while rest:
    argument = rest.pop(0).strip()
    if argument == '--':
      break
    if not argument.startswith('-'):
      continue
    name, has_value, value = argument.lstrip('-').partition('=')
    if not has_value and name in PATH_FLAGS and rest:
      value = rest.pop(0)
    found.append((name, value))
    # One that is read already would go on for ever; the program tells what is wrong with it.
    if name == 'flagfile' and found.count((name, value)) == 1:
      rest = lines_of(os.path.expanduser(value)) + rest
  return found


def lines_of(flagfile):
  try:
    with open(flagfile, encoding='utf-8-sig') as file:
      lines = [line.strip() for line in file]
  except (OSError, UnicodeError):
    return []  # The program says so.
  return [line for line in lines if line and not line.startswith(('#', '//'))]


def find_mounts(flags):
  """Returns the mounts for flags, of which the last of a name counts."""
  mounts, last = Mounts(), dict(flags)
  for value in [value for name, value in flags if name == 'flagfile']:
    source = os.path.abspath(os.path.expanduser(value))
    if os.path.isfile(source):
      inside = HOME + value[1:] if value.startswith('~/') else os.path.abspath(value)
      mounts.add(source, inside, False, '--flagfile=' + value)
  for name, value in last.items():
    if not value or value in WORDS.get(name, ()):
      continue
    flag, path = '--{}={}'.format(name, value), os.path.abspath(value)
    if name in WRITTEN_FOLDERS:
      mounts.add(made(path, flag), path, True, flag)
    elif name in WRITTEN_FILES:
      mounts.add(made(os.path.dirname(path), flag), os.path.dirname(path), True, flag)
    elif name in PATTERNS:
      folder = fixed_folder(path)
      if os.path.isdir(folder):
        mounts.add(folder, folder, False, flag)
    elif name in FILES:
      beside = glob.glob(glob.escape(path) + '.*')
      for source in [path] if os.path.exists(path) else beside:
        mounts.add(source, source, False, flag)
  for name in ('model', 'dataset'):
    if ':' in last.get(name, ''):  # A module of the user's, in the current folder.
      mounts.add(os.getcwd(), os.getcwd(), False, '--{}={}'.format(name, last[name]))
  if last.get('weights') == 'imagenet':
    keras = os.path.expanduser('~/.keras')
    mounts.add(made(keras, '--weights=imagenet'), HOME + '/.keras', True, '--weights=imagenet')
  if last.get('dataset') == 'oct2017':
    kaggle = os.environ.get('KAGGLE_CONFIG_DIR') or os.path.expanduser('~/.kaggle')
    if os.path.isdir(kaggle):
      mounts.add(os.path.abspath(kaggle), HOME + '/.kaggle', False, '--dataset=oct2017')
  return mounts


def made(folder, flag):
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise Failed('a folder cannot be made', '{} ({})'.format(flag, error.strerror),
                 'give one that this user can write to') from error
  return folder


def fixed_folder(pattern):
  """Returns the folder above the first wildcard, or above the file."""
  parts = pattern.split('/')
  wild = next((index for index, part in enumerate(parts) if re.search(r'[*?[]', part)),
              len(parts) - 1)
  return '/'.join(parts[:wild]) or '/'


def options(flags):
  """Returns how the container runs, apart from its mounts."""
  found = ['--rm', '--stop-timeout=120', '--shm-size=1g', '--ulimit', 'memlock=-1',
           '--workdir', os.getcwd()]
  facts = docker('info', '--format', '{{json .SecurityOptions}} {{json .Runtimes}}').stdout
  if 'name=rootless' in facts:
    found += ['--user', '0:0']  # Who is the calling user on the outside.
  else:
    found += ['--user', '{}:{}'.format(os.getuid(), os.getgid())]
    for group in sorted(set(os.getgroups()) - {os.getgid()}):
      found += ['--group-add', str(group)]
  found += gpu_options('nvidia' in facts)
  names = sorted(filter(VARIABLES.match, os.environ))
  if dict(flags).get('dataset') == 'oct2017':
    names += [name for name in KAGGLE_VARIABLES if name in os.environ]
  for name in names:
    found += ['--env', name]
  if 'TF_CONFIG' in os.environ:
    found += ['--network', 'host']  # Its addresses are this machine's.
  # A container's terminal takes both: results that go to a file must stay alone. Standard input
  # is not attached, as the program reads none and a job in the background would be stopped.
  if sys.stdout.isatty() and sys.stderr.isatty():
    found.append('--tty')
  return found


def gpu_options(has_runtime):
  try:
    done = subprocess.run(['nvidia-smi', '-L'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          universal_newlines=True, stdin=subprocess.DEVNULL)
  except OSError:
    return []
  if done.returncode or 'GPU ' not in done.stdout:
    return []
  if not has_runtime and not shutil.which('nvidia-container-runtime-hook'):
    say('There are GPUs, but Docker cannot use them without the NVIDIA Container Toolkit: '
        'training is on the CPU')
    return []
  return ['--gpus', 'all']


def check_docker():
  if not shutil.which('docker'):
    raise Failed('--docker needs Docker', 'there is no `docker` on PATH',
                 'install it, or leave --docker out')
  done = docker('version', '--format', '{{.Server.Version}}')
  if done.returncode:
    lines = done.stderr.strip().splitlines() or ['exit code {}'.format(done.returncode)]
    raise Failed('Docker\'s daemon cannot be reached', lines[-1].strip(),
                 'start it, or let this user talk to it, or leave --docker out')


def image_and_arguments(environment):
  """Returns the image's name, and the arguments of its build."""
  name = environment.get('ESTIMATOR_TRAIN_TF') or 'stock'
  if name not in IMAGES:
    raise Failed('ESTIMATOR_TRAIN_TF takes stock or onednn', name, 'name one of them')
  image, arguments = IMAGES[name]
  given = {key: environment[key] for key in ('BASE_IMAGE', 'TENSORFLOW') if environment.get(key)}
  return image, dict(arguments, **given)


def build(image, arguments):
  """Builds the image; silently when there is one, as then it is mostly there."""
  command, out = ['docker', 'build', '--tag', image], sys.stderr
  if docker('image', 'inspect', image).returncode == 0:
    command.append('--quiet')
    out = subprocess.DEVNULL  # The image's id.
  else:
    say('Building the image {} (minutes the first time)'.format(image))
  for name, value in sorted(arguments.items()):
    command += ['--build-arg', '{}={}'.format(name, value)]
  # Our standard output is the program's alone.
  done = subprocess.run(command + [ROOT], stdin=subprocess.DEVNULL, stdout=out)
  if done.returncode:
    raise Failed('the image was not built', '`docker build` ended with {}'.format(done.returncode),
                 'see the lines above', code=1)


def docker(*arguments):
  return subprocess.run(['docker'] + list(arguments), stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
