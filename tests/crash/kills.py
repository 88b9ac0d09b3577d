"""Kills a training run (kill -9) again and again, and compares what comes of it in the end.

  python tests/crash/kills.py [--kills=50] [--seed=1] [--steps=400] [--points[=REGEX]]
      [--keep=FOLDER]

First a run is left alone. Then the same command is started, killed at a random moment, and started
again, until it comes to its end; and all over again in a new folder, until there have been so many
kills. Each is told with the phase that it met and the step that the next start went on from. At the
end of each training everything it left must be what the undisturbed run left: the weights and the
optimizer's slots bit for bit, the evaluation, the best checkpoint, `model.h5`, the export, and no
file that is half of one. `--points` kills before and after what is done at named points besides,
of those that match, and at some again in the next start.

The input goes on with the remaining examples of its epoch, so that nothing may differ. Exit code 1
when something does.
"""

import argparse
import collections
import json
import random
import re
import signal
import sys
import tempfile
from pathlib import Path

from crash_runs import BATCH_SIZE, ROOT, Run, differences

POINTS_STEPS = 120

# Point by point over a run, as injected_kills.py takes them.
_REPLACED = ('flags.txt', 'labels.txt', 'batch_sizes.json', 'fingerprint.txt', 'evaluation.json',
             'best.json', 'throughput.json', 'model.h5', 'curves.json', 'samples.json')
_TEMP_ATTEMPTS = 10
_TWICE = ('lock', '_temp_', 'state', 'rename', 'delete', 'os.link', 'evaluate', 'os.rename')
KILL_POINTS = [
    {'point': 'lock', 'when': 'after'},
    {'point': 'weights', 'when': 'before', 'match': 'keras_model'},
    {'point': 'meta', 'when': 'before', 'match': 'keras_model'},
    {'point': 'weights', 'when': 'after', 'match': 'keras_model'},
    {'point': 'save', 'when': 'before', 'match': r'model\.ckpt$'},
    {'point': '_temp_', 'when': 'during', 'match': 'model_dir/model.ckpt-0_temp_*'},
    {'point': 'state', 'when': 'before', 'match': 'model.ckpt-0$'},
    {'point': 'rename', 'when': 'before', 'match': r'model_dir/checkpoint$'},
    {'point': 'state', 'when': 'after', 'match': 'model.ckpt-0$'},
    {'point': 'rename', 'when': 'before', 'match': r'ckpt-0\.meta$'},
    {'point': '_temp_', 'when': 'during', 'match': 'model_dir/model.ckpt-[1-9]*_temp_*'},
    {'point': 'state', 'when': 'before', 'match': 'model.ckpt-60$'},
    {'point': 'rename', 'when': 'before', 'match': r'model_dir/checkpoint$', 'count': 3},
    {'point': 'state', 'when': 'after', 'match': 'model.ckpt-60$'},
    {'point': 'rename', 'when': 'before', 'match': r'ckpt-60\.meta$'},
    {'point': 'save', 'when': 'after', 'match': r'model\.ckpt$', 'count': 4},
    # As the sixth is there, and the first is to be deleted.
    {'point': 'state', 'when': 'after', 'match': 'model.ckpt-100$'},
    {'point': 'delete', 'when': 'before', 'match': 'model.ckpt-0.data'},
    {'point': 'os.link', 'when': 'after', 'match': 'best/80/'},
    {'point': 'evaluate', 'when': 'before', 'match': 'best/80/'},
    {'point': 'evaluate', 'when': 'after', 'match': 'best/80/'},
    {'point': 'promote', 'when': 'before', 'match': 'best/80/'},
    {'point': 'promote', 'when': 'after', 'match': 'best/80/'},
    {'point': 'rmtree', 'when': 'before', 'match': r'best/\d+$'},
    {'point': 'model.h5', 'when': 'after'},
    {'point': 'page', 'when': 'before'},
    {'point': 'saved_model', 'when': 'before'},
    {'point': 'saved_model', 'when': 'after'},
    {'point': 'os.rename', 'when': 'before', 'match': 'temp-'},
    {'point': 'os.rename', 'when': 'after', 'match': 'temp-'},
] + [{'point': 'os.replace', 'when': 'before', 'match': '/{}$'.format(re.escape(name))}
     for name in _REPLACED]


def _telling(number, run, secs, where):
  return '{:3d}  {:5.1f} s  {:<16}  saved: {:3d}  {}'.format(
      number, secs, run.phase, run.steps_saved, where)


def kill_at_random(folder, undisturbed, kills, longest_secs, seed, say=print):
  """Kills runs at random moments.

  Args:
    folder: for the runs.
    undisturbed: the run to compare with.
    kills: how many.
    longest_secs: what a run takes when it is left alone; moments are spread evenly over it.
    seed: of the moments.
    say: takes a line of text a kill.

  Returns:
    (the differences found, the number of kills by phase)
  """
  choose = random.Random(seed)
  phases, found, number, trainings = collections.Counter(), [], 0, 0
  while number < kills:
    trainings += 1
    run = Run(Path(str(folder)) / 'random-{}'.format(trainings), undisturbed.steps)
    is_over, saved = False, 0
    while not is_over:
      after = None if number == kills else choose.uniform(.05, longest_secs)
      was_killed, secs = run.start(kill_after=after)
      found += _wrong_resume(run, saved)
      saved = run.steps_saved
      is_over = not was_killed
      if was_killed:
        number += 1
        phases[run.phase] += 1
        say(_telling(number, run, secs, _resumed(run)))
    wrong = differences(run, undisturbed)
    say('     training {}: {} starts, {}'.format(
        trainings, run.starts, '; '.join(wrong) or 'all as undisturbed'))
    found += wrong
  return found, phases



def kill_at_point(folder, undisturbed, kill_at):
  """Kills a run at a point, at some again as it comes by again, and goes on.

  Returns:
    (the differences found, the run, the kills)
  """
  run = Run(folder, undisturbed.steps)
  found, kills, saved = [], 0, 0
  for _ in range(2 if kill_at['point'] in _TWICE else 1):
    was_killed = run.start_here(kill_at)
    found += _wrong_resume(run, saved)
    saved = run.steps_saved
    kills += was_killed
    if not was_killed:
      break
  if was_killed:
    run.start_here()
    found += _wrong_resume(run, saved)
  if not kills:
    found.append('the point was not met')
  return found + differences(run, undisturbed), run, kills


def _resumed(run):
  return 'went on from {}, {} examples'.format(*run.went_on_from) if run.went_on_from else 'new'


def _wrong_resume(run, saved):
  """Returns what is wrong with where a start went on, after `saved` was the latest checkpoint."""
  at = run.went_on_from
  if at is not None and at != (saved, saved * BATCH_SIZE):
    return ['went on from {} when {} was saved'.format(at, saved)]
  trains = re.search(r'^step \d+/', run.log, re.MULTILINE)
  return ['began anew when {} was saved'.format(saved)] if trains and saved and not at else []


def main():
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--kills', type=int, default=50, help='how many (default: 50)')
  parser.add_argument('--seed', type=int, default=1, help='of the moments (default: 1)')
  parser.add_argument('--steps', type=int, default=400, help='of a run (default: 400)')
  parser.add_argument('--points', nargs='?', const='', metavar='REGEX',
                      help='kill at the named points too, or at those that match')
  parser.add_argument('--keep', help='folder for the runs, which stay there')
  args = parser.parse_args()
  signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
  sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]
  with tempfile.TemporaryDirectory(prefix='kills-') as temporary:
    folder = Path(args.keep or temporary)
    folder.mkdir(exist_ok=True)
    found, phases = [], {}
    if args.kills:
      undisturbed = Run(folder / 'undisturbed', args.steps)
      _, secs = undisturbed.start()
      print('undisturbed: {:.1f} s, {}'.format(secs, json.dumps(undisturbed.result)), flush=True)
      again = Run(folder / 'undisturbed-again', args.steps)
      again.start()
      found += differences(again, undisturbed)
      print('another one: {}'.format('; '.join(found) or 'the same'), flush=True)
      wrong, phases = kill_at_random(folder, undisturbed, args.kills, secs, args.seed,
                                     lambda text: print(text, flush=True))
      found += wrong
    if args.points is not None:
      undisturbed = Run(folder / 'undisturbed-points', POINTS_STEPS)
      undisturbed.start_here()
      for number, kill_at in enumerate(KILL_POINTS):
        name = ' '.join(map(str, kill_at.values()))
        if not re.search(args.points, name):
          continue
        # A busy machine may rename TensorFlow's temporary files before the waiting thread runs.
        for attempt in range(_TEMP_ATTEMPTS if kill_at['point'] == '_temp_' else 1):
          wrong, run, kills = kill_at_point(
              folder / 'point-{}-{}'.format(number, attempt), undisturbed, kill_at)
          if kills:
            break
        print('{}: {} kill(s), then {}: {}'.format(name, kills, _resumed(run), '; '.join(wrong)
                                                   or 'all as undisturbed'), flush=True)
        found += wrong
        phases[name] = kills
  print(json.dumps({'kills': phases, 'seed': args.seed, 'steps': args.steps, 'differences': found}))
  sys.exit(1 if found else 0)


if __name__ == '__main__':
  main()
