"""The scripts in examples/ run as their first lines state."""

import difflib
import json
import os
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = ROOT / 'examples'
SECS = 300  # Per example.


def run(name, *arguments):
  done = subprocess.run(
      [sys.executable, '-W', 'ignore', str(EXAMPLES / name), *map(str, arguments)],
      env=dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL='3'), timeout=SECS,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == 0, done.stderr
  return done.stdout


def code(name):
  """Returns the lines of an example without its docstring."""
  return (EXAMPLES / name).read_text(encoding='utf-8').split('"""\n', 1)[1].splitlines()


def test_three_lines_of_the_article_change():
  added = [line[2:].strip() for line in difflib.ndiff(
      code('article_before.py'), code('article_after.py')) if line.startswith('+ ') and line[2:]]
  assert len(added) <= 3 and all('estimator_train' in line for line in added), added


def test_the_article_before(tmp_path):
  assert "'global_step': 3" in run('article_before.py', tmp_path, 3)


def test_the_article_after(tmp_path):
  out = run('article_after.py', tmp_path, 12)
  assert "'examples': 1000" in out and "'average_loss'" in out
  report = json.loads((tmp_path / 'throughput.json').read_text())
  assert report['global_step'] == 12 and report['examples_per_sec'] > 0
  assert (tmp_path / 'report' / 'index.html').exists()


def test_a_canned_estimator(tmp_path):
  assert 'examples/sec' in run('canned_estimator.py', tmp_path, 30)
  assert json.loads((tmp_path / 'throughput.json').read_text())['global_step'] == 30


@pytest.mark.parametrize('name, metric, best, charts', [
    ('tabular.py', 'mean_absolute_error', .5, 2), ('text.py', 'accuracy', .85, 0),
    ('two_outputs.py', 'price_loss', .5, 2)])
def test_a_model_of_ones_own(tmp_path, name, metric, best, charts):
  """The commands in the docstring, except that their files are in another folder."""
  text = (EXAMPLES / name).read_text(encoding='utf-8').split('"""')[1].replace('\\\n', ' ')
  commands = [shlex.split(line.replace('runs/', '{}/'.format(tmp_path)))
              for line in text.splitlines() if './run_train.sh' in line]
  results = []
  for command in commands:
    assert command[0] == './run_train.sh'
    done = subprocess.run([sys.executable, '-W', 'ignore', '-m', 'estimator_train', *command[1:]],
                          cwd=str(ROOT), timeout=SECS, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 0, done.stderr
    results.append(json.loads(done.stdout.splitlines()[-1]))
  value = results[0][metric]
  assert value > best if metric == 'accuracy' else value < best
  report = tmp_path / name[:-3] / 'report'
  assert len(list(report.glob('output-*.png'))) == charts
  if len(results) > 1:
    assert results[1]['predicted'] == 1000
    assert len((tmp_path / 'tabular' / 'prices.csv').read_text().splitlines()) == 1001
  assert len(text.splitlines()) < 20 and len(code(name)) < 80
