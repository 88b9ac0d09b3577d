"""`run_train.sh --docker`, with a stand-in for Docker that records what it is asked."""

import contextlib
import csv
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from typing import Any, List, NamedTuple

import pytest
from conftest import ROOT

from estimator_train import flags

sys.path.insert(0, str(ROOT / 'deploy' / 'docker'))
import run as run_in_docker  # noqa: E402

TIMEOUT_SECS = 60
IMAGE = 'estimator-train'
QUICKSTART = str(ROOT / 'estimator_train' / 'configs' / 'quickstart.flags')

DOCKER = '''#!{python}
import json, os, signal, sys
def say(text, to=sys.stdout):
  print(text, file=to, flush=True)
with open(os.environ['RECORD'], 'a') as record:
  record.write(json.dumps(sys.argv[1:]) + '\\n')
command = sys.argv[1]
if command == 'info':
  say(os.environ.get('INFO', '[] {{"runc": {{}}}}'))
if command == 'build':
  say('sha256:0123')
  say('building', sys.stderr)
if command == 'run' and os.environ.get('WAITS'):
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  say('waiting')
  signal.pause()
if command == 'run':
  say('{{"result": 1}}')
if command in os.environ.get('FAILS', '').split(','):
  say('Cannot connect\\nIs it running?', sys.stderr)
  sys.exit(9)
'''


class Called(NamedTuple):
  """How a start ended, and what Docker was asked meanwhile."""
  code: int
  out: str
  err: str
  calls: List[List[str]]

  @property
  def run(self) -> List[str]:
    (call,) = [call for call in self.calls if call[0] == 'run']
    return call

  @property
  def options(self) -> List[str]:
    return self.run[:self.run.index(IMAGE)]

  @property
  def mounts(self) -> Any:
    """What is mounted where, and whether it can be written."""
    values = [value for option, value in zip(self.options, self.options[1:])
              if option == '--mount']
    found = {}
    for fields in csv.reader(values):
      kind, source, target, *more = fields
      assert kind == 'type=bind' and more in ([], ['readonly'])
      found[target.partition('=')[2]] = (source.partition('=')[2], not more)
    assert len(found) == len(values)
    return found

  @property
  def same_paths(self) -> Any:
    assert all(source == target for target, (source, _) in self.mounts.items())
    return {target: writable for target, (_, writable) in self.mounts.items()}


class Host:
  """A PATH with the tools that run_train.sh needs and our `docker`, and a folder to be in."""

  def __init__(self, folder):
    self.bin, self.here, self.record = folder / 'bin', folder / 'he re', folder / 'record'
    self.home = folder / 'home'
    for path in (self.bin, self.here, self.home):
      path.mkdir()
    for tool in ('bash', 'dirname', 'env', 'readlink', 'sort'):
      (self.bin / tool).symlink_to(shutil.which(tool))
    (self.bin / 'python3').symlink_to(sys.executable)
    self.add('docker', DOCKER.format(python=sys.executable))

  def add(self, name, text):
    (self.bin / name).write_text(text)
    (self.bin / name).chmod(0o755)

  def start(self, *arguments, out=subprocess.PIPE, err=subprocess.PIPE, **environment):
    return subprocess.Popen(
        [str(ROOT / 'run_train.sh')] + [str(argument) for argument in arguments],
        cwd=str(self.here), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
        universal_newlines=True, start_new_session=True, env=dict(
            PATH=str(self.bin), HOME=str(self.home), RECORD=str(self.record), LC_ALL='C.UTF-8',
            **environment))

  def run(self, *arguments, **environment):
    process = self.start('--docker', *arguments, **environment)
    try:
      out, err = process.communicate(timeout=TIMEOUT_SECS)
    finally:
      end(process)
    return Called(process.returncode, out, err, self.calls())

  def calls(self):
    if not self.record.exists():
      return []
    return [json.loads(line) for line in self.record.read_text().splitlines()]


def end(process):
  """Ends a start and all that it has started."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()


@pytest.fixture
def host(tmp_path):
  return Host(tmp_path)


def test_quickstart(host):
  done = host.run()
  assert (done.code, done.out, done.err) == (0, '{"result": 1}\n', 'building\n')
  assert [call for call in done.calls if call[0] == 'build'] == [
      ['build', '--tag', IMAGE, '--quiet', str(ROOT)]]
  assert done.run[-2:] == [IMAGE, '--flagfile=' + QUICKSTART]
  model_dir = host.here / 'runs' / 'quickstart'
  assert done.same_paths == {QUICKSTART: False, str(model_dir): True}
  assert model_dir.is_dir()
  options = ' '.join(done.options)
  for expected in ('--rm ', '--shm-size=1g --ulimit memlock=-1',
                   '--workdir {} '.format(host.here), '--stop-timeout=120',
                   '--user {}:{}'.format(os.getuid(), os.getgid())):
    assert expected in options
  for absent in ('--gpus', '--tty', '--interactive', '--env', '--network'):
    assert absent not in options


def test_docker_may_stand_anywhere_among_the_flags(host):
  process = host.start('--batch_size=8', '--docker', '--model_dir=a b')
  process.communicate(timeout=TIMEOUT_SECS)
  (run,) = [call for call in host.calls() if call[0] == 'run']
  assert run[run.index(IMAGE) + 1:] == ['--batch_size=8', '--model_dir=a b']


def test_first_build_is_shown_and_takes_build_arguments(host):
  done = host.run(FAILS='image', BASE_IMAGE='python:3.7-slim', TENSORFLOW='onednn')
  assert 'minutes the first time' in done.err and 'sha256:0123' in done.err
  assert ['build', '--tag', IMAGE, '--build-arg', 'BASE_IMAGE=python:3.7-slim',
          '--build-arg', 'TENSORFLOW=onednn', str(ROOT)] in done.calls


def test_build_for_cpus_is_an_image_of_its_own(host):
  done = host.run(ESTIMATOR_TRAIN_TF='onednn')
  image = 'estimator-train-onednn'
  assert [call for call in done.calls if call[0] == 'build'] == [
      ['build', '--tag', image, '--quiet', '--build-arg', 'BASE_IMAGE=python:3.7-slim',
       '--build-arg', 'TENSORFLOW=onednn', str(ROOT)]]
  assert done.run[-2:] == [image, '--flagfile=' + QUICKSTART]


@pytest.mark.parametrize('environment, image, arguments', [
    ({}, IMAGE, {}),
    ({'ESTIMATOR_TRAIN_TF': 'stock', 'TENSORFLOW': 'stock'}, IMAGE, {'TENSORFLOW': 'stock'}),
    ({'ESTIMATOR_TRAIN_TF': 'onednn', 'BASE_IMAGE': 'mine'}, IMAGE + '-onednn',
     {'BASE_IMAGE': 'mine', 'TENSORFLOW': 'onednn'})])
def test_what_is_built(environment, image, arguments):
  assert run_in_docker.image_and_arguments(environment) == (image, arguments)


def test_unknown_build_is_refused():
  with pytest.raises(run_in_docker.Failed) as failed:
    run_in_docker.image_and_arguments({'ESTIMATOR_TRAIN_TF': 'mkl'})
  assert str(failed.value) == (
      'error: ESTIMATOR_TRAIN_TF takes stock or onednn: mkl: name one of them')
  assert failed.value.code == 2


# Of each, where HERE is the current folder: the flags, and which paths can be read or written.
@pytest.mark.parametrize('arguments, read, written', [
    pytest.param(['--model_dir=a', '--data_dir', 'b/c', '-export_dir=d'], [], ['a', 'b/c', 'd'],
                 id='folders'),
    pytest.param(['--model_dir=../other', '--cache=/HERE/cache'], [], ['../other', 'cache'],
                 id='absolute and above'),
    pytest.param(['--cache=memory', '--weights=none', '--checkpoint=best', '--output=-'], [], [],
                 id='words'),
    pytest.param(['--output=new/lines.json'], [], ['new'], id='output'),
    pytest.param(['--train_pattern=data/tr*/**/*.jpeg', '--eval_pattern=data/train/x.jpeg'],
                 ['data', 'data/train'], [], id='patterns'),
    pytest.param(['--train_pattern=absent/*.jpeg', '--weights=absent.h5'], [], [], id='absent'),
    pytest.param(['--weights=w.h5'], ['w.h5'], [], id='weights'),
    pytest.param(['--weights=model.ckpt-5'], ['model.ckpt-5.index', 'model.ckpt-5.meta'], [],
                 id='checkpoint'),
    pytest.param(['--weights=data'], ['data'], [], id='folder of a run'),
    pytest.param(['--model_dir=a,"b', '--data_dir=c:d'], [], ['a,"b', 'c:d'], id='signs'),
    pytest.param(['--model_dir=a', '--model_dir=b'], [], ['b'], id='the last counts'),
    pytest.param(['--data_dir=data', '--train_pattern=data/*.jpeg'], [], ['data'],
                 id='read and written'),
    pytest.param(['--model=own.models:net', '--model_dir=a'], ['.'], ['a'], id='own model'),
    pytest.param(['--dataset=own:data', '--model_dir=a'], ['.'], ['a'], id='own data set'),
    pytest.param(['--', '--model_dir=a'], [], [], id='no flags any more'),
    pytest.param(['--model_dir='], [], [], id='empty'),
])
def test_paths_are_mounted_where_they_are(host, arguments, read, written):
  (host.here / 'data' / 'train').mkdir(parents=True)
  for name in ('w.h5', 'model.ckpt-5.index', 'model.ckpt-5.meta', 'model.ckpt-50.index'):
    (host.here / name).write_text('')
  arguments = [argument.replace('/HERE', str(host.here)) for argument in arguments]
  done = host.run(*arguments)
  assert done.code == 0, done.err
  assert done.run[done.run.index(IMAGE) + 1:] == arguments
  expected = {os.path.abspath(str(host.here / path)): path in written for path in read + written}
  assert done.same_paths == expected
  assert all(os.path.exists(path) for path in expected)


def test_flagfiles_are_read_as_the_program_reads_them(host):
  (host.here / 'one.flags').write_text(
      '# --data_dir=commented\n// --cache=too\n\n  --model_dir=one\n--flagfile=two.flags\n')
  (host.here / 'two.flags').write_text('--flagfile=one.flags\n--data_dir=two\n--model_dir=two\n')
  (host.home / 'three.flags').write_text('--cache=three\n')
  done = host.run('--flagfile', 'one.flags', '--model_dir=three', '--flagfile=~/three.flags')
  assert {target: writable for target, (_, writable) in done.mounts.items()} == {
      str(host.here / 'one.flags'): False, str(host.here / 'two.flags'): False,
      '/tmp/three.flags': False, str(host.here / 'two'): True, str(host.here / 'three'): True}
  assert done.mounts['/tmp/three.flags'] == (str(host.home / 'three.flags'), False)
  # What later flags override is not made.
  assert not (host.here / 'one').exists()


def test_downloaded_weights_and_keys_stay_on_this_machine(host):
  (host.home / '.kaggle').mkdir()
  done = host.run('--weights=imagenet', '--dataset=oct2017', KAGGLE_KEY='secret')
  assert done.mounts == {'/tmp/.keras': (str(host.home / '.keras'), True),
                         '/tmp/.kaggle': (str(host.home / '.kaggle'), False)}
  assert '--env KAGGLE_KEY' in ' '.join(done.options) and 'secret' not in repr(done)
  host.record.unlink()
  done = host.run('--dataset=mnist', KAGGLE_KEY='secret')
  assert done.mounts == {} and 'KAGGLE_KEY' not in done.options


def test_environment(host):
  done = host.run('--train_steps=1', TF_CONFIG='{}', NCCL_DEBUG='INFO', CUDA_VISIBLE_DEVICES='1',
                  CUDA_HOME='/usr/local/cuda', OTHER='1', https_proxy='http://proxy:1')
  options = ' '.join(done.options)
  for name in ('TF_CONFIG', 'NCCL_DEBUG', 'CUDA_VISIBLE_DEVICES', 'https_proxy'):
    assert '--env ' + name in options
  assert 'CUDA_HOME' not in options and 'OTHER' not in options
  assert '--network host' in options  # For the cluster.


@pytest.mark.parametrize('security, user', [
    ('["name=seccomp"]', '1234:5678'), ('["name=seccomp","name=rootless"]', '0:0')])
def test_user(monkeypatch, security, user):
  monkeypatch.setattr(run_in_docker, 'docker', lambda *arguments: subprocess.CompletedProcess(
      arguments, 0, security + ' {}', ''))
  monkeypatch.setattr(os, 'getuid', lambda: 1234)
  monkeypatch.setattr(os, 'getgid', lambda: 5678)
  monkeypatch.setattr(os, 'getgroups', lambda: [5678, 9])
  found = run_in_docker.options([])
  assert found[found.index('--user') + 1] == user
  # Files may be open to the caller's groups only; in rootless Docker these numbers are others'.
  assert ('--group-add 9' in ' '.join(found)) == (user != '0:0')


@pytest.mark.parametrize('smi, info, has_hook, gpus, is_told', [
    pytest.param('echo "GPU 0: T4"', '[] {"nvidia": {}}', False, True, False, id='runtime'),
    pytest.param('echo "GPU 0: T4"', '[] {}', True, True, False, id='hook'),
    pytest.param('echo "GPU 0: T4"', '[] {}', False, False, True, id='no toolkit'),
    pytest.param('exit 9', '[] {"nvidia": {}}', False, False, False, id='no driver'),
    pytest.param(None, '[] {"nvidia": {}}', False, False, False, id='no nvidia-smi'),
])
def test_gpus(host, smi, info, has_hook, gpus, is_told):
  if smi:
    host.add('nvidia-smi', '#!/usr/bin/env bash\n{}\n'.format(smi))
  if has_hook:
    host.add('nvidia-container-runtime-hook', '')
  done = host.run(INFO=info)
  assert ('--gpus all ' in ' '.join(done.options)) == gpus
  assert ('training is on the CPU' in done.err) == is_told


def test_terminal_only_when_both_outputs_are_one(host):
  # Both ends stay open until the program has ended: what it says fits between them.
  ours, theirs = pty.openpty()
  try:
    for out, err in ((theirs, theirs), (subprocess.PIPE, theirs)):
      process = host.start('--docker', out=out, err=err)
      process.communicate(timeout=TIMEOUT_SECS)
      assert process.returncode == 0
  finally:
    os.close(ours)
    os.close(theirs)
  first, second = [call for call in host.calls() if call[0] == 'run']
  assert '--tty' in first and '--tty' not in second


def test_exit_code_is_the_programs(host):
  assert host.run(FAILS='run').code == 9


def test_signals_reach_docker(host):
  process = host.start('--docker', WAITS='1')
  try:
    assert process.stdout.readline() == 'waiting\n'
    process.send_signal(signal.SIGTERM)
    # Ours is Docker's process by now: the signal was not passed on by anyone.
    assert process.wait(TIMEOUT_SECS) == 143
  finally:
    end(process)
    process.communicate()


@pytest.mark.parametrize('arguments, fails, code, told', [
    pytest.param([], 'version', 2,
                 "error: Docker's daemon cannot be reached: Is it running?: start it, ",
                 id='daemon'),
    pytest.param([], 'build', 1, 'error: the image was not built: `docker build` ended with 9: ',
                 id='build'),
    pytest.param(['--model_dir=/usr'], '', 2,
                 "error: Docker cannot mount this folder over the image's own: /usr for "
                 '--model_dir=/usr: name ', id='system'),
    pytest.param(['--train_pattern=/*.jpeg'], '', 2,
                 "error: Docker cannot mount this folder over the image's own: / for ", id='root'),
    pytest.param(['--model_dir=/dev/null/x'], '', 2, 'error: a folder cannot be made: '
                 '--model_dir=/dev/null/x (Not a directory): give ', id='cannot be made'),
])
def test_errors_are_one_line(host, arguments, fails, code, told):
  done = host.run(*arguments, FAILS=fails)
  assert done.code == code and done.out == ''
  assert done.err.splitlines()[-1].startswith(told), done.err
  if code == 2:
    assert done.err.count('\n') == 1
  assert [call[0] for call in done.calls if call[0] == 'run'] == []


def test_no_docker_is_one_line(host):
  (host.bin / 'docker').unlink()
  done = host.run()
  assert (done.code, done.out) == (2, '')
  assert done.err == ('error: --docker needs Docker: there is no `docker` on PATH: install it, or '
                      'leave --docker out\n')
  assert list(host.here.iterdir()) == []


def test_any_python_will_do(host):
  (host.bin / 'python3').unlink()
  host.add('python3', '#!/usr/bin/env bash\nexit 127\n')
  (host.bin / 'python').symlink_to(sys.executable)
  assert host.run('--help').code == 0
  (host.bin / 'python').unlink()
  done = host.run('--help')
  assert done.code == 2 and done.err.startswith('error: no CPython 3.7 3.6 ')


# Those of text that name no file.
NO_PATHS = {
    'all_reduce_alg', 'best_metric', 'cache_features_dtype', 'class_weights', 'dataset',
    'distribution_strategy',
    'dtype', 'export_format', 'image_size', 'labels', 'lr_boundaries_epochs', 'lr_schedule',
    'lr_values', 'mode', 'model', 'on_bad_image', 'on_nan', 'optimizer', 'preprocess',
    'scale_learning_rate', 'scale_over', 'trace_steps', 'workload'}


def test_every_flag_that_names_a_path_is_known():
  text = {name for _, group in flags._GROUPS for name, definer, _ in group
          if definer in (flags._STRING, flags._LIST)}
  assert text - NO_PATHS <= set(run_in_docker.PATH_FLAGS)
