"""A run that is killed (kill -9) here and there ends as if it had been left alone.

The input continues with the remaining examples of its epoch, so that nothing may differ: neither
the weights and the optimizer's slots, bit for bit, nor the evaluation, the best checkpoint,
`model.h5` and the export. No partial file may be left.

KILLS=50 kills at so many random moments instead of one, and at all points, which takes minutes.
"""

import os
import random
import tempfile
from pathlib import Path

import pytest
from crash_runs import Run, assert_same_end

KILLS = int(os.environ.get('KILLS', '1'))
# As `inject_kill` takes them: in TensorFlow's own writing, between a checkpoint's files, and in the
# export.
FEW = [('_temp_', 'during', 'model_dir/model.ckpt-[1-9]*_temp_*'),
       ('state', 'before', 'model.ckpt-60$'), ('os.rename', 'before', r'/version\.')]
# In the order of a run.
OTHERS = [
    ('lock', 'after'),
    ('weights', 'before'), ('weights', 'after'),
    ('save', 'before', r'model\.ckpt$'),
    ('_temp_', 'during', 'model_dir/model.ckpt-0_temp_*'), ('state', 'before', 'model.ckpt-0$'),
    ('rename', 'before', r'model_dir/checkpoint$'), ('state', 'after', 'model.ckpt-0$'),
    ('rename', 'before', r'ckpt-0\.meta$'),
    ('rename', 'before', r'model_dir/checkpoint$', 3),
    ('state', 'after', 'model.ckpt-60$'), ('rename', 'before', r'ckpt-60\.meta$'),
    ('save', 'after', r'model\.ckpt$', 4),
    # The sixth checkpoint is there, and the first one is to be deleted.
    ('state', 'after', 'model.ckpt-100$'), ('delete', 'before', 'model.ckpt-0.data'),
    ('os.link', 'after', 'best/80/'),
    ('evaluate', 'before', 'best/80/'), ('evaluate', 'after', 'best/80/'),
    ('promote', 'before', 'best/80/'), ('promote', 'after', 'best/80/'),
    ('rmtree', 'before', r'best/\d+$'), ('model.h5', 'after'), ('page', 'before'),
    ('saved_model', 'before'), ('saved_model', 'after'), ('os.rename', 'after', r'/version\.'),
    *(('os.replace', 'before', '/{}$'.format(name)) for name in (
        'data.json', 'flags.txt', 'labels.txt', 'batch_sizes.json', 'evaluation.json', 'best.json',
        'throughput.json', 'model.h5', 'best.h5', 'curves.json', 'samples.json'))]
TWICE = ('lock', '_temp_', 'state', 'rename', 'delete', 'os.link', 'evaluate', 'os.rename')

pytestmark = pytest.mark.slow


def new_run(folder):
  return Run(Path(tempfile.mkdtemp(dir=str(folder))))


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  run = Run(tmp_path_factory.mktemp('undisturbed'))
  assert not run.start()
  return run


@pytest.mark.parametrize('kill_at', FEW + OTHERS if KILLS > 1 else FEW,
                         ids=lambda point: ' '.join(map(str, point)))
def test_killed_at_a_point(undisturbed, tmp_path, kill_at):
  """At some points, the next start is killed again."""
  # A busy machine may rename TensorFlow's temporary files before the waiting thread runs.
  for _ in range(10 if kill_at[0] == '_temp_' else 1):
    run, kills = new_run(tmp_path), 0
    while run.start(kill_at if kills <= (kill_at[0] in TWICE) else None):
      kills += 1
    assert_same_end(run, undisturbed)
    if kills:
      return
  pytest.fail('no kill')


def test_killed_at_random_moments(undisturbed, tmp_path):
  """The moments are spread evenly over the duration of the run."""
  choose, kills = random.Random(1), 0
  while kills < KILLS:
    run, is_killed = new_run(tmp_path), True
    while is_killed:
      is_killed = run.start(kill_after_secs=(
          choose.uniform(.05, undisturbed.secs) if kills < KILLS else None))
      kills += is_killed
    assert_same_end(run, undisturbed)
