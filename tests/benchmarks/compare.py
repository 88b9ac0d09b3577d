"""Compares this package with its peers, for tests/benchmarks/run.sh.

  tests/benchmarks/run.sh {NAME... | --all} [--data_dir=DIR] [--train_pattern=PATTERN] [--pairs=5]
      [--output=benchmarks.json] [--quick] [--avx2]

NAME is one of comparisons.py. --all measures those in the table of docs/performance.md, writes the
results into its rows, and names the comparisons that have no row. The sides of one run in turn,
and what counts are the ratios of their medians, with the least and the greatest ratio of a pair
next to them. Absolute figures are context: of one machine, on one day. After each comparison the
output is written, and the same as Markdown next to it; the last line is the output as JSON.

--avx2 limits TensorFlow and PyTorch to AVX2, on a processor that has AVX-512. It is still another
processor than one without: its caches, its clock and the units behind the instructions differ.

--quick shows that all works, with tiny sizes, in one pair: its figures mean nothing.
"""

import argparse
import datetime
import json
import os
import sys
from typing import Any, Dict, List

import common
import environments
import pairs
from comparisons import COMPARISONS

from estimator_train.system import storage

DATA_DIR = str(common.ROOT / 'data' / 'fashion_mnist')
# TensorFlow's MKL-DNN obeys no variable, and is limited by the file in the folder AVX2_ONLY.
AVX2_ONLY = str(common.ROOT / 'tests' / 'benchmarks' / 'avx2_only')
AVX2_VARIABLES = {'ATEN_CPU_CAPABILITY': 'avx2', 'ONEDNN_MAX_CPU_ISA': 'AVX2',
                  'MKL_ENABLE_INSTRUCTIONS': 'AVX2'}
PAGE = common.ROOT / 'docs' / 'performance.md'
TABLE_HEADER = ('| comparison | first / second | ratio | medians | measured at |',
                '| --- | --- | --- | --- | --- |')
SAMPLE = str(common.ROOT / 'estimator_train' / 'data' / 'fashion_mnist_sample_files')


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(COMPARISONS))
  parser.add_argument('--all', action='store_true', help='measure the comparisons in '
                      'the table of docs/performance.md, and write the results into it')
  parser.add_argument('--data_dir', default=DATA_DIR, help='folder of the four gzipped idx files '
                      'of Fashion-MNIST (default: data/fashion_mnist)')
  parser.add_argument('--train_pattern', help='pattern of image files, quoted, in one folder a '
                      'class: some hundreds or more')
  parser.add_count('--pairs', 5, 'repetitions of each comparison')
  parser.add_argument('--quick', action='store_true', help='one pair of tiny sizes')
  parser.add_argument('--avx2', action='store_true',
                      help='limit TensorFlow and PyTorch to the instructions of AVX2')
  parser.add_argument('--output', default='benchmarks.json', help='default: benchmarks.json')
  parser.add_argument('--onednn', default=environments.python_of(common.ROOT / '.venv-onednn'),
                      help='interpreter with the oneDNN build (default: .venv-onednn\'s)')
  parser.add_argument('--torch', help='interpreter with PyTorch (default: .venv-torch\'s, which '
                      'is made when it is needed)')
  parser.add_count('--deadline_secs', 3600, 'seconds after which a process is killed')
  args = parser.parse_args()
  names = _check(parser, args)
  if args.avx2:  # For all children.
    os.environ.update(AVX2_VARIABLES, PYTHONPATH=os.pathsep.join(
        [AVX2_ONLY] + [path for path in (os.environ.get('PYTHONPATH'),) if path]))

  conditions = _conditions(args, names)
  result: Dict[str, Any] = {
      'benchmark': 'compare', 'machine': common.machine(), 'memory_mb': _memory_mb(),
      'date': datetime.date.today().isoformat(),
      'quick': args.quick, 'avx2': args.avx2, 'pairs': 1 if args.quick else args.pairs,
      'load_at_end': None,
      'versions': {build: environments.versions(python)
                   for build, python in conditions.pythons.items()},
      'comparisons': {}, 'failed': {}}
  for name in names:
    try:
      repetitions = pairs.measure(name, COMPARISONS[name], conditions, result['pairs'])
      result['comparisons'][name] = {
          'title': COMPARISONS[name].title, 'figures': repetitions,
          'ratios': [pairs.ratio_of(ratio, repetitions) for ratio in COMPARISONS[name].ratios]}
    except common.ChildFailed as error:
      common.log('error: {}: {}'.format(name, error))
      result['failed'][name] = str(error).splitlines()[0]
    result['load_at_end'] = round(os.getloadavg()[0], 2)
    storage.write_json(args.output, result)
    storage.write_text(os.path.splitext(args.output)[0] + '.md', markdown(result))
  if args.all and not (args.quick or args.avx2):
    storage.write_text(str(PAGE), page_with(result, PAGE.read_text(encoding='utf-8')))
  print(markdown(result))
  print(json.dumps(result))
  if result['failed']:
    sys.exit(1)


def _check(parser: common.Parser, args: Any) -> List[str]:
  """Returns the names of what to measure; ends the program where something for it is missing."""
  unknown = [name for name in args.names if name not in COMPARISONS]
  if unknown:
    parser.error('no such comparison: {}: choose from {}'.format(
        ', '.join(unknown), ', '.join(COMPARISONS)))
  if bool(args.names) == args.all:
    parser.error('what to measure is unclear: {}: give NAME... or --all'.format(
        'both NAME and --all' if args.all else 'neither NAME nor --all'))
  names = args.names or _on_page()
  if args.all:
    common.log('{} are left out: docs/performance.md has no row of them'.format(
        ', '.join(name for name in COMPARISONS if name not in names)))
  if not args.train_pattern:
    want = [name for name in names if 'images' in COMPARISONS[name].needs]
    if want and args.names:
      parser.error('image files are needed: {} without --train_pattern: give it'.format(
          ', '.join(want)))
    for name in want:
      common.log('{} is left out: it needs --train_pattern'.format(name))
    names = [name for name in names if name not in want]
  try:
    args.data_dir = common.data_dir(SAMPLE if args.quick else args.data_dir)
  except argparse.ArgumentTypeError as error:
    parser.error(str(error))
  return names


def _conditions(args: Any, names: List[str]) -> pairs.Conditions:
  needs = {need for name in names for need in COMPARISONS[name].needs}
  pythons = {'stock': sys.executable}
  if 'onednn' in needs:
    pythons['onednn'] = args.onednn
  if 'torch' in needs:
    pythons['torch'] = args.torch or environments.ensure_torch(args.deadline_secs)
  if 'keras3' in needs:
    pythons['keras3'] = environments.ensure_clients()
  pattern = args.train_pattern and os.path.abspath(args.train_pattern)
  return pairs.Conditions(pythons, args.data_dir, pattern, args.quick, args.deadline_secs)


def _memory_mb() -> int:
  return round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e6)


def markdown(result: Dict[str, Any]) -> str:
  """Returns the result as a page: the conditions, the ratios, and the figures behind them."""
  parts = ['{}; memory {:,} MB; load at the end {}; {} pair(s) in turn, ratios of medians (least '
           'to greatest of a pair)'.format(common.machine_line(result['machine']),
                                           result['memory_mb'], result['load_at_end'],
                                           result['pairs'])]
  if result['avx2']:
    parts.append('Both libraries limited to the instructions of AVX2 (--avx2).')
  if result['quick']:
    parts.append('Of --quick, whose sizes are tiny: NO MEASUREMENT.')
  parts.append('\n'.join('- {}: {}'.format(build, ', '.join(
      '{} {}'.format(*each) for each in found.items()))
                         for build, found in result['versions'].items()))
  parts.append('\n'.join([*TABLE_HEADER, *(
      row for name in result['comparisons'] for row in table_rows(result, name))]))
  for name, found in result['comparisons'].items():
    parts.append('## {}\n\n{}'.format(name, found['title']))
    parts.append(common.markdown_table(['side', 'figure', 'median', 'least to greatest'],
                                       pairs.figure_rows(found['figures'])))
  for name, error in result['failed'].items():
    parts.append('## {}\n\nFailed: {}'.format(name, error))
  return '\n\n'.join(parts) + '\n'


def table_rows(result: Dict[str, Any], name: str) -> List[str]:
  """Returns the rows of a comparison, in benchmarks.md and in docs/performance.md."""
  machine = result['machine']
  measured = '{}, {}, {}'.format(machine['commit'][:8], result['date'], machine['instructions'])
  return ['| {} |'.format(' | '.join(['`{}`'.format(name), *cells, measured]))
          for cells in pairs.ratio_rows(result['comparisons'][name]['ratios'])]


def page_with(result: Dict[str, Any], page: str) -> str:
  """Returns docs/performance.md with the measured rows in place of those of the same ratios."""
  before, header, rest = page.partition('\n'.join(TABLE_HEADER) + '\n')
  rows, end, after = rest.partition('\n\n')
  measured = {_ratio_of(row): row for name in result['comparisons']
              for row in table_rows(result, name)}
  return ''.join([before, header, '\n'.join(
      measured.get(_ratio_of(row), row) for row in rows.splitlines()), end, after])


def _on_page() -> List[str]:
  page = PAGE.read_text(encoding='utf-8')
  return [name for name in COMPARISONS if '\n| `{}` |'.format(name) in page]


def _ratio_of(row: str) -> str:
  """Returns the first two cells of a row: the comparison, and the title of the ratio."""
  return row.rsplit(' | ', 3)[0]


if __name__ == '__main__':
  common.exit_with(main)
