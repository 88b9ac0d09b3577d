"""The documentation's example of an own model and data, word for word in an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys

from conftest import ROOT

SECS = 300
PAGE = (ROOT / 'docs' / 'data_and_models.md').read_text(encoding='utf-8')
SECTION = re.search(r'\n## Your own model and data\n(.*?)\n## ', PAGE, re.DOTALL).group(1)
PROGRAM = {'/path/to/run_train.sh': [sys.executable, '-m', 'estimator_train'],
           'python': [sys.executable]}


def test_example(tmp_path):
  (_, example), (_, commands) = re.findall(
      r'```(\w*)\n(.*?)```', SECTION, re.DOTALL)[:2]
  (tmp_path / 'mine.py').write_text(example)
  results = []
  for command in commands.splitlines():
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        PROGRAM[program] + arguments, cwd=str(tmp_path), timeout=SECS, universal_newlines=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    results.append(json.loads(done.stdout))
  first, accuracy = results
  assert first['global_step'] == 16 and first['accuracy'] == accuracy > 0.9
  assert (tmp_path / 'runs' / 'mine' / 'labels.txt').read_text() == 'top\nmiddle\nbottom\n'
