#!/usr/bin/env python3
"""Measures what the tests find: changes one place of the package at a time, and runs the tests.

  python3 scripts/mutants.py [--seed=N] [--count=N] [--under=PATH] list
  python3 scripts/mutants.py [--seed=N] [--count=N] [--under=PATH] [--coverage=FILE]
      [--junit=FILE] [--results=FILE] run [PYTEST-ARGUMENT...]

`list` prints the mutants that a seed draws. `run` applies one after the other to a copy of this
checkout, runs pytest with the environment `.venv`, and stops at the first test that fails. The
tests must pass without a mutant. With `--coverage`, only the tests are run that executed the
changed line, and all given ones if none did; make the file with coverage 7:

  .venv/bin/python -m coverage run --source=estimator_train --data-file=FILE -m pytest tests
  # with `dynamic_context = test_function` in the section `[coverage:run]` of setup.cfg

`--junit`, a file that `pytest --junitxml` has written, makes the fastest tests run first.
`--results` keeps a line of JSON per mutant, so that an interrupted run can be resumed. The script
needs Python 3.8 or later.
"""

import argparse
import ast
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
NEGATED = {ast.Eq: '!=', ast.NotEq: '==', ast.Lt: '>=', ast.LtE: '>', ast.Gt: '<=', ast.GtE: '<',
           ast.In: 'not in', ast.NotIn: 'in', ast.Is: 'is not', ast.IsNot: 'is'}
SHIFTED = {ast.Lt: '<=', ast.LtE: '<', ast.Gt: '>=', ast.GtE: '>'}
SIGNS = {ast.Eq: '==', ast.NotEq: '!=', ast.Lt: '<', ast.LtE: '<=', ast.Gt: '>', ast.GtE: '>=',
         ast.In: 'in', ast.NotIn: 'not in', ast.Is: 'is', ast.IsNot: 'is not'}
LEFT_OUT = ('.venv*', '__pycache__', '.pytest_cache', 'runs', 'site')


def main():
  parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--seed', type=int, default=1)
  parser.add_argument('--count', type=int, default=120, help='mutants drawn from the package')
  parser.add_argument('--under', action='append', default=[], metavar='PATH',
                      help='of the drawn ones, only those whose file begins so; may be repeated')
  parser.add_argument('--coverage', metavar='FILE', help='which tests execute which lines')
  parser.add_argument('--junit', metavar='FILE', help='how long the tests take')
  parser.add_argument('--results', type=Path, metavar='FILE')
  parser.add_argument('--timeout_secs', type=float, default=900, metavar='SECS',
                      help='tests that take longer have found the mutant')
  parser.add_argument('command', choices=('list', 'run'))
  options, arguments = parser.parse_known_args()
  mutants = [mutant for mutant in draw(options.seed, options.count)
             if not options.under or mutant['file'].startswith(tuple(options.under))]
  if options.command == 'list':
    for mutant in mutants:
      print(describe(mutant))
    return
  run(mutants, options, arguments)


def draw(seed, count):
  """Returns mutants of random kinds at random places of the package, numbered from 0."""
  by_kind = {}
  for path in sorted((ROOT / 'estimator_train').rglob('*.py')):
    for mutant in mutants_of(path):
      by_kind.setdefault(mutant['kind'], []).append(mutant)
  randoms = random.Random(seed)
  for mutants in by_kind.values():
    randoms.shuffle(mutants)
  kinds = sorted(by_kind)
  return [dict(by_kind[kinds[number % len(kinds)]].pop(), number=number)
          for number in range(count)]


def mutants_of(path):
  """Yields the mutants of a file: the place, the kind, the text there, and the new text."""
  text = path.read_text(encoding='utf-8')
  lines = text.splitlines(keepends=True)
  tree = ast.parse(text)
  annotations = {id(node) for parent in ast.walk(tree)
                 for name in ('annotation', 'returns') if getattr(parent, name, None) is not None
                 for node in ast.walk(getattr(parent, name))}

  def make(kind, node, new, start=None, end=None):
    start = start or (node.lineno, node.col_offset)
    end = end or (node.end_lineno, node.end_col_offset)
    return {'file': str(path.relative_to(ROOT)), 'line': node.lineno, 'kind': kind,
            'start': start, 'end': end, 'old': text_between(lines, start, end), 'new': new}

  for node in ast.walk(tree):
    if id(node) in annotations:
      continue
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
      place = ((node.left.end_lineno, node.left.end_col_offset),
               (node.comparators[0].lineno, node.comparators[0].col_offset))
      between = text_between(lines, *place)
      sign = SIGNS[type(node.ops[0])]
      for kind, signs in (('comparison', NEGATED), ('boundary', SHIFTED)):
        if type(node.ops[0]) in signs and between.count(sign) == 1:
          yield make(kind, node, between.replace(sign, signs[type(node.ops[0])]), *place)
    elif isinstance(node, ast.BoolOp):
      place = ((node.values[0].end_lineno, node.values[0].end_col_offset),
               (node.values[1].lineno, node.values[1].col_offset))
      signs = ('and', 'or') if isinstance(node.op, ast.And) else ('or', 'and')
      between = text_between(lines, *place)
      if between.split() == [signs[0]] and len(node.values) == 2:
        yield make('boolean', node, between.replace(*signs), *place)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
      yield make('boolean', node, 'not not', (node.lineno, node.col_offset),
                 (node.lineno, node.col_offset + len('not')))
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
      yield make('constant', node, str(not node.value) if isinstance(node.value, bool)
                 else repr(node.value + 1))
    elif (isinstance(node, (ast.AugAssign, ast.Raise))
          or isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
      yield make('statement', node, 'pass')


def text_between(lines, start, end):
  """Returns the text from (line, byte) to (line, byte), as the columns of `ast` count bytes."""
  if start[0] == end[0]:
    return lines[start[0] - 1].encode()[start[1]:end[1]].decode()
  return ''.join([lines[start[0] - 1].encode()[start[1]:].decode()] + lines[start[0]:end[0] - 1]
                 + [lines[end[0] - 1].encode()[:end[1]].decode()])


def apply(mutant, checkout):
  """Changes the file of a mutant."""
  path = checkout / mutant['file']
  lines = path.read_text(encoding='utf-8').splitlines(keepends=True)
  (first, start), (last, end) = mutant['start'], mutant['end']
  head, tail = lines[first - 1].encode()[:start].decode(), lines[last - 1].encode()[end:].decode()
  changed = ''.join(lines[:first - 1]) + head + mutant['new'] + tail + ''.join(lines[last:])
  path.write_text(changed, encoding='utf-8')


def describe(mutant):
  def shorten(text):
    return ' '.join(text.split())[:60]

  return '{number:3d} {file}:{line} {kind}: {old!r} -> {new!r}'.format(
      **dict(mutant, old=shorten(mutant['old']), new=shorten(mutant['new'])))


def run(mutants, options, arguments):
  """Prints for each mutant the test that found it, or that it survived."""
  done = {}
  durations = read_durations(options.junit) if options.junit else {}
  if options.results and options.results.exists():
    done = {result['number']: result
            for result in map(json.loads, options.results.read_text().splitlines())}
  # Next to this checkout, so that tests find the same ../shared.
  checkout = Path(tempfile.mkdtemp(prefix='mutants-', dir=str(ROOT.parent)))
  try:
    checkout.rmdir()  # copytree makes it.
    shutil.copytree(str(ROOT), str(checkout), ignore=shutil.ignore_patterns(*LEFT_OUT))
    for mutant in mutants:
      if mutant['number'] in done:
        continue
      original = (checkout / mutant['file']).read_text(encoding='utf-8')
      tests = sorted(tests_of(mutant, options.coverage) or durations,
                     key=lambda test: durations.get(test, math.inf)) or arguments
      apply(mutant, checkout)
      began = time.monotonic()
      try:
        found_by = first_failure(checkout, tests, options.timeout_secs)
      finally:
        (checkout / mutant['file']).write_text(original, encoding='utf-8')
      result = dict(mutant, found_by=found_by, secs=round(time.monotonic() - began),
                    tests=len(tests))
      done[mutant['number']] = result
      print('{}: {}'.format(describe(mutant), found_by or 'SURVIVED'), flush=True)
      if options.results:
        with options.results.open('a') as file:
          file.write(json.dumps(result) + '\n')
  finally:
    shutil.rmtree(str(checkout), ignore_errors=True)
  chosen = [done[mutant['number']] for mutant in mutants]
  print('{} of {} found'.format(sum(bool(result['found_by']) for result in chosen), len(chosen)))


def tests_of(mutant, coverage):
  """Returns the names of the tests that executed the line, as coverage recorded their names."""
  if not coverage:
    return []
  with sqlite3.connect(coverage) as connection:
    rows = connection.execute(
        'select context.context, line_bits.numbits from line_bits '
        'join file on file.id = line_bits.file_id join context on context.id = context_id '
        'where file.path like ? and context.context != ""', ['%/' + mutant['file']]).fetchall()
  lines = range(mutant['start'][0], mutant['end'][0] + 1)
  names = {name for name, bits in rows
           for line in lines if len(bits) > line // 8 and bits[line // 8] >> line % 8 & 1}
  # A context is MODULE.FUNCTION; the module is the name of the file, which is unique.
  paths = {path.stem: path for path in (ROOT / 'tests').rglob('test_*.py')}
  found = {'{}::{}'.format(paths[module].relative_to(ROOT), function)
           for module, _, function in (name.rpartition('.') for name in names) if module in paths}
  return sorted(found)


def read_durations(path):
  """Returns the seconds that each test took, over all of its parameters."""
  durations = {}
  for case in ElementTree.parse(path).iter('testcase'):
    name = '{}.py::{}'.format(case.get('classname').replace('.', '/'),
                              case.get('name').partition('[')[0])
    durations[name] = durations.get(name, 0.) + float(case.get('time'))
  return durations


def first_failure(checkout, tests, timeout_secs):
  """Returns the first test that fails, or `None`."""
  environment = dict(os.environ, PYTHONDONTWRITEBYTECODE='1')
  process = subprocess.Popen(
      [str(ROOT / '.venv' / 'bin' / 'python'), '-m', 'pytest', '-p', 'no:cacheprovider', '-x', '-q',
       '--tb=no', '-rfE'] + tests, cwd=str(checkout), env=environment, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, universal_newlines=True, start_new_session=True)
  try:
    output, _ = process.communicate(timeout=timeout_secs)
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return 'timeout'
  if process.returncode == 0:
    return None
  failed = [line.split(' ', 1)[1].partition(' - ')[0] for line in output.splitlines()
            if line.startswith(('FAILED ', 'ERROR '))]
  if not failed and process.returncode not in (1, 2):
    sys.exit('error: pytest ended with code {}:\n{}'.format(process.returncode, output[-2000:]))
  return failed[0] if failed else 'collection'


if __name__ == '__main__':
  main()
