"""Kills a training run (kill -9) again and again, and compares what comes of it in the end.

  python tests/crash/kills.py [--kills=50] [--seed=1] [--steps=400] [--points[=REGEX]]
      [--keep=FOLDER]

First a run is left alone. Then the same command is started, killed at a random moment, and started
again, until it comes to its end; and all over again in a new folder, until there have been so many
kills. Each is printed with its phase and the step from which the next start resumed. At the end of
each training everything it left must be what the undisturbed run left: the weights and the
optimizer's slots bit for bit, the evaluation, the best checkpoint, `model.h5`, the export, and no
partial file. `--points` kills before and after named points besides, of those that match, and at
some again in the next start.

The input continues with the remaining examples of its epoch, so that nothing may differ. Exit code
1 when something does.
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

_POINTS_STEPS = 120
_TEMP_ATTEMPTS = 10
_TWICE = ('lock', '_temp_', 'state', 'rename', 'delete', 'os.link', 'evaluate', 'os.rename')
# In the order of a run, as `inject_kill` takes them.
_KILL_POINTS = [
    ('lock', 'after'),
    ('weights', 'before', 'keras_model'), ('weights', 'after', 'keras_model'),
    ('save', 'before', r'model\.ckpt$'),
    ('_temp_', 'during', 'model_dir/model.ckpt-0_temp_*'), ('state', 'before', 'model.ckpt-0$'),
    ('rename', 'before', r'model_dir/checkpoint$'), ('state', 'after', 'model.ckpt-0$'),
    ('rename', 'before', r'ckpt-0\.meta$'),
    ('_temp_', 'during', 'model_dir/model.ckpt-[1-9]*_temp_*'),
    ('state', 'before', 'model.ckpt-60$'), ('rename', 'before', r'model_dir/checkpoint$', 3),
    ('state', 'after', 'model.ckpt-60$'), ('rename', 'before', r'ckpt-60\.meta$'),
    ('save', 'after', r'model\.ckpt$', 4),
    # The sixth checkpoint is there, and the first one is to be deleted.
    ('state', 'after', 'model.ckpt-100$'), ('delete', 'before', 'model.ckpt-0.data'),
    ('os.link', 'after', 'best/80/'),
    ('evaluate', 'before', 'best/80/'), ('evaluate', 'after', 'best/80/'),
    ('promote', 'before', 'best/80/'), ('promote', 'after', 'best/80/'),
    ('rmtree', 'before', r'best/\d+$'), ('model.h5', 'after'), ('page', 'before'),
    ('saved_model', 'before'), ('saved_model', 'after'),
    ('os.rename', 'before', 'temp-'), ('os.rename', 'after', 'temp-'),
    *(('os.replace', 'before', '/{}$'.format(name)) for name in (
        'flags.txt', 'labels.txt', 'batch_sizes.json', 'evaluation.json', 'best.json',
        'throughput.json', 'model.h5', 'curves.json', 'samples.json'))]


def kill_at_random(folder, undisturbed, kills, longest_secs, seed):
  """Kills runs at random moments, which are spread evenly over `longest_secs`.

  Returns:
    (the differences found, the number of kills by phase)
  """
  choose, phases, found = random.Random(seed), collections.Counter(), []
  while sum(phases.values()) < kills:
    run, saved, phase = Run(tempfile.mkdtemp(dir=str(folder)), undisturbed.steps), 0, True
    while phase:
      number = sum(phases.values()) + 1
      code, phase, _ = run.start(choose.uniform(.05, longest_secs) if number <= kills else None)
      assert code == (-signal.SIGKILL if phase else 0), run.log
      found += _wrong_resume(run, saved)
      saved = run.step_saved
      if phase:
        phases[phase] += 1
        print('{:3d}  {:<8}  saved: {:3d}  {}'.format(number, phase, saved, run.resumed_from),
              flush=True)
    wrong = differences(run, undisturbed)
    print('     {} starts, {}'.format(run.starts, wrong or 'as undisturbed'), flush=True)
    found += wrong
  return found, phases


def kill_at_point(folder, undisturbed, kill_at):
  """Kills a run at a point, at some points again in the next start, and resumes it.

  Returns:
    (the differences found, the number of kills)
  """
  run, found, saved, kills = Run(tempfile.mkdtemp(dir=str(folder)), undisturbed.steps), [], 0, 0
  was_killed = True
  while was_killed:
    was_killed = run.start_here(kill_at if kills <= (kill_at[0] in _TWICE) else None)
    kills += was_killed
    found += _wrong_resume(run, saved)
    saved = run.step_saved
  return found + differences(run, undisturbed) + ([] if kills else ['no kill']), kills


def _wrong_resume(run, saved):
  """Returns what is wrong with the step of a start, after `saved` was the latest checkpoint."""
  step = run.resumed_from
  if step is not None and step != (saved, saved * BATCH_SIZE):
    return ['resumed from {} when {} was saved'.format(step, saved)]
  trains = re.search(r'^step \d+/', run.log, re.MULTILINE)
  return ['started anew when {} was saved'.format(saved)] if trains and saved and not step else []


def main():
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  for name, default, text in (('kills', 50, 'how many'), ('seed', 1, 'of the moments'),
                              ('steps', 400, 'of a run')):
    parser.add_argument('--' + name, type=int, default=default,
                        help=text + ' (default: %(default)s)')
  parser.add_argument('--points', nargs='?', const='', metavar='REGEX',
                      help='kill at the named points too, or at those that match')
  parser.add_argument('--keep', help='folder for the runs, which stay there')
  args, found, phases = parser.parse_args(), [], {}
  sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]
  with tempfile.TemporaryDirectory() as temporary:
    folder = Path(args.keep or temporary)
    folder.mkdir(exist_ok=True)
    if args.kills:
      undisturbed = Run(folder / 'undisturbed', args.steps)
      _, _, secs = undisturbed.start()
      print('undisturbed: {:.1f} s, {}'.format(secs, json.dumps(undisturbed.result)), flush=True)
      found, phases = kill_at_random(folder, undisturbed, args.kills, secs, args.seed)
    if args.points is not None:
      undisturbed = Run(folder / 'undisturbed-points', _POINTS_STEPS)
      undisturbed.start_here()
      for kill_at in _KILL_POINTS:
        name = ' '.join(map(str, kill_at))
        if not re.search(args.points, name):
          continue
        # A busy machine may rename TensorFlow's temporary files before the waiting thread runs.
        for _ in range(_TEMP_ATTEMPTS if kill_at[0] == '_temp_' else 1):
          wrong, kills = kill_at_point(folder, undisturbed, kill_at)
          if kills:
            break
        print('{}: {} kills: {}'.format(name, kills, wrong or 'as undisturbed'), flush=True)
        found += wrong
        phases[name] = kills
  print(json.dumps({'kills': phases, 'seed': args.seed, 'steps': args.steps, 'wrong': found}))
  sys.exit(1 if found else 0)


if __name__ == '__main__':
  main()
