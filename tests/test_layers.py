"""The layers of the package: a module imports from its own package and from layers below only."""

import ast
import sys
from pathlib import Path

from conftest import ROOT, load_script, run_process

# From the bottom up; packages that share a layer do not import each other.
LAYERS = (
  ('configs', 'errors', 'tf_patches', 'version'),
  ('system',),
  ('settings',),
  ('distribution', 'models', 'run_dir'),
  ('data', 'launcher', 'reports'),
  ('doctor', 'training'),
  ('exporting',),
  ('modes',),
  ('__main__',),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
WITHOUT_TENSORFLOW = ('system', 'settings', 'run_dir', 'reports', 'doctor', 'launcher', 'configs',
                      'modes.doctor', 'modes.scaling', 'data.datasets', 'distribution.rendezvous')
MOST_LINES = 350  # Of a module: it has one subject.

TREES = {path.relative_to(ROOT / 'estimator_train'): ast.parse(path.read_text(encoding='utf-8'))
         for path in sorted((ROOT / 'estimator_train').rglob('*.py'))}
METRICS = load_script('code_metrics').measure(ROOT)
del TREES[Path('__init__.py')]


def imports(tree):
  """Yields the dotted names that a module imports."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, 'a relative import'
      yield from ('{}.{}'.format(node.module, alias.name) for alias in node.names)


def test_imports_go_down():
  assert {path.with_suffix('').parts[0] for path in TREES} == set(LEVEL)
  for path, tree in TREES.items():
    own = path.with_suffix('').parts[0]
    for name in imports(tree):
      program, _, target = name.partition('.')
      target = target.split('.')[0]
      # Modes do not know each other.
      is_own = (name.startswith('estimator_train.modes.{}.'.format(path.parts[1]))
                if own == 'modes' else target == own)
      if program == 'estimator_train' and not is_own:
        assert LEVEL[target] < LEVEL[own], '{} imports {}'.format(path, name)
  assert METRICS['import_cycles'] == []
  assert METRICS['top_level_modules'] == ['__init__', '__main__', 'errors', 'version']


def test_private_names_stay_in_their_module():
  """And those of TensorFlow in tf_patches; ruff finds private attributes of objects."""
  assert METRICS['tensorflow_private_names'] == []
  for path, tree in TREES.items():
    for name in imports(tree):
      is_private = name.rpartition('.')[2].startswith('_') and not name.endswith('__')
      assert not (is_private and name.startswith('estimator_train')), (path, name)
      is_public = name.startswith('tensorflow.compat.v1') or path.parts[0] == 'tf_patches'
      assert is_public or not name.startswith('tensorflow'), (path, name)


def test_modules_have_one_subject_and_workarounds_are_documented():
  page = (ROOT / 'docs' / 'reference' / 'workarounds.md').read_text(encoding='utf-8')
  for path in TREES:
    lines = (ROOT / 'estimator_train' / path).read_text(encoding='utf-8').splitlines()
    assert len(lines) <= MOST_LINES or path == Path('settings/flags.py'), path  # All flags.
    if path.parts[0] == 'tf_patches' and path.name != '__init__.py':
      assert '::: estimator_train.tf_patches.{}\n'.format(path.stem) in page


def test_imports_without_tensorflow():
  code = '''
import importlib, pkgutil, sys
for name in sys.argv[1:]:
  module = importlib.import_module('estimator_train.' + name)
  for found in pkgutil.iter_modules(getattr(module, '__path__', []), module.__name__ + '.'):
    importlib.import_module(found.name)
  assert not [found for found in sys.modules if found.startswith('tensorflow')], name
'''
  done = run_process(sys.executable, '-c', code, *WITHOUT_TENSORFLOW)
  assert done.returncode == 0, done.stderr
