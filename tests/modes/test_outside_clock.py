"""The time that a run tells of its steps, between bounds that are measured outside of it."""

import json
import os
import subprocess
import sys
import time

import pytest
from conftest import ROOT, wait_until

WARMUP_STEPS, STEPS, BATCH_SIZE = 100, 1500, 32
DEADLINE_SECS = 300


@pytest.fixture
def start(tmp_path):
  """Starts a run that waits in some steps; it does not outlive the test."""
  children = []

  def run(*barriers):
    with (tmp_path / 'log').open('w') as log:
      children.append(subprocess.Popen(
          [sys.executable, '-m', 'estimator_train', '--mode=train',
           '--dataset=fashion_mnist_sample', '--model=own_models:with_barriers',
           '--batch_size={}'.format(BATCH_SIZE), '--train_steps={}'.format(STEPS),
           '--throughput_warmup_steps={}'.format(WARMUP_STEPS), '--log_every_steps=100',
           '--save_checkpoints_steps=600', '--noreport_page',
           '--model_dir={}'.format(tmp_path / 'model')],
          cwd=str(ROOT / 'tests'), stdout=subprocess.DEVNULL, stderr=log,
          env={**os.environ, 'PYTHONPATH': '{}:{}'.format(ROOT, ROOT / 'tests'),
               'BARRIERS': '{}:{}'.format(tmp_path, ','.join(map(str, barriers)))}))
    return children[0]

  yield run
  for child in children:
    child.kill()
    child.wait()


@pytest.mark.slow
def test_wall_time_of_the_steps(start, tmp_path):
  """However slow the machine is: what lies within the timed steps, and around them."""
  child = start(WARMUP_STEPS, WARMUP_STEPS + 1, STEPS)

  def read_clock_at(step):
    """Reads the clock while the run is in that step."""
    reached = tmp_path / '{} reached'.format(step)
    wait_until(lambda: reached.exists() or child.poll() is not None, DEADLINE_SECS)
    assert child.poll() is None, (tmp_path / 'log').read_text()
    now = time.perf_counter()
    (tmp_path / '{} passed'.format(step)).write_text('')
    return now

  before, first, last = map(read_clock_at, (WARMUP_STEPS, WARMUP_STEPS + 1, STEPS))
  wait_until(lambda: 'step {}/'.format(STEPS) in (tmp_path / 'log').read_text()
             or child.poll() is not None, DEADLINE_SECS)
  after = time.perf_counter()
  assert child.wait(DEADLINE_SECS) == 0, (tmp_path / 'log').read_text()
  told = json.loads((tmp_path / 'model' / 'throughput.json').read_text())
  assert told['steps_timed'] == STEPS - WARMUP_STEPS
  assert told['pauses']['checkpoint']['count'] == 2
  # The timed steps begin between the first two readings, and end between the last two.
  assert last - first <= told['wall_secs'] <= after - before
  assert told['examples_per_sec'] == pytest.approx(
      (STEPS - WARMUP_STEPS) * BATCH_SIZE / told['wall_secs'])
