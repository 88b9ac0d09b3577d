"""The layers of the package: a module imports from its own package and from layers below only."""

import ast
import re
import subprocess
import sys

import pytest
from conftest import ROOT

# From the bottom up; packages that share a layer do not import each other.
LAYERS = (
  ('configs', 'errors', 'files', 'tf_patches'),
  ('cluster', 'process', 'settings'),
  ('distribution', 'flags', 'models', 'run_dir'),
  ('datasets', 'launcher'),
  ('doctor', 'inputs', 'reports'),
  ('training',),
  ('benchmarking', 'exporting'),
  ('modes',),
  ('__main__',),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
MOST_LAYERS = 10
WITHOUT_TENSORFLOW = ('files', 'process', 'settings', 'cluster', 'run_dir', 'flags', 'datasets',
                      'reports', 'doctor', 'launcher', 'configs', 'modes.doctor', 'modes.scaling',
                      'models.registry', 'distribution.threads', 'exporting.parity')

MODULES = sorted(
    path.relative_to(ROOT) for path in (ROOT / 'estimator_train').rglob('*.py')
    if path.relative_to(ROOT).parts != ('estimator_train', '__init__.py'))


def name_of(path):
  """Returns the dotted name of the module in a file."""
  parts = path.with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


NAMES = {name_of(path) for path in MODULES}


def tree_of(path):
  return ast.parse((ROOT / path).read_text(encoding='utf-8'))


def own_imports(path):
  """Yields the dotted names of this package that a file imports, of modules where they are."""
  for node in ast.walk(tree_of(path)):
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names if name.name.startswith('estimator_train'))
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, '{}: relative import'.format(path)
      if node.module.startswith('estimator_train'):
        yield from ('{}.{}'.format(node.module, name.name) for name in node.names)


def package_of(name):
  return name.split('.')[1]


def test_the_top_level_has_four_modules():
  modules = {path.name for path in (ROOT / 'estimator_train').glob('*.py')}
  assert modules == {'__init__.py', '__main__.py', 'errors.py', 'flags.py'}


def test_layers_are_few():
  assert len(LAYERS) <= MOST_LAYERS
  assert set(LEVEL) == {package_of(name) for name in NAMES}


@pytest.mark.parametrize('path', MODULES, ids=str)
def test_imports_go_down(path):
  own = package_of(name_of(path))
  for name in own_imports(path):
    if name == 'estimator_train.__version__' or package_of(name) == own != 'modes':
      continue
    # Modes do not know each other.
    assert LEVEL[package_of(name)] < LEVEL[own], '{} imports {}'.format(path, name)


def test_no_module_imports_itself_by_way_of_others():
  graph = {name_of(path): {name if name in NAMES else name.rpartition('.')[0]
                           for name in own_imports(path)} & NAMES for path in MODULES}
  done = set()

  def visit(name, above):
    assert name not in above, ' -> '.join(above[above.index(name):] + [name])
    if name not in done:
      for imported in sorted(graph[name]):
        visit(imported, above + [name])
      done.add(name)

  for name in sorted(graph):
    visit(name, [])


@pytest.mark.parametrize('path', MODULES, ids=str)
def test_private_names_stay_in_their_module(path):
  modules = {}
  for node in ast.walk(tree_of(path)):
    if isinstance(node, ast.ImportFrom) and node.module.startswith('estimator_train'):
      for name in node.names:
        full = '{}.{}'.format(node.module, name.name)
        assert not name.name.startswith('_') or name.name.startswith('__'), full
        if full in NAMES:
          modules[name.asname or name.name] = full
  for node in ast.walk(tree_of(path)):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      private = node.attr.startswith('_') and node.value.id in modules
      assert not private, '{}: {}.{}'.format(path, node.value.id, node.attr)


OUTSIDE_TF_PATCHES = [path for path in MODULES if 'tf_patches' not in path.parts]
# Of named tuples, whose methods begin with an underscore so that fields can have any name.
PUBLIC_ALL_THE_SAME = {'_asdict', '_field_defaults', '_field_types', '_fields', '_make', '_replace'}


def imported_modules(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from ('{}.{}'.format(node.module, name.name) for name in node.names)


def private_attributes(tree):
  """Yields where an attribute that begins with one underscore is of another object than self."""
  for node in ast.walk(tree):
    if (isinstance(node, ast.Attribute) and node.attr.startswith('_')
        and not node.attr.startswith('__') and node.attr not in PUBLIC_ALL_THE_SAME
        and not (isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls', 'os'))
        and not (isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
                 and node.value.func.id == 'super')):
      yield node


def own_names(cls, classes):
  """Returns what a class, and its bases in the same module, define or set."""
  names = {node.name for node in ast.walk(cls) if isinstance(node, ast.FunctionDef)}
  names |= {node.attr for node in ast.walk(cls)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
  names |= {node.id for node in ast.walk(cls)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
  for base in cls.bases:
    if isinstance(base, ast.Name) and base.id in classes:
      names |= own_names(classes[base.id], classes)
  return names


def inherited_private_attributes(tree):
  """Yields where a method uses a private attribute that a base of another module brings."""
  classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
  for cls in classes.values():
    names = own_names(cls, classes)
    for node in ast.walk(cls):
      if (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
          and node.value.id == 'self' and node.attr.startswith('_')
          and not node.attr.startswith('__') and node.attr not in PUBLIC_ALL_THE_SAME | names):
        yield node


@pytest.mark.parametrize('path', OUTSIDE_TF_PATCHES, ids=str)
def test_only_tf_patches_uses_private_names_of_tensorflow(path):
  tree = tree_of(path)
  for name in imported_modules(tree):
    if name.split('.')[0].startswith('tensorflow'):
      assert name.startswith('tensorflow.compat.v1'), '{} imports {}'.format(path, name)
  for found in (private_attributes, inherited_private_attributes):
    for node in found(tree):
      raise AssertionError('{}:{} uses {}'.format(path, node.lineno, node.attr))


@pytest.mark.parametrize('text', [
    'backend._SESSION', 'saver._last_checkpoints[0]', 'strategy.extended._cross_device_ops = 1',
    'class Hook(tf.train.CheckpointSaverHook):\n  def end(self):\n    self._timer.reset()'])
def test_private_names_are_found(text):
  tree = ast.parse(text)
  assert len(list(private_attributes(tree)) + list(inherited_private_attributes(tree))) == 1


def test_workarounds_are_documented():
  """The overview in `tf_patches/__init__.py` names each function and class, and its test."""
  overview = ast.get_docstring(tree_of('estimator_train/tf_patches/__init__.py'))
  for path in MODULES:
    if 'tf_patches' not in path.parts or path.name == '__init__.py':
      continue
    for node in tree_of(path).body:
      if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
        text = ast.get_docstring(node)
        is_explained = any(words in text for words in ('Defect: ', 'Not a workaround', 'See '))
        assert is_explained, node.name
        assert '`{}.{}`'.format(path.stem, node.name) in overview, node.name
  for test in re.findall(r'tests/[a-z_/]+\.py', overview):
    assert (ROOT / test).is_file(), test


def test_every_file_has_one_subject():
  lengths = {str(path): len((ROOT / path).read_text(encoding='utf-8').splitlines())
             for path in MODULES}
  assert {path: length for path, length in lengths.items() if length > 350} == {}


@pytest.mark.parametrize('package', WITHOUT_TENSORFLOW)
def test_imports_without_tensorflow(package):
  code = '''
import importlib, pkgutil, sys
module = importlib.import_module('estimator_train.{}')
for found in pkgutil.iter_modules(getattr(module, '__path__', []), module.__name__ + '.'):
  importlib.import_module(found.name)
assert not [name for name in sys.modules if name.startswith('tensorflow')], 'TensorFlow is there'
'''.format(package)
  subprocess.run([sys.executable, '-c', code], cwd=str(ROOT), check=True, timeout=60)
