"""The examples run by the commands in their first lines, and that of the documentation by its own.

The commands run in this process, in an empty folder.
"""

import difflib
import json
import re
import runpy
import shlex
import sys

import pytest
import tensorflow.compat.v1 as tf
from conftest import ROOT, python_installed_by, run_process

EXAMPLES = ROOT / 'examples'


@pytest.fixture
def execute(run_well, capsys, tmp_path, monkeypatch):
  """Executes command lines with these arguments added to scripts; returns their outputs."""
  monkeypatch.chdir(str(tmp_path))
  for folder in (ROOT, tmp_path):  # As for `python -m`.
    monkeypatch.syspath_prepend(str(folder))

  def run(commands, *arguments):
    results = []
    for command in commands:
      start, *given = shlex.split(command)
      if start.endswith('run_train.sh'):
        out = run_well(*given).out
      else:
        assert start.endswith('python')
        script = ROOT / given[0] if given[0].startswith('examples/') else tmp_path / given[0]
        monkeypatch.setattr(sys, 'argv', [*given, *arguments])
        capsys.readouterr()
        runpy.run_path(str(script), run_name='__main__')
        out = capsys.readouterr().out
      results.append(out.rstrip())
    return results

  return run


def read(name):
  """Returns the docstring of an example, and its code."""
  _, docstring, code = (EXAMPLES / name).read_text(encoding='utf-8').split('"""', 2)
  return docstring, code


def commands(name):
  lines = read(name)[0].replace('\\\n', '').splitlines()
  return [line.strip() for line in lines if line.startswith('    ')]


def test_three_lines_of_the_article_change(execute, tmp_path):
  before, after = (read(name)[1].splitlines() for name in ('article_before.py', 'article_after.py'))
  added = [line[2:].strip() for line in difflib.ndiff(before, after)
           if line.startswith('+ ') and line[2:]]
  assert len(added) <= 3 and all('estimator_train' in line for line in added), added
  assert "'global_step': 3" in execute(commands('article_before.py'), '3')[-1]
  out = execute(commands('article_after.py'), '12')[-1]
  assert "'examples': 1000" in out and "'average_loss'" in out
  model_dir = tmp_path / 'runs' / 'article_after'
  report = json.loads((model_dir / 'throughput.json').read_text())
  assert report['global_step'] == 12 and report['examples_per_sec'] > 0


def test_a_canned_estimator(execute, tmp_path):
  _, first, second, _ = execute(commands('canned_estimator.py'), '30')
  assert 'examples/sec, ' in first and 'examples/sec, ' in second
  for name in ('canned', 'canned_again'):
    report = json.loads((tmp_path / 'runs' / name / 'throughput.json').read_text())
    assert report['global_step'] == 30
  assert (tmp_path / 'runs' / 'comparison' / 'report' / 'index.html').exists()


@pytest.mark.page
@pytest.mark.parametrize('name, metric, best, charts, predicted', [
    ('tabular.py', 'mean_absolute_error', .5, 2, 1000), ('text.py', 'accuracy', .85, 0, 3),
    ('two_outputs.py', 'price_loss', .5, 2, 0), ('csv_table.py', 'mean_absolute_error', .5, 2, 3)])
def test_a_model_of_ones_own(execute, tmp_path, name, metric, best, charts, predicted):
  (tmp_path / 'examples').symlink_to(EXAMPLES)  # Commands are for the clone.
  first, *others = (json.loads(out.splitlines()[-1]) for out in execute(commands(name)))
  assert first[metric] > best if metric == 'accuracy' else first[metric] < best
  assert len(list((tmp_path / 'runs' / name[:-3] / 'report').glob('output-*.png'))) == charts
  assert bool(others) == bool(predicted)
  for predictions in others:
    assert predictions['predicted'] == predicted
    output = {'text.py': 'classes.csv'}.get(name, 'prices.csv')
    lines = (tmp_path / 'runs' / name[:-3] / output).read_text().splitlines()
    assert len(lines) == 1 + predicted and all(line[0] != ',' for line in lines)  # Of an example.
    if name == 'csv_table.py':  # A sunny flat in Oslo, a dark one, and a dark one in Bern.
      sunny, dark, in_bern = (float(line.split(',')[1]) for line in lines[1:])
      assert sunny > dark + 1 and dark > in_bern + .3
    if name == 'text.py':
      assert [line.split(',')[1] for line in lines[1:]] == ['praise', 'complaint', 'question']
      check_raw_sentences(execute, first['accuracy'])


def check_raw_sentences(execute, accuracy):
  """The run of examples/text.py is evaluated, exported and resumed from its folder alone."""
  command = './run_train.sh --model_dir=runs/text '
  evaluated, exported, resumed = (json.loads(out.splitlines()[-1]) for out in execute([
      command + '--mode=evaluate', command + '--mode=export --export_dir=exported',
      command + '--train_epochs=5']))
  assert evaluated['accuracy'] == accuracy
  assert resumed['global_step'] == 235 and resumed['steps_run'] == 47
  with tf.Graph().as_default(), tf.Session() as session:
    loaded = tf.saved_model.load(session, ['serve'], exported['path'])
    signature = loaded.signature_def['serving_default']
    found = session.run(signature.outputs['top_labels'].name, {
        signature.inputs['sentence'].name: [
            'what a terrible, TERRIBLE chair!', 'Where can I buy one', 'a great joy']})
  assert [classes[0] for classes in found] == [b'complaint', b'question', b'praise']


@pytest.mark.slow
def test_a_search(tmp_path):
  """Two trials, and a third one that is added to them."""
  if sys.version_info[:2] != (3, 7):
    pytest.skip('the environment of the search has CPython 3.7')
  python = python_installed_by('install_search', 'Optuna')
  for trials in (2, 1):
    done = run_process(python, EXAMPLES / 'search.py', '--trials={}'.format(trials),
                       '--epochs=1', '--model_dir=search', cwd=tmp_path,
                       env={'PYTHONPATH': str(ROOT)})
    assert done.returncode == 0, done.stderr
  accuracies = [float(value) for value in re.findall(r'^trial \d: accuracy ([\d.]+),', done.stdout,
                                                     re.MULTILINE)]
  assert len(accuracies) == 3 and accuracies == sorted(accuracies, reverse=True)
  page = tmp_path / re.search(r'^comparison: (.*)', done.stdout, re.MULTILINE).group(1)
  text = page.read_text(encoding='utf-8').replace('<wbr>', '')
  assert all('trial-{}'.format(number) in text for number in range(3))
  assert '--label_smoothing' in text


def test_the_example_of_the_documentation(execute, tmp_path, monkeypatch):
  page = (ROOT / 'docs' / 'data_and_models.md').read_text(encoding='utf-8')
  section = re.search(r'\n## Your own model and data\n(.*?)\n## ', page, re.DOTALL).group(1)
  example, lines = re.findall(r'```\w*\n(.*?)```', section, re.DOTALL)[:2]
  (tmp_path / 'mine.py').write_text(example)
  first, accuracy, evaluated = map(json.loads, execute([
      *lines.splitlines(), './run_train.sh --mode=evaluate --model_dir=runs/from_python']))
  monkeypatch.delitem(sys.modules, 'mine')
  assert first['global_step'] == 16 and first['accuracy'] == accuracy > 0.9
  assert evaluated['accuracy'] == accuracy and 'evaluation_dir' not in evaluated
  assert (tmp_path / 'runs' / 'mine' / 'labels.txt').read_text() == 'top\nmiddle\nbottom\n'


@pytest.mark.parametrize('name', ['article_before', 'article_after', 'canned_estimator'])
def test_a_script_without_arguments_prints_its_usage(monkeypatch, capsys, name):
  monkeypatch.setattr(sys, 'argv', [name])
  with pytest.raises(SystemExit, match='2'):
    runpy.run_path(str(EXAMPLES / (name + '.py')), run_name='__main__')
  assert 'required: model_dir' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['csv_table', 'imagenet_resnet50', 'tabular', 'text',
                                  'two_outputs'])
def test_a_module_that_is_run_prints_the_commands_that_use_it(capsys, name):
  runpy.run_path(str(EXAMPLES / (name + '.py')), run_name='__main__')
  assert capsys.readouterr().out.startswith(read(name + '.py')[0].splitlines()[0])
