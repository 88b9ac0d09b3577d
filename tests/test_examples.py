"""The scripts in examples/ run by the commands in their first lines."""

import difflib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = ROOT / 'examples'
SECS = 300  # Per example.


@pytest.fixture
def checkout(tmp_path):
  """A folder in which the commands of the examples run, with the Python of the tests."""
  for name in ('estimator_train', 'examples'):
    (tmp_path / name).symlink_to(ROOT / name)
  python = shlex.quote(sys.executable)
  for name, program in (('run_train.sh', python + ' -W ignore -m estimator_train'),
                        ('.venv/bin/python', python + ' -W ignore')):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\nexec {} "$@"\n'.format(program))
    path.chmod(0o755)
  return tmp_path


def run(checkout, name, steps=''):
  """Executes the commands in the first lines of an example, and returns their standard output.

  Args:
    checkout: the folder in which the commands run.
    name: the file name of the example.
    steps: the number of steps that is added to the commands of a script.
  """
  lines = first_lines(name).replace('\\\n', '').splitlines()
  commands = [line.strip() for line in lines if line.startswith('    ')]
  assert commands
  script = '\n'.join('{} {}'.format(command, steps if 'examples/' + name in command else '')
                     for command in commands)
  done = subprocess.run(
      ['bash', '-e', '-c', script], cwd=str(checkout), timeout=SECS,
      env=dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL='3'),
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
  assert done.returncode == 0, done.stderr
  return done.stdout


def first_lines(name):
  """Returns the docstring of an example."""
  return (EXAMPLES / name).read_text(encoding='utf-8').split('"""')[1]


def code(name):
  """Returns the lines of an example without its docstring."""
  return (EXAMPLES / name).read_text(encoding='utf-8').split('"""\n', 1)[1].splitlines()


def test_three_lines_of_the_article_change():
  added = [line[2:].strip() for line in difflib.ndiff(
      code('article_before.py'), code('article_after.py')) if line.startswith('+ ') and line[2:]]
  assert len(added) <= 3 and all('estimator_train' in line for line in added), added


def test_the_article_before(checkout):
  assert "'global_step': 3" in run(checkout, 'article_before.py', 3)


def test_the_article_after(checkout):
  out = run(checkout, 'article_after.py', 12)
  assert "'examples': 1000" in out and "'average_loss'" in out
  model_dir = checkout / 'runs' / 'article_after'
  report = json.loads((model_dir / 'throughput.json').read_text())
  assert report['global_step'] == 12 and report['examples_per_sec'] > 0
  assert (model_dir / 'report' / 'index.html').exists()


def test_a_canned_estimator(checkout):
  assert run(checkout, 'canned_estimator.py', 30).count('examples/sec, ') == 2
  for name in ('canned', 'canned_again'):
    report = json.loads((checkout / 'runs' / name / 'throughput.json').read_text())
    assert report['global_step'] == 30
  assert (checkout / 'runs' / 'comparison' / 'report' / 'index.html').exists()


@pytest.mark.parametrize('name, metric, best, charts', [
    ('tabular.py', 'mean_absolute_error', .5, 2), ('text.py', 'accuracy', .85, 0),
    ('two_outputs.py', 'price_loss', .5, 2)])
def test_a_model_of_ones_own(checkout, name, metric, best, charts):
  results = [json.loads(line) for line in run(checkout, name).splitlines()
             if line.startswith('{')]
  value = results[0][metric]
  assert value > best if metric == 'accuracy' else value < best
  report = checkout / 'runs' / name[:-3] / 'report'
  assert len(list(report.glob('output-*.png'))) == charts
  if len(results) > 1:
    assert results[1]['predicted'] == 1000
    assert len((checkout / 'runs' / 'tabular' / 'prices.csv').read_text().splitlines()) == 1001
  assert len(first_lines(name).splitlines()) < 20 and len(code(name)) < 80


@pytest.mark.parametrize('path', sorted(
    path for kind in ('py', 'flags', 'ipynb') for path in EXAMPLES.glob('*.' + kind)),
    ids=lambda path: path.name)
def test_first_lines_have_commands_or_name_another_example(path):
  first = re.split(r'\n"""|\n--|"cell_type": "code"', path.read_text(encoding='utf-8'))[0]
  assert 'In a clone' in first or 'for imagenet_resnet50.flags, whose first' in first
