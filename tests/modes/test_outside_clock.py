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
  child = subprocess.Popen(
      [sys.executable, '-m', 'estimator_train', '--mode=train', '--dataset=fashion_mnist_sample',
       '--model=own_models:two_layers', '--batch_size={}'.format(BATCH_SIZE),
       '--train_steps={}'.format(STEPS), '--throughput_warmup_steps={}'.format(WARMUP_STEPS),
       '--log_every_steps=100', '--save_checkpoints_steps=1500', '--noreport_page',
       '--model_dir={}'.format(tmp_path)],
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
  told = json.loads((tmp_path / 'throughput.json').read_text())
  assert told['steps_timed'] == STEPS - WARMUP_STEPS and told['pauses']['checkpoint']['count'] == 2
  assert told['examples_per_sec'] == pytest.approx(outside, rel=0.02)
