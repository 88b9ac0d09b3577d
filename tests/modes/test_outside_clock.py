"""The rate that a run tells of itself, beside one that is measured from outside of its process."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from conftest import ROOT

WARMUP_STEPS, STEPS, BATCH_SIZE = 100, 4000, 32
DEADLINE_SECS = 300


@pytest.mark.slow
def test_examples_over_the_wall_time_between_two_lines(tmp_path):
  # A machine that stalls the reader of the lines makes its clock wrong, but hardly thrice.
  for attempt in range(3):
    told, outside = _both_clocks(tmp_path / str(attempt))
    assert told['steps_timed'] == STEPS - WARMUP_STEPS
    assert told['pauses']['checkpoint']['count'] == 2
    if told['examples_per_sec'] == pytest.approx(outside, rel=0.02):
      return
  pytest.fail('{} examples/s, and {} from outside'.format(told['examples_per_sec'], outside))


def _both_clocks(model_dir):
  """Returns the figures that a run tells, and the examples/s between two of its lines."""
  child = subprocess.Popen(
      [sys.executable, '-m', 'estimator_train', '--mode=train', '--dataset=fashion_mnist_sample',
       '--model=own_models:two_layers', '--batch_size={}'.format(BATCH_SIZE),
       '--train_steps={}'.format(STEPS), '--throughput_warmup_steps={}'.format(WARMUP_STEPS),
       '--log_every_steps=100', '--save_checkpoints_steps=1500', '--noreport_page',
       '--model_dir={}'.format(model_dir)],
      cwd=str(ROOT / 'tests'),
      env={**os.environ, 'PYTHONPATH': '{}:{}'.format(ROOT, ROOT / 'tests')},
      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True, bufsize=1)
  seen = {}
  give_up = time.monotonic() + DEADLINE_SECS
  try:
    for line in child.stderr:
      match = re.match(r'step (\d+)/', line)
      if match:
        seen[int(match.group(1))] = time.perf_counter()
      assert time.monotonic() < give_up
    assert child.wait(30) == 0
  finally:
    child.kill()
    child.wait()
    child.stderr.close()
  outside = (STEPS - WARMUP_STEPS) * BATCH_SIZE / (seen[STEPS] - seen[WARMUP_STEPS])
  return json.loads((model_dir / 'throughput.json').read_text()), outside
