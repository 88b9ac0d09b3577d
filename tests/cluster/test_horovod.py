"""Training under horovodrun and mpirun, which start the ranks and pass each its rank."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf
from cluster_processes import DEADLINE_SECS, requires_horovod
from conftest import ROOT

from estimator_train import __main__ as program

FLAGS = ['--dataset=fashion_mnist_sample', '--model=own_models:two_layers', '--optimizer=sgd',
         '--learning_rate=0.05', '--batch_size=24', '--throughput_warmup_steps=5',
         '--log_every_steps=5', '--noreport_page']
HOROVODRUN = [os.path.join(os.path.dirname(sys.executable), 'horovodrun'), '-np', '2']
# On SIGTERM, mpirun waits for the ranks for only one second by default.
MPIRUN = ['mpirun', '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none',
          '--mca', 'odls_base_sigkill_timeout', '10', '-np', '2']
LAUNCHERS = [
    pytest.param(HOROVODRUN, id='horovodrun', marks=requires_horovod),
    pytest.param(MPIRUN, id='mpirun', marks=[requires_horovod, pytest.mark.skipif(
        not shutil.which('mpirun'), reason='mpirun is not installed')]),
]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


class Ranks:
  """The ranks that a launcher has started; their logs are one."""

  def __init__(self, launcher, flags, log_path, **variables):
    self._log_path = log_path
    environ = dict(os.environ, PYTHONPATH='{}:{}'.format(ROOT, ROOT / 'tests'), **variables)
    environ.pop('TF_CONFIG', None)
    with log_path.open('w') as log:
      self._process = subprocess.Popen(
          [*launcher, sys.executable, '-m', 'estimator_train', '--distribution_strategy=horovod',
           *flags], cwd=str(ROOT / 'tests'), stdout=log, stderr=log, env=environ,
          start_new_session=True)

  @property
  def log(self):
    return self._log_path.read_text()

  def code(self, secs=DEADLINE_SECS):
    """Waits for the end, and returns the exit code."""
    try:
      return self._process.wait(secs)
    except subprocess.TimeoutExpired:
      raise AssertionError(self.log) from None

  def wait_for(self, pattern):
    deadline = time.monotonic() + DEADLINE_SECS
    while not re.search(pattern, self.log, re.MULTILINE):
      assert self._process.poll() is None and time.monotonic() < deadline, self.log
      time.sleep(.02)

  def rank(self, rank):
    """Returns the process of a rank."""
    for process in psutil.Process(self._process.pid).children(recursive=True):
      with contextlib.suppress(psutil.Error):
        environ = process.environ()
        ranks = {environ.get('HOROVOD_RANK'), environ.get('OMPI_COMM_WORLD_RANK')}
        if str(rank) in ranks and 'estimator_train' in process.cmdline() and (
            os.path.basename(process.cmdline()[0]).startswith('python')):
          return process
    raise AssertionError('no rank {}: {}'.format(rank, self.log))

  def signal(self, signum):
    self._process.send_signal(signum)

  def end(self):
    for process in self._all_processes():
      with contextlib.suppress(psutil.Error):
        process.kill()
    self._process.wait()

  def _all_processes(self):
    """Returns the processes of the launcher's session, whose ID is that of the launcher."""
    for process in psutil.process_iter():
      with contextlib.suppress(OSError):
        if os.getsid(process.pid) == self._process.pid:
          yield process


@pytest.fixture
def launch(tmp_path):
  started = []

  def start(launcher, flags, **variables):
    started.append(Ranks(launcher, [*FLAGS, *flags], tmp_path / '{}.log'.format(len(started)),
                         **variables))
    return started[-1]

  yield start
  for ranks in started:
    ranks.end()


def weights(model_dir):
  path = tf.train.latest_checkpoint(str(model_dir))
  return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def assert_alike(one, other):
  assert set(one) == set(other) and 'dense/kernel' in one
  for name, value in one.items():
    scale = max(np.abs(value).max(), 1e-3)
    np.testing.assert_allclose(other[name], value, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_like_one_process_and_resumes(launch, tmp_path, launcher):
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = ['--train_steps=20', '--eval_every_steps=10', '--best_metric=accuracy']
  timeline = tmp_path / 'timeline.json'
  ranks = launch(launcher, [*flags, '--model_dir={}'.format(together)],
                 HOROVOD_TIMELINE=str(timeline))
  assert ranks.code() == 0, ranks.log
  assert 'Horovod connects 2 ranks by ' in ranks.log
  assert program.main([*FLAGS, *flags, '--model_dir={}'.format(alone),
                       '--num_cpu_replicas=2']) == 0
  assert_alike(weights(alone), weights(together))
  evaluations = [json.loads((folder / 'evaluation.json').read_text())
                 for folder in (alone, together)]
  assert evaluations[0]['examples'] == evaluations[1]['examples'] == 1000
  assert evaluations[0]['accuracy'] == evaluations[1]['accuracy']
  assert os.listdir(str(alone / 'best')) == os.listdir(str(together / 'best'))
  report = json.loads((together / 'throughput.json').read_text())
  assert report['num_workers'] == report['num_replicas'] == 2
  assert report['distribution_strategy'] == 'horovod'
  assert set(report['workers']) == {'chief', 'worker 1'} and report['examples'] == 15 * 24
  assert 'ALLREDUCE' in timeline.read_text()
  assert not (together / 'rank_0_address.json').exists()

  more = ['--train_steps=30', '--eval_every_steps=10', '--best_metric=accuracy']
  again = launch(launcher, [*more, '--model_dir={}'.format(together)])
  assert again.code() == 0, again.log
  assert again.log.count('resuming from step 20') == 2
  assert program.main([*FLAGS, *more, '--model_dir={}'.format(alone),
                       '--num_cpu_replicas=2']) == 0
  assert_alike(weights(alone), weights(together))


@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_a_lost_rank(launch, tmp_path, launcher):
  flags = ['--mode=train', '--model_dir={}'.format(tmp_path), '--save_checkpoints_steps=20',
           '--peer_timeout_secs=5']
  ranks = launch(launcher, [*flags, '--train_steps=1000000'])
  ranks.wait_for('step 60/')
  ranks.rank(1).send_signal(signal.SIGKILL)
  began = time.monotonic()
  assert ranks.code() != 0
  assert time.monotonic() - began < 60
  saved = int(weights(tmp_path)['global_step'])
  assert saved >= 40
  # The launcher ends the other rank by SIGTERM, if this rank has not found the loss before.
  assert re.search(r'lost worker 1: |another task received a signal|stopped by SIGTERM|'
                   r'signal 9|Killed', ranks.log), ranks.log
  again = launch(launcher, [*flags, '--train_steps={}'.format(saved + 10)])
  assert again.code() == 0, again.log
  assert 'resuming from step {}'.format(saved) in again.log


@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_sigterm(launch, tmp_path, launcher):
  ranks = launch(launcher, ['--mode=train', '--model_dir={}'.format(tmp_path),
                            '--train_steps=1000000', '--save_checkpoints_steps=1000000'])
  ranks.wait_for('step 60/')
  ranks.signal(signal.SIGTERM)
  assert ranks.code() != 0
  assert weights(tmp_path)['global_step'] >= 60


@requires_horovod
@pytest.mark.parametrize('model', ['compiled_with_momentum', 'embeddings'])
def test_other_models_train_like_one_process(launch, tmp_path, model):
  alone, together = tmp_path / 'alone', tmp_path / 'together'
  flags = ['--mode=train', '--model=own_models:' + model, '--train_steps=10']
  ranks = launch(HOROVODRUN, [*flags, '--model_dir={}'.format(together)])
  assert ranks.code() == 0, ranks.log
  assert program.main([*FLAGS, *flags, '--model_dir={}'.format(alone),
                       '--num_cpu_replicas=2']) == 0
  assert_alike(weights(alone), weights(together))


@requires_horovod
def test_one_rank_trains_alone(launch, tmp_path):
  ranks = launch([*HOROVODRUN[:-1], '1'],
                 ['--mode=train', '--train_steps=5', '--model_dir={}'.format(tmp_path)])
  assert ranks.code() == 0, ranks.log
  assert json.loads((tmp_path / 'throughput.json').read_text())['num_workers'] == 1


@requires_horovod
def test_ranks_of_another_launcher(launch, tmp_path):
  ranks = launch(HOROVODRUN + ['env', 'HOROVOD_RANK=0'],
                 ['--mode=train', '--train_steps=5', '--model_dir={}'.format(tmp_path),
                  '--start_timeout_secs=10'])
  assert ranks.code() != 0
  assert 'error: ' in ranks.log or 'lost' in ranks.log, ranks.log


def test_horovod_is_missing(run_program, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'horovod.tensorflow', None)
  monkeypatch.setenv('HOROVOD_RANK', '0')
  monkeypatch.setenv('HOROVOD_SIZE', '2')
  done = run_program('--mode=train', '--distribution_strategy=horovod', '--train_steps=3',
                     '--model_dir={}'.format(tmp_path / 'model'))
  assert done.code == 2
  assert done.err.splitlines()[-1] == (
      'error: --distribution_strategy=horovod requires Horovod with TensorFlow: the import of '
      'horovod.tensorflow fails (import of horovod.tensorflow halted; None in sys.modules): run '
      'scripts/install_horovod, or see docs/distribution.md')
