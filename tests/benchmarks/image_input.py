"""The input of training from image files: cold, from caches, and with the frozen layers kept.

  python tests/benchmarks/image_input.py --train_pattern='DIR/train/*/*.jpeg'
      [--image_size=224,224] [--parts=cold,cache,features]

Three comparisons, in turn and in medians, in images a second:

- cold: the article's published input, this package's, and decoding alone, each over all files,
  which are dropped from the page cache before each pass;
- cache: the published input when all files are in the page cache, --cache=memory, and
  --cache=FOLDER, from the second epoch on;
- features: training steps of VGG16 with random weights, block 5 and the head training, in global
  batches of 16: the plain run on images from memory, --cache_features in memory, and what trains
  on made-up features. A part of the files is used, --feature_images: the rates do not depend on
  their number.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import common

from estimator_train.datasets import registry
from estimator_train.errors import UserError
from estimator_train.settings import Settings

PARTS = ('cold', 'cache', 'features')
BATCH_SIZE = 32
TRAINING_BATCH_SIZE = 16
TRAINABLE_LAYERS = 4

_MEASURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'image_input_measures.py')


class Comparison(NamedTuple):
  """A ratio of two rates and what it is to reach; None: it is only told."""
  name: str
  rate: str
  yardstick: str
  target: Any


COMPARISONS = {
    'cold': (Comparison('package_to_published', 'package', 'published', 2.5),
             Comparison('package_to_decoding', 'package', 'decoding', 0.8)),
    'cache': (Comparison('memory_to_published', 'memory', 'published', 50),
              Comparison('folder_to_published', 'folder', 'published', 50)),
    'features': (Comparison('features_to_head', 'features', 'head', 0.9),
                 Comparison('features_to_plain', 'features', 'plain', None)),
}


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_argument('--train_pattern', required=True, help='pattern of the image files, quoted')
  parser.add_argument('--image_size', type=_height_width, default=(224, 224),
                      help='height,width in pixels (default: 224,224)')
  parser.add_argument('--parts', type=_parts, default=PARTS,
                      help='which to measure (default: {})'.format(','.join(PARTS)))
  parser.add_count('--rounds', 5, 'passes or windows of each, cold and from caches')
  parser.add_count('--window_secs', 1, 'seconds of a window from caches, at least')
  parser.add_count('--training_rounds', 3, 'trainings of each')
  parser.add_count('--plain_steps', 4, 'steps that are timed of the plain run')
  parser.add_count('--feature_steps', 10, 'steps that are timed of the others')
  parser.add_count('--warmup_steps', 2, 'steps before these', minimum=2)
  parser.add_count('--feature_images', 128, 'files that are used of all', minimum=32)
  parser.add_count('--deadline_secs', 1800, 'seconds after which a process is killed')
  args = parser.parse_args()
  data, num_files = _data(parser, args)

  machine = common.machine()
  common.warm_up(args.deadline_secs)
  measured = {part: _MEASURE[part](args, data) for part in PARTS if part in args.parts}
  print('{}; {} files, {}x{}'.format(
      common.machine_line(machine), num_files, *args.image_size))
  for part, figures in measured.items():
    _report(part, figures)
  print()
  print(json.dumps({
      'benchmark': 'image_input', 'machine': machine, 'train_pattern': args.train_pattern,
      'files': num_files, 'image_size': args.image_size, 'measured': measured,
      'targets': {row.name: row.target for part in measured for row in COMPARISONS[part]
                  if row.target is not None},
      'reached': {name: reached for figures in measured.values()
                  for name, reached in figures['reached'].items()}}))


def _cold(args: Any, data: Dict[str, Any]) -> Dict[str, Any]:
  common.say('cold: {} passes of each'.format(args.rounds))
  figures = _run('cold', args, data=data, batch_size=BATCH_SIZE, rounds=args.rounds)
  figures['conditions'] = (
      'Cold: passes over all files, {} of the images timed, batch {}, the pages of all files '
      'dropped before each'.format(figures['images_timed'], BATCH_SIZE))
  share = figures['read_share']
  figures['notes'] = [
      'the kernel does not tell what came from storage' if share is None else
      'from storage came {:.2f} of the files\' bytes at least, in any pass{}'.format(
          share, '' if share >= 0.9 else ': NOT COLD')]
  return figures


def _cache(args: Any, data: Dict[str, Any]) -> Dict[str, Any]:
  common.say('cache: {} windows of each'.format(args.rounds))
  with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
    figures = _run('cache', args, data=data, batch_size=BATCH_SIZE, rounds=args.rounds,
                   window_secs=args.window_secs, folder=folder)
  figures['conditions'] = (
      'From the second epoch on: windows of {} s or more, batch {}, after an epoch that is not '
      'timed; the published input finds all files in the page cache, which is the kinder '
      'comparison'.format(args.window_secs, BATCH_SIZE))
  figures['notes'] = ['filling took {memory:.1f} s in memory, {folder:.1f} s in a folder'.format(
      **figures['fill_secs'])]
  return figures


def _features(args: Any, data: Dict[str, Any]) -> Dict[str, Any]:
  rates: Dict[str, List[float]] = {'plain': [], 'features': [], 'head': []}
  compute_secs: List[float] = []
  for number in range(1, args.training_rounds + 1):
    for name, found in rates.items():
      steps = args.plain_steps if name == 'plain' else args.feature_steps
      with tempfile.TemporaryDirectory(prefix='benchmark-') as model_dir:
        figures = _run(name, args, data=data, steps=steps, images=args.feature_images,
                       batch_size=TRAINING_BATCH_SIZE, warmup_steps=args.warmup_steps,
                       trainable_layers=TRAINABLE_LAYERS, model_dir=model_dir)
      found.append(figures['images_per_sec'])
      compute_secs += [figures['compute_secs']] if 'compute_secs' in figures else []
      common.say('features {}/{}: {}, {:.2f} images/sec'.format(
          number, args.training_rounds, name, found[-1]))
  secs = statistics.median(compute_secs)
  epochs = _epochs_to_pay(secs / args.feature_images, *(
      statistics.median(rates[name]) for name in ('plain', 'features')))
  return {
      'images_per_sec': rates, 'compute_secs': compute_secs, 'feature_images': args.feature_images,
      'epochs_to_pay': epochs if math.isfinite(epochs) else None,
      'conditions':
          'Frozen layers computed once: VGG16, {} layers and the head train, global batch {}, '
          'CPU; {} files; {} steps of the plain run and {} of the others, after {}'.format(
              TRAINABLE_LAYERS, TRAINING_BATCH_SIZE, args.feature_images, args.plain_steps,
              args.feature_steps, args.warmup_steps),
      'notes': [
          'computing the features took {:.1f} s (median), {:.1f} images/sec'.format(
              secs, args.feature_images / secs),
          '--cache_features never pays' if math.isinf(epochs) else
          '--cache_features pays from {:.2f} epochs on, whatever the number of images: in epoch {}'
          .format(epochs, math.ceil(epochs))]}


_MEASURE = {'cold': _cold, 'cache': _cache, 'features': _features}


def _epochs_to_pay(compute_secs: float, plain: float, features: float) -> float:
  """Returns k, where computing and k epochs on features take as long as k epochs of the plain run.

  Args:
    compute_secs: to compute the features of an image.
    plain: images a second of the plain run.
    features: images a second on features.
  """
  saved = 1 / plain - 1 / features
  return compute_secs / saved if saved > 0 else math.inf


def _run(part: str, args: Any, **arguments: Any) -> Dict[str, Any]:
  child = common.run_python([_MEASURES, part, json.dumps(arguments)], args.deadline_secs)
  return json.loads(child.lines[-1])


def _report(part: str, figures: Dict[str, Any]) -> None:
  """Prints a part, takes `notes` out of its figures, and adds `ratios` and `reached`."""
  rates = figures['images_per_sec']
  rows = [[str(number)] + [_rate(value) for value in values]
          for number, values in enumerate(zip(*rates.values()), 1)]
  rows.append(['median'] + [_rate(statistics.median(values)) for values in rates.values()])
  print('\n{}\n'.format(figures['conditions']))
  print(common.markdown_table(['round'] + [name + ', images/sec' for name in rates], rows) + '\n')
  figures['ratios'], figures['reached'] = {}, {}
  for name, rate, yardstick, target in COMPARISONS[part]:
    ratio = common.median_ratio(rates[rate], rates[yardstick])
    figures['ratios'][name] = ratio
    verdict = ''
    if target is not None:
      figures['reached'][name] = ratio['of_medians'] >= target
      verdict = '; target at least {:g}: {}'.format(
          target, common.verdict(figures['reached'][name]))
    print('{} / {}: {:.2f} (rounds {:.2f} to {:.2f}){}'.format(
        rate, yardstick, ratio['of_medians'], ratio['min'], ratio['max'], verdict))
  for note in figures.pop('notes'):
    print(note)


def _rate(value: float) -> str:
  return '{:,.0f}'.format(value) if value >= 100 else '{:.2f}'.format(value)


def _data(parser: common.Parser, args: Any) -> Tuple[Dict[str, Any], int]:
  """Returns the settings that say what is read, and the number of files."""
  data = {'train_pattern': os.path.abspath(args.train_pattern), 'image_size': args.image_size,
          'shuffle_buffer': 2048}
  try:
    dataset = registry.describe(Settings(mode='input_benchmark', dataset='image_folder', **data))
  except UserError as error:
    parser.error(str(error))
  num_files = len(dataset.train.files)
  least = max(2 * BATCH_SIZE, args.feature_images if 'features' in args.parts else 0)
  if num_files < least:
    parser.error('too few files match --train_pattern: {}: give {} or more'.format(
        num_files, least))
  return data, num_files


def _parts(value: str) -> Sequence[str]:
  parts = value.split(',')
  for part in parts:
    if part not in PARTS:
      raise argparse.ArgumentTypeError('no such part: {}: choose from {}'.format(
          part, ','.join(PARTS)))
  return parts


def _height_width(value: str) -> Tuple[int, ...]:
  try:
    height, width = (int(side) for side in value.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(
        'not height,width in pixels: {}: give one such as 224,224'.format(value)) from None
  return height, width


if __name__ == '__main__':
  common.exit_with(main)
