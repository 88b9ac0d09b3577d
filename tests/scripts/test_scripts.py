"""The scripts that measure the code and the tests, on packages of a few lines."""

import json
import subprocess
import sys
import textwrap

import pytest
from conftest import ROOT, load_script

code_metrics = load_script('code_metrics')
CHECK_TERMS = ROOT / 'scripts' / 'check_terms.py'


def check_terms(*paths):
  done = subprocess.run([sys.executable, str(CHECK_TERMS), *map(str, paths)], timeout=120,
                        stdout=subprocess.PIPE, universal_newlines=True)
  return done.returncode, done.stdout


def test_terms_that_the_project_does_not_use(tmp_path):
  texts = (('the run goes on from step 5', 'resume'), ('it tells why', 'log, print'),
           ('told_as = 1', 'log, print'), ('class Share:', 'Shard'), ('a round of x', 'epoch'),
           ('made-up images', 'synthetic'), ('passed_over = []', 'skip'))
  path = tmp_path / 'x.md'
  path.write_text(''.join(text + '\n' for text, _ in texts))
  code, out = check_terms(path)
  assert code == 1
  for number, (line, (_, term)) in enumerate(zip(out.splitlines(), texts), 1):
    assert line.startswith('{}:{}: '.format(path, number)) and term in line
  path.write_text('round(1.5)\nrounding, shared, share, intelligent, offset\n')
  assert check_terms(path) == check_terms() == (0, '')  # Nor has the project any.


# Three lines of a docstring; the lines of code but for the first are those of the body.
FUNCTION = "@decorated\ndef f():\n  '''Text.\n  text\n  '''\n"
NAMES = '''
import numpy
import tensorflow.compat.v1 as tf
from tensorflow.python.keras import backend
from tensorflow_estimator.python.estimator import estimator
from tensorflow.python_io import tf_record_iterator
tf.train._private(tf.__version__, tf.train.public, numpy._private)
def f(self, tensor):
  self._own = backend._SESSION = tensor._keras_shape
'''
MODULES = {
    '__init__': '',
    '__main__': 'from estimator_train import top, __version__\n',
    'top': '''
        """A docstring
        of two lines."""
        # A comment.
        TEXT = """code, on two lines

        """  # A blank one between them.
        def late():
          from estimator_train.middle.inner import name
        ''',
    'middle/__init__': '', 'middle/inner': 'from . import other\nfrom .. import bottom\n',
    'middle/other': 'import numpy\n', 'bottom': 'import estimator_train\n',
    'a': 'import estimator_train.b', 'b': 'from estimator_train import a',
    'functions': ''.join(FUNCTION + '  x = 1\n' * lines for lines in (36, 37, 40)) + (
        'def f(self, a, b, *c, d=1, e=2, f=3, **g): pass\ndef g(self, a, b, c, d, e, f): pass\n'),
    'classes': 'class C:\n' + ''.join('  f{}: int\n'.format(index) for index in range(6)) + (
        '  def __init__(self):\n    self.a, (self.b, self.c) = self.d = 1, (2, 3)\n'
        '    self.a = self.f0 = other.x = self.a\n  def g(self):\n    self.e += 1\n'),
    'names': NAMES, 'tf_patches/names': NAMES,
}


def test_code_metrics(tmp_path, capsys):
  for name, text in MODULES.items():
    path = tmp_path / 'estimator_train' / (name + '.py')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
  for path in ('tests/test_a.py', 'tests/benchmarks/b.py'):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text('"""Nothing."""\nx = 1\n')
  code_metrics.main([str(tmp_path), '--json', '--list'])
  text, result = capsys.readouterr().out.rstrip('\n').rsplit('\n', 1)
  assert 'import cycles                      a <> b\n' in text
  found = json.loads(result)
  assert found['code_lines']['tests'] == found['code_lines']['benchmarks'] == 1
  assert found['modules'] == len(MODULES)
  assert found['top_level_packages'] == ['middle', 'tf_patches']
  assert found['longest_import_path'] == ['__main__', 'top', 'middle', 'bottom']
  assert (found['layers'], found['import_cycles']) == (4, [['a', 'b']])
  place = 'estimator_train/functions.py:'
  assert found['functions_over_40_lines'] == [place + '43 f: 41 lines', place + '85 f: 44 lines']
  assert found['functions_over_40_code_lines'] == [place + '85 f: 41 code lines']
  assert found['functions_over_6_parameters'] == [place + '129 f: 7 parameters']
  assert found['classes_over_10_attributes'] == ['estimator_train/classes.py:1 C: 11 attributes']
  assert {name.split()[1] for name in found['tensorflow_private_names']} == {
      'backend._SESSION', 'tensorflow.python.keras.backend',
      'tensorflow_estimator.python.estimator.estimator', 'tf.train._private'}
  assert all('estimator_train/names.py:' in name for name in found['tensorflow_private_names'])
  with pytest.raises(SystemExit, match='2'):
    code_metrics.main([str(tmp_path / 'tests')])
  assert 'error: CHECKOUT must contain estimator_train/: got ' in capsys.readouterr().err
