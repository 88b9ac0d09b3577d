"""The README and the pages of docs/: their commands run, their links lead somewhere."""

import ast
import importlib
import os
import re
import shlex
import sys

import numpy as np
import pytest
from conftest import ROOT, run_process
from mode_runs import measure_shortly, publish_generated_files

import estimator_train
from estimator_train.distribution import cluster_peers
from estimator_train.settings import command_line
from estimator_train.settings.flags import MODES, TRAINING_MODES
from estimator_train.settings.workloads import WORKLOADS

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', ROOT / 'SECURITY.md',
         *sorted((ROOT / 'docs').glob('**/*.md')), ROOT / 'tests' / 'benchmarks' / 'README.md']
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding='utf-8') for path in PAGES}
README, DOCS = TEXTS['README.md'], {name[len('docs/'):]: text for name, text in TEXTS.items()
                                    if name.startswith('docs/')}
COMMANDS = list(dict.fromkeys(
    line for text in TEXTS.values() for block in re.findall(r'```bash\n(.*?)```', text, re.DOTALL)
    for line in block.splitlines()))
# What precedes the flags of the program; relative paths in the image are those of the checkout.
PROGRAM = re.compile(
    r'(ESTIMATOR_TRAIN_TF=onednn )?(./run_train.sh|python -m estimator_train)|'
    r'docker run (?!.*--entrypoint).* estimator-train(?= )|'
    r'docker compose -f deploy/docker/compose.yaml run --rm train(-cpu)?|'
    r'deploy/docker/two_hosts.sh \d \S+|sbatch --nodes=\d deploy/slurm/train.sbatch')
# Commands that are not executed here: what they require, or the test that executes them.
ELSEWHERE = (
    (r'(docker|mkdir) ', 'requires Docker; tests/deploy, scripts/check_image'),
    (r'deploy/docker/two_hosts.sh |sbatch |kubectl ', 'requires a cluster; tests/deploy'),
    (r'.*--dataset=oct2017|.*configs/oct2017.flags', 'requires Kaggle; tests/modes'),
    (r'.*--(local_workers|tensorboard)', 'tests/launcher, tests/distribution'),
    (r'.*--mode=(scaling|reproduce)', 'tests/modes'),
    (r'tests/benchmarks/run.sh|.*python tests/benchmarks/', 'takes minutes to hours'),
    (r'(CLUSTER_KILL_ROUNDS=20 |FAULTY_NETWORKS=all |KILLS=50 )tests/run.sh',
     'tests/distribution, tests/crash'),
    (r'tests/run.sh|scripts/lint|scripts/install_horovod|.ci/run', '.ci/run'),
    (r'\$\(scripts/install_search\) ', 'tests/test_examples.py'),
    (r'scripts/check_gpu_graphs', 'tests/test_gpu_graphs.py'),
    (r'scripts/verify_gpu', 'tests/test_verify_gpu.py'),
    (r'python3 -m zipfile', 'the fixture `workspace`'),
    (r'.*python scripts/compare_exports.py', 'tests/exporting/test_comparing_exports.py'),
    (r'scripts/(jupyter|run_notebooks|audit.sh|install_clients)', 'requires the package index'),
)
EXECUTED = [command for command in COMMANDS
            if not any(re.match(pattern, command) for pattern, _ in ELSEWHERE)]


def arguments_of(command):
  """Returns the flags of the program that a command has, or None if it is another program."""
  match = PROGRAM.match(command)
  if match is None:
    return None
  return shlex.split(command[match.end():]) or [
      '--flagfile=estimator_train/configs/quickstart.flags']


def test_commands_that_are_not_executed_here():
  assert COMMANDS[:2] == ['./run_train.sh', 'tests/run.sh']
  for command in set(COMMANDS) - set(EXECUTED):
    arguments = arguments_of(command)
    if arguments is not None:
      arguments = [argument for argument in arguments
                   if not argument.startswith(('--local_', '--max_restarts', '--tensorboard'))]
      assert command_line.wants_help(arguments) or command_line.parse(arguments), command
      continue
    for word in shlex.split(command):
      if '/' in word and '=' not in word and not word.startswith((
          '-', '$', 'DATA', '.venv/', 'data/')):
        assert (ROOT / word).exists(), command


@pytest.fixture(scope='module')
def workspace(tmp_path_factory, write_images):
  """A folder like the checkout, with image files in DATA/ and an empty data/."""
  folder = tmp_path_factory.mktemp('checkout')
  for name in ('estimator_train', 'examples'):
    (folder / name).symlink_to(ROOT / name)
  (folder / 'data').mkdir()
  for command in COMMANDS:
    if command.startswith('python3 -m zipfile '):
      run_process(sys.executable, *shlex.split(command)[1:], cwd=folder).check_returncode()
  random = np.random.RandomState(1)
  write_images({folder / 'DATA' / split / label / '{}.jpeg'.format(number):
                random.randint(0, 256, (64, 64, 1)).astype(np.uint8)
                for split in ('train', 'test') for label in ('A', 'B') for number in range(64)})
  return folder


FEW = ['--train_steps=3', '--eval_every_steps=2', '--save_checkpoints_steps=2', '--batch_size=32',
       '--lr_warmup_epochs=0']


def shortened(arguments):
  """Returns the flags with a few steps in place of the whole training."""
  settings = command_line.parse(arguments)
  if settings.run.mode == 'input_benchmark':
    return arguments + ['--batch_size=32']
  if settings.run.mode not in TRAINING_MODES:
    return arguments
  return [argument for argument in arguments if not argument.startswith('--train_epochs')] + FEW


def training_into(folder):
  """Returns the flags of the documented training into a folder, shortened."""
  for arguments in map(arguments_of, EXECUTED):
    if not any(argument.startswith(('--mode=', '--help')) for argument in arguments) and (
        command_line.parse(arguments).run.model_dir == folder):
      return shortened(arguments)
  raise AssertionError('no documented command trains into ' + folder)


# Of the README by default; the others are similar.
@pytest.mark.parametrize('command', [
    command if command in README else pytest.param(command, marks=pytest.mark.slow)
    for command in EXECUTED])
def test_command(command, workspace, run_well, monkeypatch):
  monkeypatch.chdir(str(workspace))
  measure_shortly(monkeypatch)
  arguments = arguments_of(command)
  if command_line.wants_help(arguments):
    run_well(*arguments)
    return
  # Which --input is needed depends on the run, which may not be there yet.
  settings = command_line.parse(['--input=x', *arguments])
  if settings.data.data_dir:
    (workspace / settings.data.data_dir).mkdir(exist_ok=True)
    publish_generated_files(workspace / settings.data.data_dir, monkeypatch, 600, 100)
  if settings.run.mode in ('evaluate', 'predict', 'export', 'report'):
    for folder in settings.reporting.runs or [settings.run.model_dir]:
      run_well(*training_into(folder))
  done = run_well(*shortened(arguments))
  assert done.result.get('mode', 'download') == settings.run.mode


def test_names_in_the_pages_exist():
  """Public names in Python examples, scripts that tests/test_examples.py executes, and tests."""
  for name, text in TEXTS.items():
    for example in re.findall(r'```python\n(.*?)```', text, re.DOTALL):
      used = {node.attr for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Attribute)
              and isinstance(node.value, ast.Name) and node.value.id == 'estimator_train'}
      assert used <= set(estimator_train.__all__), name
    for path, _, test in re.findall(r'((?:examples|tests)/[\w/]+\.py)(::(\w+))?', text):
      assert (ROOT / path).exists(), (name, path)
      assert not test or 'def {}('.format(test) in (ROOT / path).read_text(encoding='utf-8'), test
  for name in ('flags.txt', 'labels.txt', 'throughput.json', 'evaluation.json'):
    assert '`{}`'.format(name) in DOCS['reports.md']


def test_files_that_a_change_touches_exist():
  """Paths are relative to the checkout or the package; `NAME in FILE` is code of that file."""
  table = DOCS['development.md'].partition('## What a change touches')[2].partition('\n## ')[0]
  paths = {path: next((folder / path for folder in (ROOT, ROOT / 'estimator_train')
                       if (folder / path).exists()), None)
           for path in re.findall(r'`([\w./]+[./][\w/]*)`', table) if 'NAME' not in path}
  assert len(paths) > 30 and None not in paths.values(), paths
  named = re.findall(r'((?:`\w+`(?:, | and |, and ))*`\w+`) (?:in|of) `([\w/]+\.py)`', table)
  assert len(named) > 15
  for names, path in named:
    for name in re.findall(r'\w+(?=`)', names):
      assert re.search(r'\b{}\b'.format(name), paths[path].read_text('utf-8')), (name, path)


def test_the_layout_has_each_module():
  """Modes have the names of their modules; reference/workarounds.md has those of tf_patches."""
  layout = DOCS['development.md'].partition('## Layout')[2].partition('\n## ')[0]
  rows = dict(re.findall(r'^\| `(\w+)/` \| (.*) \|$', layout, re.MULTILINE))
  packages = {path.parent.name for path in ROOT.glob('estimator_train/*/*.py')} | {'configs'}
  assert rows.keys() == packages
  for package in packages - {'tf_patches'}:
    for path in (ROOT / 'estimator_train' / package).glob('*.py'):
      if path.stem != '__init__' and (package != 'modes' or path.stem not in MODES):
        assert '`{}`'.format(path.name) in rows[package], path


def test_flags_that_may_differ_between_tasks():
  text = re.search(r'These flags may differ between tasks:(.*?)\n\n', DOCS['distribution.md'],
                   re.DOTALL).group(1)
  assert set(re.findall(r'--(\w+)', text)) == set(cluster_peers._FLAGS_THAT_MAY_DIFFER)


def test_ledger_has_every_figure():
  """The tables are those that the command writes: their first columns are the workloads'."""
  section = re.search('<!-- ledger: begin -->(.*?)<!-- ledger: end -->', DOCS['reproducing.md'],
                      re.DOTALL).group(1)
  for name, workload in WORKLOADS.items():
    table = section.partition('`{}` on '.format(name))[2].partition('\n`')[0]
    rows = [tuple(cell.strip() for cell in line.split('|')[1:4])
            for line in table.splitlines() if line.startswith('|')][2:]
    figures = [figure for part in workload.parts for figure in part.figures]
    assert rows == [(figure.name, figure.published or '', figure.conditions)
                    for figure in figures + list(workload.combined_figures)], name


@pytest.fixture
def compare(monkeypatch):
  """tests/benchmarks/compare.py, which writes the table of docs/performance.md."""
  monkeypatch.syspath_prepend(str(ROOT / 'tests' / 'benchmarks'))
  return importlib.import_module('compare')


def test_the_benchmarks_write_the_table_of_comparisons(compare):
  page = DOCS['performance.md']
  rows = page.partition('\n'.join(compare.TABLE_HEADER) + '\n')[2].partition('\n\n')[0]
  shown = [tuple(row.split(' | ')[:2]) for row in rows.splitlines()]
  known = [('| `{}`'.format(name), ratio.title)
           for name, comparison in compare.COMPARISONS.items() for ratio in comparison.ratios]
  assert len(shown) > 15 and set(shown) <= set(known)
  assert len(set(shown)) == len(shown)

  comparison = compare.COMPARISONS['two_workers']
  figures = {side: {figure: [float(number), 2. * number] for figure in ('images_per_sec',
                                                                        'p50_step_ms')}
             for number, side in ((100, 'one'), (150, 'two'))}
  result = {'date': '2030-01-02', 'machine': {'commit': '0123456789ab', 'instructions': 'AVX2'},
            'comparisons': {'two_workers': {'ratios': [
                compare.pairs.ratio_of(ratio, figures) for ratio in comparison.ratios]}}}
  assert compare.page_with(dict(result, comparisons={}), page) == page
  changed = [(old, new) for old, new in zip(page.splitlines(),
                                            compare.page_with(result, page).splitlines())
             if old != new]
  assert [new for _, new in changed] == [
      '| `two_workers` | training rate of fashion_cnn: two workers / one | 1.50 (1.50 to 1.50) | '
      '225/s / 150/s | 01234567, 2030-01-02, AVX2 |']


def test_flag_reference_is_generated():
  done = run_process(sys.executable, 'scripts/flag_reference.py')
  assert DOCS['reference/flags.md'] == done.stdout, done.stderr


def test_links_lead_somewhere():
  for name, text in TEXTS.items():
    for target in re.findall(r'\]\((?!https:)([^)\s]+)\)', re.sub(r'`[^`]*`', '', text)):
      path, _, anchor = target.partition('#')
      page = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
      assert (ROOT / page).exists(), (name, target)
      if anchor:
        headings = re.findall(r'^#+ (.*)$', TEXTS[page], re.MULTILINE)
        assert anchor in map(anchor_of, headings), (name, target)


def test_files_with_the_version_agree():
  citation = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  assert '\nversion: {}\n'.format(estimator_train.__version__) in citation
  dockerfile = (ROOT / 'Dockerfile').read_text(encoding='utf-8')
  assert 'image.version="{}"'.format(estimator_train.__version__) in dockerfile
  changelog = (ROOT / 'CHANGELOG.md').read_text(encoding='utf-8')
  for version in re.findall(r'^## \[(\d.*?)\]', changelog, re.MULTILINE)[:1]:
    assert version == estimator_train.__version__


def test_nested_blocks_are_indented_for_the_site():
  """MkDocs nests lists, tables and paragraphs in an item only if they are indented by 4, 8, …"""
  block = re.compile(r'^( +)(?:[-*+] |\d+\. |\|)|(?<=\n\n)( +)(?=\S)', re.MULTILINE)
  for name, text in TEXTS.items():
    prose = re.sub(r'```.*?```', '', text, flags=re.DOTALL)
    for match in block.finditer(prose):
      indent = len(match.group(1) or match.group(2))
      assert indent % 4 == 0, (name, prose[match.start():].lstrip().partition('\n')[0])


def anchor_of(heading):
  """Returns the anchor of a heading, as GitHub and MkDocs make it."""
  return re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-')
