"""Measures the size and the structure of a checkout.

  PYTHON scripts/code_metrics.py [CHECKOUT] [--json] [--list]

The files are only parsed, not imported, so any commit of the project can be measured, with Python
3.6 or later. What is counted:

- code lines: all lines except docstrings, comments and blank lines
- docstring lines: the lines of statements that consist of strings only, with their blank lines
- functions, also methods and functions in functions; their code lines, without decorators
- private functions with one caller: functions and methods `_name` whose name the rest of their
  module uses once
- circles between files: groups of modules that import each other, directly or not; imports in
  functions and for TYPE_CHECKING count
- imports upwards: a module in a sub-package imports another part of the package around it, which
  imports the sub-package, directly or not
- places that make a source: calls of `make_source`, or of `source` of a split
- replacements of a class: calls of a function that assigns to `__class__` of one of its
  parameters. A function that passes two of its own parameters on to such a function is one itself;
  this call does not count
"""

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = 'estimator_train'
BENCHMARKS = 'tests/benchmarks'
PATCHES = 'tf_patches'  # The only package that may use TensorFlow's private names.
MAX_LINES, MAX_SHORT_LINES, MAX_PARAMETERS, MAX_ATTRIBUTES = 40, 3, 6, 10
TENSORFLOW = ('tensorflow', 'tensorflow_core', 'tensorflow_estimator')
TENSORFLOW_INTERNAL = ('tensorflow.python', 'tensorflow_core', 'tensorflow_estimator.python')
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
ROOT = Path(__file__).resolve().parents[1]


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('checkout', nargs='?', type=Path, default=ROOT)
  parser.add_argument('--json', action='store_true',
                      help='also print all figures as JSON, on the last line')
  parser.add_argument('--list', action='store_true',
                      help='list the functions, classes and modules that are counted')
  options = parser.parse_args(arguments)
  if not (options.checkout / PACKAGE).is_dir():
    parser.error('CHECKOUT must contain {}/: got {}: give the root of a checkout'.format(
        PACKAGE, options.checkout))
  metrics = measure(options.checkout)
  print(describe(metrics, options.list))
  if options.json:
    print(json.dumps(metrics, sort_keys=True))


def measure(checkout):
  """Returns the metrics of a checkout as plain data."""
  package = read_files(checkout, PACKAGE)
  tests = read_files(checkout, 'tests')
  benchmarks = [file for file in tests if file.path.startswith(BENCHMARKS + '/')]
  graph = import_graph(package)
  imports = module_imports(package)
  folders = {name_of(file) for file in package if file.path.endswith('/__init__.py')}
  imports_of_files = {(source, target) for source, target in imports if target not in folders}
  path, cycles = longest_path(graph)
  return {
      'code_lines': {
          'package': sum(len(file.code_lines) for file in package),
          'tests': sum(len(file.code_lines) for file in tests if file not in benchmarks),
          'benchmarks': sum(len(file.code_lines) for file in benchmarks)},
      'docstring_lines': sum(len(file.docstring_lines) for file in package),
      'functions': sum(1 for file in package for _ in extents(file.tokens)),
      'functions_of_at_most_3_code_lines': collect(package, short_in_code),
      'private_functions_with_one_caller': collect(package, private_with_one_caller),
      'modules': len(package),
      'imports_between_modules': len(imports_of_files),
      'modules_with_one_importer': sorted(
          module for module, count in Counter(target for _, target in imports_of_files).items()
          if count == 1),
      'circles_between_files': [' <> '.join(circle) for circle in find_circles(imports)],
      'imports_upwards_inside_packages': upward_imports(imports),
      'run_dirs_made_outside_run_dir': collect(
          [file for file in package if not file.path.startswith(PACKAGE + '/run_dir/')],
          lambda file: calls_of(file, 'RunDir')),
      'uses_of_trains': collect(package, lambda file: [
          (node.lineno, '.trains') for node in ast.walk(file.tree)
          if getattr(node, 'attr', None) == 'trains']),
      'places_that_make_a_source': collect(
          package, lambda file: calls_of(file, 'make_source', 'source')),
      'replacements_of_a_class': replacements_of_a_class(package),
      'top_level_modules': sorted(name_of(file).split('.')[1] if '.' in name_of(file)
                                  else '__init__' for file in package
                                  if file.path.count('/') == 1),
      'top_level_packages': sorted({file.path.split('/')[1] for file in package
                                    if file.path.count('/') > 1}),
      'layers': len(path),
      'longest_import_path': path,
      'import_cycles': cycles,
      'functions_over_40_lines': collect(package, long_functions),
      'functions_over_40_code_lines': collect(package, long_in_code),
      'functions_over_6_parameters': collect(package, functions_with_many_parameters),
      'classes_over_10_attributes': collect(package, classes_with_many_attributes),
      'tensorflow_private_names': collect(
          [file for file in package if not file.path.startswith('{}/{}'.format(PACKAGE, PATCHES))],
          tensorflow_private_names)}


def describe(metrics, with_names=False):
  """Returns the metrics as text."""
  lines = []

  def add(title, value, names=()):
    lines.append('{:34} {}'.format(title, value))
    if with_names:
      lines.extend('    {}'.format(name) for name in names)

  for part in ('package', 'tests', 'benchmarks'):
    add('code lines, ' + part, metrics['code_lines'][part])
  for key in ('docstring_lines', 'functions'):
    add(key.replace('_', ' '), metrics[key])
  add('modules of the package', metrics['modules'])
  add('imports between modules', metrics['imports_between_modules'])
  add('modules with one importer', len(metrics['modules_with_one_importer']),
      metrics['modules_with_one_importer'])
  for key in ('top_level_modules', 'top_level_packages'):
    add(key.replace('_', ' ').replace('top level', 'top-level'), len(metrics[key]), metrics[key])
  add('layers', metrics['layers'], [' > '.join(metrics['longest_import_path'])])
  cycles = [' <> '.join(cycle) for cycle in metrics['import_cycles']]
  add('import cycles', '; '.join(cycles) or 0)
  for key in ('functions_of_at_most_3_code_lines', 'private_functions_with_one_caller',
              'circles_between_files', 'imports_upwards_inside_packages',
              'run_dirs_made_outside_run_dir', 'uses_of_trains', 'places_that_make_a_source',
              'replacements_of_a_class', 'functions_over_40_lines', 'functions_over_40_code_lines',
              'functions_over_6_parameters', 'classes_over_10_attributes',
              'tensorflow_private_names'):
    add(key.replace('_', ' ').replace('tensorflow', "TensorFlow's"), len(metrics[key]),
        metrics[key])
  return '\n'.join(lines)


def collect(files, find):
  """Returns `PATH:LINE WHAT` for each (line, what) that `find` yields from a file."""
  return ['{}:{} {}'.format(file.path, line, what) for file in files for line, what in find(file)]


class File:
  """A Python file: its tokens, its syntax tree, and the numbers of its lines by kind."""

  def __init__(self, path, text):
    self.path = path  # Relative to the checkout, with slashes.
    self.tree = ast.parse(text, path)
    self.tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    self.code_lines, self.docstring_lines = classify_lines(self.tokens, text.split('\n'))


def read_files(checkout, folder):
  return [File(path.relative_to(checkout).as_posix(), path.read_text(encoding='utf-8'))
          for path in sorted((checkout / folder).rglob('*.py'))]


def classify_lines(tokens, lines):
  """Returns the set of numbers of the code lines, and that of the docstring lines.

  The tokens are used because syntax trees lack the first line of a string before Python 3.8.
  """
  code, docstrings, statement = set(), set(), []
  for token in tokens:
    if token.type not in NO_CODE:
      statement.append(token)
    elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
      is_code = any(part.type != tokenize.STRING for part in statement)
      (code if is_code else docstrings).update(
          number for part in statement for number in range(part.start[0], part.end[0] + 1))
      statement = []
  return {number for number in code if lines[number - 1].strip()}, docstrings


# Imports.


def name_of(file):
  """Returns the dotted name of a file's module; of a package for its `__init__`."""
  parts = file.path[:-len('.py')].split('/')
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def import_graph(files):
  """Returns the top-level packages and modules that each of them imports.

  Imports in functions count. `__init__` is left out as a target, because importing any module
  imports it.
  """
  units = {file.path.split('/')[1].partition('.')[0] for file in files}
  graph = {unit: set() for unit in units}
  for file in files:
    unit = file.path.split('/')[1].partition('.')[0]
    for name in imported_names(file):
      parts = name.split('.')
      if parts[0] == PACKAGE and len(parts) > 1 and parts[1] in units - {unit, '__init__'}:
        graph[unit].add(parts[1])
  return graph


def module_imports(files):
  """Returns the pairs of a module and a module or `__init__` that it imports."""
  modules = {name_of(file) for file in files}
  found = set()
  for file in files:
    for name in imported_names(file):
      target = name if name in modules else name.rpartition('.')[0]
      if target in modules - {name_of(file)}:
        found.add((name_of(file), target))
  return found


def imported_names(file):
  """Yields the dotted names of what a file imports."""
  package = name_of(file).split('.')
  if not file.path.endswith('/__init__.py'):
    package.pop()
  for node in ast.walk(file.tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = package[:len(package) - node.level + 1] if node.level else []
      base = base + ([node.module] if node.module else [])
      yield from ('.'.join(base + [alias.name]) for alias in node.names)


def longest_path(graph):
  """Returns the longest path along imports, top first, and the cycles.

  Modules that import each other form one layer, which the path lists by its first module.
  """
  group = group_by_circle(graph)
  paths = {}

  def path_from(members):
    if members not in paths:
      below = {group[target] for unit in members for target in graph[unit]} - {members}
      longest = max((path_from(other) for other in sorted(below)), key=len, default=[])
      paths[members] = [members[0]] + longest
    return paths[members]

  path = max((path_from(members) for members in sorted(set(group.values()))), key=len, default=[])
  return path, sorted(list(members) for members in set(group.values()) if len(members) > 1)


def group_by_circle(graph):
  """Returns for each unit the tuple of those in a circle with it; for others, of itself."""
  reached = {unit: reachable(graph, unit) for unit in graph}
  return {unit: tuple(sorted({unit} | {other for other in reached[unit]
                                       if unit in reached[other]})) for unit in graph}


def reachable(graph, start):
  found, waiting = set(), [start]
  while waiting:
    for target in graph[waiting.pop()] - found:
      found.add(target)
      waiting.append(target)
  return found


def graph_of(imports):
  graph = {}
  for source, target in imports:
    graph.setdefault(source, set()).add(target)
    graph.setdefault(target, set())
  return graph


def find_circles(imports):
  return sorted({group for group in group_by_circle(graph_of(imports)).values() if len(group) > 1})


def upward_imports(imports):
  """Returns `MODULE > MODULE` for each import upwards inside a package."""
  found = set()
  packages = {name.rpartition('.')[0] for pair in imports for name in pair} - {''}
  for package in packages:
    depth = package.count('.') + 2
    # The parts of the package are its modules, its sub-packages and its `__init__`.
    inside = {pair: tuple('.'.join(name.split('.')[:depth]) for name in pair) for pair in imports
              if all((name + '.').startswith(package + '.') for name in pair)}
    group = group_by_circle(graph_of(parts for parts in inside.values() if parts[0] != parts[1]))
    found.update('{} > {}'.format(*pair) for pair, parts in inside.items()
                 if parts[0] in packages - {package} and parts[0] != parts[1]
                 and group[parts[0]] == group[parts[1]])
  return sorted(found)


# Functions and classes. Each of the following functions yields lines and descriptions.


def extents(tokens):
  """Yields the name, the first and the last line of each function, without its decorators."""
  depth, at_start, last_line = 0, True, 0
  pending, begun = None, []  # A `def` whose body has not begun; functions whose body has begun.
  for index, token in enumerate(tokens):
    if token.type == tokenize.INDENT:
      depth += 1
      if pending:
        begun.append(pending + (depth,))
        pending = None
    elif token.type == tokenize.DEDENT:
      depth -= 1
      while begun and begun[-1][2] > depth:
        name, first, _ = begun.pop()
        yield name, first, last_line
    elif token.type == tokenize.NEWLINE:
      at_start = True
    elif token.type not in NO_CODE:
      if pending and at_start:  # The body is on the line of the `def`.
        yield pending + (last_line,)
        pending = None
      if at_start and token.string == 'def':
        pending = (tokens[index + 1].string, token.start[0])
      at_start = at_start and token.string == 'async'
      last_line = token.end[0]
  if pending:
    yield pending + (last_line,)


def long_functions(file):
  for name, first, last in sorted(extents(file.tokens), key=lambda extent: extent[1]):
    if last - first + 1 > MAX_LINES:
      yield first, '{}: {} lines'.format(name, last - first + 1)


def code_lines_of_functions(file):
  for name, first, last in sorted(extents(file.tokens), key=lambda extent: extent[1]):
    yield name, first, sum(first <= line <= last for line in file.code_lines)


def long_in_code(file):
  for name, first, count in code_lines_of_functions(file):
    if count > MAX_LINES:
      yield first, '{}: {} code lines'.format(name, count)


def short_in_code(file):
  for name, first, count in code_lines_of_functions(file):
    if count <= MAX_SHORT_LINES:
      yield first, name


def private_with_one_caller(file):
  nodes = list(ast.walk(file.tree))
  uses = Counter(getattr(node, 'id', None) or getattr(node, 'attr', None) for node in nodes)
  for node in nodes:
    if isinstance(node, FUNCTIONS) and is_private(node.name) and uses[node.name] == 1:
      yield node.lineno, node.name


def calls_of(file, *names):
  for node in ast.walk(file.tree):
    if isinstance(node, ast.Call) and called_name(node) in names:
      yield node.lineno, called_name(node)


def called_name(call):
  return getattr(call.func, 'id', None) or getattr(call.func, 'attr', None)


def replacements_of_a_class(files):
  """Returns `PATH:LINE FUNCTION` for each replacement of a class; see above."""
  functions = [node for file in files for node in ast.walk(file.tree)
               if isinstance(node, FUNCTIONS)]
  own = {id(function): {argument.arg for argument in [*function.args.args, function.args.vararg]
                        if argument} for function in functions}
  replacing = {function.name for function in functions for node in ast.walk(function)
               if getattr(node, 'attr', None) == '__class__' and isinstance(node.ctx, ast.Store)
               and getattr(node.value, 'id', None) in own[id(function)]}
  forwarded = set()
  for function in functions:
    for call in ast.walk(function):
      if isinstance(call, ast.Call) and called_name(call) in replacing and len(
          own[id(function)] & {getattr(part, 'id', None) for part in call.args}) > 1:
        forwarded.add(call)
        replacing.add(function.name)
  return ['{}:{} {}'.format(file.path, node.lineno, called_name(node)) for file in files
          for node in ast.walk(file.tree) if isinstance(node, ast.Call)
          and called_name(node) in replacing and node not in forwarded]


def functions_with_many_parameters(file):
  """Counts `*args` and `**kwargs` as one parameter each; `self` and `cls` do not count."""
  for node in ast.walk(file.tree):
    if isinstance(node, FUNCTIONS):
      arguments = node.args
      names = [argument.arg for argument in
               getattr(arguments, 'posonlyargs', []) + arguments.args]
      count = (len(names[1:] if names[:1] in (['self'], ['cls']) else names)
               + len(arguments.kwonlyargs) + bool(arguments.vararg) + bool(arguments.kwarg))
      if count > MAX_PARAMETERS:
        yield node.lineno, '{}: {} parameters'.format(node.name, count)


def classes_with_many_attributes(file):
  """Counts annotated class attributes and attributes assigned to `self`."""
  for node in ast.walk(file.tree):
    if isinstance(node, ast.ClassDef):
      names = {field.target.id for field in node.body
               if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)}
      names.update(attribute.attr for attribute in walk_class(node)
                   if isinstance(attribute, ast.Attribute) and isinstance(attribute.ctx, ast.Store)
                   and isinstance(attribute.value, ast.Name) and attribute.value.id == 'self')
      if len(names) > MAX_ATTRIBUTES:
        yield node.lineno, '{}: {} attributes'.format(node.name, len(names))


def walk_class(node):
  """Yields the nodes of a class, without those of nested classes."""
  for child in ast.iter_child_nodes(node):
    if not isinstance(child, ast.ClassDef):
      yield child
      yield from walk_class(child)


def tensorflow_private_names(file):
  """Yields imports of internal modules, and private names of imported modules.

  Each imported name counts. Private attributes of objects are not found, because the class of an
  object is not known.
  """
  aliases = set()
  for node in ast.walk(file.tree):
    if isinstance(node, (ast.Import, ast.ImportFrom)):
      module = getattr(node, 'module', None)
      for alias in node.names:
        name = '{}.{}'.format(module, alias.name) if module else alias.name
        if name.split('.')[0] not in TENSORFLOW or getattr(node, 'level', 0):
          continue
        aliases.add(alias.asname or (alias.name if module else name.split('.')[0]))
        if any((name + '.').startswith(internal + '.') for internal in TENSORFLOW_INTERNAL):
          yield node.lineno, name
  for node in ast.walk(file.tree):
    if isinstance(node, ast.Attribute) and is_private(node.attr):
      names = dotted(node)
      if names and names[0] in aliases:
        yield node.lineno, '.'.join(names)


def is_private(name):
  return name.startswith('_') and not name.endswith('__')


def dotted(node):
  """Returns the names in `a.b.c`, or None for anything else."""
  names = []
  while isinstance(node, ast.Attribute):
    names.append(node.attr)
    node = node.value
  return [node.id] + names[::-1] if isinstance(node, ast.Name) else None


if __name__ == '__main__':
  sys.exit(main())
