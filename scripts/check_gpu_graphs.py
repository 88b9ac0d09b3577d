"""Checks the graphs of runs on GPUs, on a machine without GPUs.

  scripts/check_gpu_graphs [--all] [--cards=V100,...] [--json=FILE] [NAME...]

Builds the complete graph of each run as on a host with GPUs. TensorFlow's own master places it on
GPUs that stand-ins list, and TensorFlow's own optimizer optimizes it for cards that it takes from a
list. No step is executed. For each run, prints a row of a Markdown table:

- soft-placed: operations for which a GPU was requested, but which have no GPU kernel for their
  types. Soft placement moves them to the CPU. In brackets: those that only summaries need
- batch in: the bytes of a batch that a replica receives; `prefetched` if the input pipeline sends
  them to the GPU before the step
- other in, out, between: the number and the bytes of the other tensors that cross in a step from
  the host to all GPUs, from all GPUs to the host, and from a GPU to another one
- all-reduce: the operations and the bytes that each replica sums with the others

With --cards, it then prints a table of the optimized graphs of runs with one GPU, for each card:

- float16: the share of the multiplications in convolutions and matrix products in float16
- casts, transposes: the number of these operations
- memory: the peak of a step, estimated by TensorFlow's optimizer. It does not contain the workspace
  of cuDNN
- time at peak: the sum over all operations of the larger of the time for their multiplications at
  the card's peak rate and the time for their inputs and outputs at its peak bandwidth. Real steps
  take longer, except where cuDNN requires fewer multiplications (Winograd algorithms). Transfers
  and all-reduces are not included. Operations in a loop count once
- examples/s at peak: the examples per second at this time, on one GPU

The exit code is 1 if a run has a fault, which the last column names. NAME selects runs whose name
contains it; without NAME and --all, a short list is checked. Each run has its own process.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # Precedes an installed package.
sys.path.append(str(ROOT / 'scripts'))

TIMEOUT_SECS = 1800
# In training, a tensor of more bytes is no scalar and no shape. Other modes also copy the outputs
# and the classes of each example to the host.
MAX_SMALL_BYTES, MAX_BYTES_OF_EXAMPLE = 1024, 64
MAX_BYTES_OF_CONSTANTS = 10 ** 7  # In the optimized graph, which must have less than 2 GB.
MIN_FLOAT16_SHARE = .95
# Faults that are known, as (part of the name of a run, part of the fault, reason).
KNOWN = (
    ('table', 'without GPU kernel', 'TensorFlow has none for texts and sparse embeddings'),
    ('table', 'of unknown size', 'the embeddings, which are on the CPU'),
    ('central_storage', 'to the host', 'the strategy keeps the variables on the CPU'),
    ('central_storage', 'from the host', 'the strategy keeps the variables on the CPU'),
    ('mnist_8gpu.flags', 'to the host', 'central_storage keeps the variables on the CPU'),
    ('mnist_8gpu.flags', 'from the host', 'central_storage keeps the variables on the CPU'),
    ('parameter_server', 'to the host', 'the parameter server keeps the variables on its CPU'),
    ('parameter_server', 'from the host', 'the parameter server keeps the variables on its CPU'),
)


def main(argv):
  parser = argparse.ArgumentParser(
      prog='scripts/check_gpu_graphs', description=__doc__, allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('names', nargs='*', metavar='NAME')
  parser.add_argument('--all', action='store_true')
  parser.add_argument('--cards', default='')
  parser.add_argument('--json', metavar='FILE', help='also write all figures to a file')
  parser.add_argument('--predictions', metavar='FILE',
                      help='also write the examples/s at peak, for scripts/verify_gpu')
  parser.add_argument('--run', metavar='NAME', help=argparse.SUPPRESS)
  options = parser.parse_args(argv)
  cards = [card for card in options.cards.split(',') if card]
  if options.run:
    from gpu_graphs import checking
    print(json.dumps(checking.check(options.run, cards)))
    return 0
  results = []
  for name in select(options.names, options.all):
    results.append(check_in_child(name, cards))
    if options.json:
      Path(options.json).write_text(json.dumps(results, indent=1, sort_keys=True) + '\n',
                                    encoding='utf-8')
  if options.predictions:
    Path(options.predictions).write_text(json.dumps(
        {result['name']: {card: round(examples_per_sec_at_peak(result, card), 1)
                          for card in result['cards']}
         for result in results if result.get('cards')}, indent=1, sort_keys=True) + '\n',
                                         encoding='utf-8')
  print('\n'.join(placement_table(results)))
  if cards:
    print('\n' + '\n'.join(cards_table(results)))
  return int(any(has_fault(result) for result in results))


def select(names, all_of_them):
  """Returns the names of the configurations that the arguments select."""
  from gpu_graphs import configurations
  found = configurations.all_configurations()
  if names:
    return [name for name in found if any(part in name for part in names)]
  return [name for name, each in found.items() if all_of_them or each.is_default]


def check_in_child(name, cards):
  """Returns the result of checking.check from a process of its own, or `{'name', 'error'}`."""
  print(name, file=sys.stderr, flush=True)
  environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3', CUDA_VISIBLE_DEVICES='')
  try:
    child = subprocess.run(
        [sys.executable, __file__, '--run=' + name, '--cards=' + ','.join(cards)], env=environment,
        timeout=TIMEOUT_SECS, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True)
  except subprocess.TimeoutExpired:
    return {'name': name, 'error': 'not finished after {} s'.format(TIMEOUT_SECS)}
  if child.returncode:
    *_, error = ['exit code {}'.format(child.returncode), *child.stderr.strip().splitlines()]
    return {'name': name, 'error': error}
  return json.loads(child.stdout.splitlines()[-1])


def find_faults(result):
  """Yields the faults of a result of checking.check, each with the reason why it is known or None.

  A large transfer is a fault unless it is the batch.
  """
  for fault in _all_faults(result):
    yield fault, next((reason for name, part, reason in KNOWN
                       if name in result['name'] and part in fault), None)


def _all_faults(result):
  if 'error' in result:
    yield result['error']
    return
  if result['soft_placed']['usual']:
    yield 'without GPU kernel: ' + _counts(result['soft_placed']['usual'])
  for kind, text in (('in', 'from the host'), ('out', 'to the host')):
    limit = MAX_SMALL_BYTES if result['trains'] else MAX_BYTES_OF_EXAMPLE * result['batch_size']
    large = [size for size in result['transfers'][kind]['sizes'] if size > limit]
    if large:
      yield '{} tensors {} of {}'.format(len(large), text, format_bytes(sum(large)))
    if result['transfers'][kind]['unknown']:
      yield '{} tensors {} of unknown size'.format(result['transfers'][kind]['unknown'], text)
  yield from result['conflicts']
  if result['constants'] > MAX_BYTES_OF_CONSTANTS:
    yield 'constants of ' + format_bytes(result['constants'])
  if result['needs_all_reduce'] and not result['all_reduces']:
    yield 'no all-reduce'
  for card, figures in result['cards'].items():
    if figures['needs_float16'] and figures['float16_share'] < MIN_FLOAT16_SHARE:
      yield 'float16 on {}: {:.0%}'.format(card, figures['float16_share'])


def has_fault(result):
  return any(reason is None for _, reason in find_faults(result))


def placement_table(results):
  """Yields the lines of the table of placements."""
  yield ('| run | operations on GPUs | soft-placed | batch in | other in | out | between | '
         'all-reduce | faults |')
  yield '|---|---|---|---|---|---|---|---|---|'
  for result in results:
    faults = '; '.join(fault if reason is None else '({}: {})'.format(fault, reason)
                       for fault, reason in find_faults(result)) or 'none'
    if 'error' in result:
      yield '| {} | | | | | | | | {} |'.format(result['name'], faults)
      continue
    soft, transfers = result['soft_placed'], result['transfers']
    yield '| {} | {:,} of {:,} | {}{} | {} | {} | {} | {} | {} | {} |'.format(
        result['name'], result['operations_on_gpus'], result['operations'],
        sum(soft['usual'].values()), ' ({})'.format(_counts(soft['summaries']))
        if soft['summaries'] else '', result['batch'],
        *('{}: {}'.format(len(transfers[kind]['sizes']), format_bytes(
            sum(transfers[kind]['sizes']))) for kind in ('in', 'out', 'between')),
        '; '.join('{} x {}: {}'.format(len(sizes), kind, format_bytes(sum(sizes)))
                  for kind, sizes in sorted(result['all_reduces'].items())) or 'none', faults)


def cards_table(results):
  """Yields the lines of the table of predictions for cards."""
  yield ('| run | card | float16 | casts | transposes | memory | GFLOP | time at peak | '
         'examples/s at peak | '
         'in float32 |')
  yield '|---|---|---|---|---|---|---|---|---|---|'
  for result in results:
    for card, figures in result.get('cards', {}).items():
      yield '| {} | {} | {:.0%} | {} | {} | {} | {:,.1f} | {:.2f} ms | {:,.0f} | {} |'.format(
          result['name'], card, figures['float16_share'], figures['casts'], figures['transposes'],
          format_bytes(figures['memory']), figures['operations'] / 1e9,
          1000 * figures['secs_at_peak'], examples_per_sec_at_peak(result, card),
          _counts(figures['float32']) or 'nothing')


def examples_per_sec_at_peak(result, card):
  secs = result['cards'][card]['secs_at_peak']
  return result['batch_size'] / secs if secs else 0


def _counts(counts):
  return ', '.join('{} {}'.format(count, name) for name, count in sorted(counts.items()))


def format_bytes(count):
  """Returns a number of bytes as text, such as 1.5 MB."""
  for unit in ('B', 'kB', 'MB'):
    if count < 1000:
      return '{:.3g} {}'.format(count, unit)
    count /= 1000
  return '{:.3g} GB'.format(count)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
