"""Training and evaluation in turns, in one process: its memory does not grow."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

# The peak so far after each evaluation, in KB. That of getrusage begins with the parent's.
PROGRAM = """
import re, sys
from estimator_train import __main__ as program
from estimator_train.training.evaluation.evaluator import Evaluator

evaluate = Evaluator.evaluate

def measured(self, path=None):
  found = evaluate(self, path)
  with open('/proc/self/status') as status:
    print('peak', re.search(r'VmHWM:\\s+(\\d+)', status.read()).group(1))
  return found

Evaluator.evaluate = measured
sys.exit(program.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_memory_after_100_evaluations(tmp_path):
  output = subprocess.run(
      [sys.executable, '-c', PROGRAM, '--model_dir={}'.format(tmp_path), '--train_steps=200',
       '--eval_every_steps=2', '--dataset=synthetic', '--image_size=18,18', '--batch_size=4',
       '--num_gpus=0', '--noreport_page'], cwd=str(ROOT), stdout=subprocess.PIPE, timeout=900,
      # What each thread's arena keeps of memory that is free comes and goes by 5 % of the peak.
      env=dict(os.environ, PYTHONPATH=str(ROOT), MALLOC_ARENA_MAX='1'), check=True).stdout.decode()
  peaks = [int(line.split()[1]) for line in output.splitlines() if line.startswith('peak')]
  assert len(peaks) == 100 and peaks[-1] <= 1.03 * peaks[19]
