"""Training under horovodrun and mpirun, which start the ranks and pass each its rank."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys

import psutil
import pytest
from cluster_processes import FLAGS, Task, requires_horovod
from training_runs import assert_same_weights, variables

from estimator_train import __main__ as program

# Without --gloo, horovodrun first imports Horovod to find out whether it was built with MPI.
HOROVODRUN = [os.path.join(os.path.dirname(sys.executable), 'horovodrun'), '--gloo', '-np', '2']
# On SIGTERM, mpirun waits for the ranks for only one second by default.
MPIRUN = ['mpirun', '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none',
          '--mca', 'odls_base_sigkill_timeout', '10', '-np', '2']

pytestmark = pytest.mark.cluster


@pytest.fixture
def launch(tmp_path):
  """Starts the ranks, whose logs are one."""
  started = []

  def start(launcher, *flags, **variables):
    started.append(Task(
        [*launcher, sys.executable, '-m', 'estimator_train', '--distribution_strategy=horovod',
         *FLAGS, *flags], tmp_path / '{}.log'.format(len(started)), **variables))
    return started[-1]

  yield start
  for task in started:
    for process in psutil.process_iter():  # The session has the ID of the launcher.
      with contextlib.suppress(OSError, psutil.Error):
        if os.getsid(process.pid) == task.process.pid:
          process.kill()
    task.end()


def process_of_rank(task, rank):
  for process in psutil.Process(task.process.pid).children(recursive=True):
    with contextlib.suppress(psutil.Error):
      environ, command = process.environ(), process.cmdline()
      ranks = {environ.get('HOROVOD_RANK'), environ.get('OMPI_COMM_WORLD_RANK')}
      if str(rank) in ranks and command[1:3] == ['-m', 'estimator_train']:
        return process
  raise AssertionError('no rank {}: {}'.format(rank, task.output))


@requires_horovod
@pytest.mark.skipif(not shutil.which('mpirun'), reason='mpirun is not installed')
@pytest.mark.slow
@pytest.mark.optimized_graphs  # As in the ranks, because rounding adds up over many steps.
def test_like_one_process_whatever_happens(launch, tmp_path):
  """A rank of horovodrun is killed, then mpirun is stopped, and horovodrun comes to the end."""
  alone, together, timeline = tmp_path / 'alone', tmp_path / 'together', tmp_path / 'timeline.json'
  flags, saved = ['--model=own_models:compiled_with_momentum', '--save_checkpoints_steps=20'], 0
  for launcher, signum in ((HOROVODRUN, signal.SIGKILL), (MPIRUN, signal.SIGTERM)):
    ranks = launch(launcher, *flags, '--mode=train', '--model_dir={}'.format(together),
                   '--train_steps=1000000', '--peer_timeout_secs=5')
    ranks.wait_for('step {}/'.format(saved - saved % 20 + 40))
    assert 'Horovod connects 2 ranks by ' in ranks.output
    if signum == signal.SIGKILL:
      process_of_rank(ranks, 1).send_signal(signum)
    else:
      ranks.signal(signum)
    assert ranks.code(60) != 0
    # The launcher ends the other rank by SIGTERM, if this rank has not found the loss before.
    assert re.search('lost worker 1: |another task received a signal|stopped by SIGTERM|signal 9|'
                     'Killed', ranks.output), ranks.output
    saved, before = variables(together)['global_step'], saved
    assert saved >= before + 20
    assert not before or ranks.output.count('resuming from step {}'.format(before)) == 2
  steps = saved - saved % 20 + 40
  flags += ['--train_steps={}'.format(steps), '--eval_every_steps=20', '--best_metric=accuracy']
  ranks = launch(HOROVODRUN, *flags, '--model_dir={}'.format(together),
                 HOROVOD_TIMELINE=str(timeline))
  assert ranks.code() == 0, ranks.output
  assert ranks.output.count('resuming from step {}'.format(saved)) == 2
  assert program.main([*FLAGS, *flags, '--model_dir={}'.format(alone), '--num_cpu_replicas=2']) == 0
  assert_same_weights(together, alone, 1e-4)
  one, other = (json.loads((folder / 'evaluation.json').read_text())
                for folder in (alone, together))
  assert one['accuracy'] == other['accuracy']
  report = json.loads((together / 'throughput.json').read_text())
  assert report['num_workers'] == report['num_replicas'] == 2
  assert set(report['workers']) == {'chief', 'worker 1'}
  assert report['examples'] == (steps - saved - 5) * 24
  assert 'ALLREDUCE' in timeline.read_text()
  assert not (together / 'rank_0_address.json').exists()


def test_horovod_is_missing(run_program, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'horovod.tensorflow', None)
  monkeypatch.setenv('HOROVOD_RANK', '0')
  monkeypatch.setenv('HOROVOD_SIZE', '2')
  done = run_program('--mode=train', '--distribution_strategy=horovod', '--train_steps=3',
                     '--model_dir={}'.format(tmp_path / 'model'))
  assert done.code == 2
  assert re.match('error: --distribution_strategy=horovod requires Horovod with TensorFlow: .*: '
                  'run scripts/install_horovod', done.err.splitlines()[-1])
