"""The floors of the package: a module imports from floors below its own only."""

import ast
import subprocess
import sys

import pytest
from conftest import ROOT

# From the ground up; what shares a line is one floor, whose rooms do not know each other.
FLOORS = (
    ('errors', 'logs', 'network', 'start_up', 'tensorboard_server', 'tensorflow_variables',
     'timing', 'whole_files', 'workloads'),
    ('choices', 'flag_texts', 'learning_rate', 'own_code', 'signals'),
    ('experiments',),
    ('validation', 'flagfiles', 'child_runs', 'cluster'),
    ('settings', 'peers', 'local_tasks'),
    ('model_dir', 'threads'),
    ('datasets', 'disk_faults', 'run_lock'),
    ('inputs', 'models', 'sweep'),
    ('training', 'reports', 'machine'),
    ('exporting',),
    ('flags', 'modes'),
    ('__main__', 'api', 'local_cluster'),
    ('tensorboard_beside',),
)
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
WITHOUT_TENSORFLOW = ('settings', 'cluster', 'peers', 'model_dir', 'run_lock', 'flags', 'datasets',
                      'reports', 'machine', 'child_runs', 'sweep', 'local_cluster',
                      'tensorboard_beside', 'modes.doctor', 'modes.scaling', 'models.registry',
                      'threads')

MODULES = sorted(
    path.relative_to(ROOT) for path in (ROOT / 'estimator_train').rglob('*.py')
    if path.relative_to(ROOT).parts != ('estimator_train', '__init__.py'))


def own_imports(path):
  """Yields the dotted names of this package that a file imports."""
  for node in ast.walk(ast.parse((ROOT / path).read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names if name.name.startswith('estimator_train'))
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, '{}: relative import'.format(path)
      if node.module.startswith('estimator_train'):
        # `from estimator_train.room import module` and `from estimator_train.module import name`
        # look alike; the first two parts are what counts.
        yield from ('{}.{}'.format(node.module, name.name) for name in node.names)


@pytest.mark.parametrize('path', MODULES, ids=str)
def test_imports_go_down(path):
  room = path.with_suffix('').parts[1]
  for name in own_imports(path):
    if name == 'estimator_train.__version__':
      continue
    imported = name.split('.')[1]
    if imported == room and room != 'modes':
      continue
    # flags knows the names of models and data sets; modes may not know each other.
    assert LEVEL[imported] < LEVEL[room], '{} imports {}'.format(path, name)


def test_every_file_has_one_subject():
  lengths = {str(path): len((ROOT / path).read_text(encoding='utf-8').splitlines())
             for path in MODULES}
  assert {path: length for path, length in lengths.items() if length > 300} == {}


@pytest.mark.parametrize('room', WITHOUT_TENSORFLOW)
def test_imports_without_tensorflow(room):
  code = '''
import importlib, pkgutil, sys
module = importlib.import_module('estimator_train.{}')
for found in pkgutil.iter_modules(getattr(module, '__path__', []), module.__name__ + '.'):
  importlib.import_module(found.name)
assert not [name for name in sys.modules if name.startswith('tensorflow')], 'TensorFlow is there'
'''.format(room)
  subprocess.run([sys.executable, '-c', code], cwd=str(ROOT), check=True, timeout=60)
