"""scripts/code_metrics.py, on a package of a few lines."""

import importlib.util
import json
import textwrap

import pytest
from conftest import ROOT

SPEC = importlib.util.spec_from_file_location(
    'code_metrics', str(ROOT / 'scripts' / 'code_metrics.py'))
code_metrics = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(code_metrics)


@pytest.fixture
def checkout(tmp_path):
  """Writes modules and returns their checkout's metrics."""
  def measure(**modules):
    for name, text in dict({'__init__': ''}, **modules).items():
      path = tmp_path / 'estimator_train' / '{}.py'.format(name.replace('__of__', '/'))
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(textwrap.dedent(text))
    return code_metrics.measure(tmp_path)
  return measure


def test_code_lines_leave_out_docstrings_comments_and_blank_lines(checkout, tmp_path):
  for path, text in (('test_a.py', 'x = 1\n'), ('benchmarks/b.py', 'x = 1\ny = 2\n'),
                     ('scripts/test_c.py', '"""Nothing."""\n')):
    (tmp_path / 'tests' / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / 'tests' / path).write_text(text)
  metrics = checkout(first='''
      """A docstring
      of two lines."""
      # A comment.
      TEXT = """code, on two lines

      """  # A blank one between them.

      def function(
          argument):
        'A docstring.'
        return argument  # Code.
      ''')
  assert metrics['code_lines'] == {'package': 5, 'tests': 1, 'benchmarks': 2}


def test_modules_and_layers(checkout):
  metrics = checkout(
      __main__='from estimator_train import top, __version__\n',
      top='def late():\n  from estimator_train.middle.inner import name\n',
      middle__of____init__='',
      middle__of__inner='from . import other\nfrom .. import bottom\n',
      middle__of__other='import numpy\n',
      bottom='import estimator_train\n')
  assert metrics['modules'] == 7
  assert metrics['top_level_modules'] == ['__init__', '__main__', 'bottom', 'top']
  assert metrics['top_level_packages'] == ['middle']
  assert metrics['longest_import_path'] == ['__main__', 'top', 'middle', 'bottom']
  assert (metrics['layers'], metrics['import_cycles']) == (4, [])


def test_a_cycle_is_one_layer(checkout):
  metrics = checkout(top='import estimator_train.a', a='import estimator_train.b',
                     b='import estimator_train.c', c='from estimator_train import a, low', low='')
  assert metrics['import_cycles'] == [['a', 'b', 'c']]
  assert metrics['longest_import_path'] == ['top', 'a', 'low']


def function_of(lines, docstring_lines=0):
  docstring = ["  '''Text."] + ['  text'] * (docstring_lines - 2) + ["  '''"]
  body = (docstring if docstring_lines else []) + ['  x = 1'] * (lines - 1 - docstring_lines)
  return '\n'.join(['@decorated', 'def f():', *body, '', '# After it.', '']) + '\n'


@pytest.mark.parametrize('text, in_lines, in_code', [
    (function_of(40), 0, 0), (function_of(41), 1, 1), (function_of(42, 3), 1, 0),
    ('def f(): return 1\n' * 50, 0, 0),
    ('class A:\n  async def f(self): return (\n' + '    1 +\n' * 40 + '    1)\n', 1, 1),
    ('def outer():\n' + '  def inner():\n' + '    x = 1\n' * 40 + '  return inner\n', 2, 2)])
def test_long_functions(checkout, text, in_lines, in_code):
  metrics = checkout(module=text)
  assert len(metrics['functions_over_40_lines']) == in_lines
  assert len(metrics['functions_over_40_code_lines']) == in_code


@pytest.mark.parametrize('parameters, count', [
    ('a, b, c, d, e, f', 0), ('self, a, b, c, d, e, f', 0), ('a, b, c, d, e, f, g', 7),
    ('self, a, b, *c, d=1, e=2, f=3, **g', 7), ('cls, a, b, *, d, e, f, g', 0)])
def test_parameters(checkout, parameters, count):
  found = checkout(module='def f({}): pass\n'.format(parameters))['functions_over_6_parameters']
  assert found == (['estimator_train/module.py:1 f: 7 parameters'] if count else [])


def test_attributes(checkout):
  fields = ''.join('  field_{}: int\n'.format(index) for index in range(6))
  assigned = '''\
  def __init__(self):
    self.a, (self.b, self.c) = self.d = 1, (2, 3)
    self.a = 5
    self.field_0 = other.x = self.a
    class Inner:
      def f(self):
        self.inner = 1
'''
  ten = 'class C:\n' + fields + assigned
  assert checkout(module=ten)['classes_over_10_attributes'] == []
  assert checkout(module=ten + '  def g(self):\n    self.e += 1\n')[
      'classes_over_10_attributes'] == ['estimator_train/module.py:1 C: 11 attributes']


PRIVATE = '''
import numpy
import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend
import tensorflow_core._api as api
from tensorflow_estimator.python.estimator import estimator, run_config
from tensorflow.python_io import tf_record_iterator
tf.train._private(tf.__version__, tf.train.public, numpy._private)
def f(self, tensor):
  self._own = backend._SESSION = tensor._keras_shape
'''


def test_private_names_of_tensorflow(checkout):
  found = checkout(module=PRIVATE, tf_patches__of__saver=PRIVATE)['tensorflow_private_names']
  assert sorted(name.split()[1] for name in found) == [
      'backend._SESSION', 'tensorflow.python.keras.backend', 'tensorflow_core._api',
      'tensorflow_estimator.python.estimator.estimator',
      'tensorflow_estimator.python.estimator.run_config', 'tf.train._private']
  assert all(name.startswith('estimator_train/module.py:') for name in found)


def test_program(checkout, tmp_path, capsys):
  metrics = checkout(a='import estimator_train.b', b='import estimator_train.a')
  code_metrics.main([str(tmp_path)])
  assert 'import cycles                      a <> b\n' in capsys.readouterr().out
  code_metrics.main([str(tmp_path), '--json', '--list'])
  text, result = capsys.readouterr().out.rstrip('\n').rsplit('\n', 1)
  assert json.loads(result) == metrics
  assert '\n    __init__\n    a\n    b\n' in text


def test_a_folder_that_is_no_checkout(tmp_path, capsys):
  with pytest.raises(SystemExit) as ended:
    code_metrics.main([str(tmp_path)])
  assert ended.value.code == 2
  assert 'error: CHECKOUT must contain estimator_train/: got ' in capsys.readouterr().err
