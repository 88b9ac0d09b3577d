"""Training under horovodrun and mpirun, which start the ranks and pass each its rank."""

import json
import os
import shutil
import sys

import pytest
from cluster_processes import FLAGS, Task, requires_horovod
from mode_runs import fails
from test_lost_tasks import assert_undisturbed

# Without --gloo, horovodrun first imports Horovod to find out whether it was built with MPI.
HOROVODRUN = [os.path.join(os.path.dirname(sys.executable), 'horovodrun'), '--gloo', '-np', '2']
MPIRUN = ['mpirun', '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none', '-np', '2']

pytestmark = pytest.mark.cluster


@requires_horovod
@pytest.mark.skipif(not shutil.which('mpirun'), reason='mpirun is not installed')
@pytest.mark.slow
@pytest.mark.optimized_graphs  # As in the ranks, because rounding adds up over many steps.
def test_like_one_process(tmp_path):
  """The run of mpirun is resumed by horovodrun."""
  together, timeline = tmp_path / 'together', tmp_path / 'timeline.json'
  flags = ['--mode=train_and_evaluate', '--model=own_models:compiled_with_momentum',
           '--eval_every_steps=20', '--best_metric=accuracy', '--save_checkpoints_steps=20']
  for launcher, steps in ((MPIRUN, 20), (HOROVODRUN, 60)):
    ranks = Task([*launcher, sys.executable, '-m', 'estimator_train', *FLAGS, *flags,
                  '--distribution_strategy=horovod', '--train_steps={}'.format(steps),
                  '--model_dir={}'.format(together)], tmp_path / '{}.log'.format(steps),
                 HOROVOD_TIMELINE=str(timeline))
    try:
      assert ranks.code() == 0, ranks.output
    finally:
      ranks.end()
    assert ranks.output.count('Horovod connects 2 ranks by ') == 2
  assert ranks.output.count('resuming from step 20') == 2
  alone = assert_undisturbed(together, 60, flags=flags)
  one, other = (json.loads((folder / 'evaluation.json').read_text())
                for folder in (alone, together))
  assert one['accuracy'] == other['accuracy']
  report = json.loads((together / 'throughput.json').read_text())
  assert report['num_workers'] == report['num_replicas'] == 2
  assert set(report['workers']) == {'chief', 'worker 1'}
  assert report['examples'] == (60 - 20 - 5) * 24
  assert 'ALLREDUCE' in timeline.read_text()
  assert not (together / 'rank_0_address.json').exists()


def test_horovod_is_missing(run_program, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'horovod.tensorflow', None)
  monkeypatch.setenv('HOROVOD_RANK', '0')
  monkeypatch.setenv('HOROVOD_SIZE', '2')
  done = run_program('--mode=train', '--distribution_strategy=horovod', '--train_steps=3',
                     '--model_dir={}'.format(tmp_path / 'model'))
  assert fails(done, ' requires Horovod with TensorFlow: ')
  assert ': run scripts/install_horovod' in done.err
