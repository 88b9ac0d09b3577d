"""A module imports from its own package and from layers below only, and files form no circle."""

import sys

from conftest import ROOT, load_script, run_process

# From the bottom up; packages that share a layer do not import each other.
LAYERS = (
  ('errors', 'version'),
  ('tf_patches',),
  ('system',),
  ('settings',),
  ('distribution', 'run_dir'),
  ('checkpoints', 'data', 'launcher', 'reports'),
  ('model',),
  ('training',),
  ('exporting',),
  ('modes',),
  ('library',),
  ('__main__',),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
WITHOUT_TENSORFLOW = ('system', 'settings', 'run_dir', 'reports', 'launcher',
                      'modes.doctor', 'modes.scaling', 'data.datasets', 'distribution.rendezvous')

code_metrics = load_script('code_metrics')
METRICS = code_metrics.measure(ROOT)
FILES = code_metrics.read_files(ROOT, 'estimator_train')


def test_imports_go_down():
  graph = code_metrics.import_graph(FILES)
  assert set(graph) == {*LEVEL, '__init__'}
  for package, level in LEVEL.items():
    for target in graph[package]:
      assert LEVEL[target] < level, '{} imports {}'.format(package, target)
  for file in FILES:
    if file.path.startswith('estimator_train/modes/'):  # Modes do not know each other.
      own = '.'.join(code_metrics.name_of(file).split('.')[:3]) + '.'
      for name in code_metrics.imported_names(file):
        assert not name.startswith('estimator_train.modes') or name.startswith(
            (own, 'estimator_train.modes.parts.')), file.path
  assert METRICS['import_cycles'] == []
  assert METRICS['top_level_modules'] == ['__init__', '__main__', 'errors', 'version']


def test_no_circles_inside_packages():
  """Imports in functions and for type checks count, too."""
  assert METRICS['circles_between_files'] == []
  assert METRICS['imports_upwards_inside_packages'] == []


def test_circles_are_found():
  files = [code_metrics.File('estimator_train/{}.py'.format(path), text) for path, text in (
    ('run/__init__', ''), ('run/hooks/__init__', 'from estimator_train.run import model'),
    ('run/model', 'def f():\n  from estimator_train.run.hooks import saving'),
    ('run/hooks/saving', 'from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n'
                         '  from estimator_train.run.hooks.timer import Timer'),
    ('run/hooks/timer', 'from estimator_train.run.hooks import saving'))]
  imports = code_metrics.module_imports(files)
  assert code_metrics.find_circles(imports) == [
    ('estimator_train.run.hooks.saving', 'estimator_train.run.hooks.timer')]
  assert code_metrics.upward_imports(imports) == [
    'estimator_train.run.hooks > estimator_train.run.model']


def test_private_names_stay_in_their_module():
  """And those of TensorFlow in tf_patches; ruff finds private attributes of objects."""
  assert METRICS['tensorflow_private_names'] == []
  for file in FILES:
    for name in code_metrics.imported_names(file):
      is_private = code_metrics.is_private(name.rpartition('.')[2])
      assert not (is_private and name.startswith('estimator_train')), (file.path, name)
      is_public = name.startswith('tensorflow.compat.v1') or '/tf_patches/' in file.path
      assert is_public or not name.startswith('tensorflow'), (file.path, name)


def test_workarounds_are_documented():
  page = (ROOT / 'docs' / 'reference' / 'workarounds.md').read_text(encoding='utf-8')
  for path in (ROOT / 'estimator_train' / 'tf_patches').glob('*.py'):
    if path.name != '__init__.py':
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
