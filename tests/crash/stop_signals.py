"""Stops training runs by SIGTERM and SIGINT at random moments, and checks how they end.

  python tests/crash/stop_signals.py [--signals=200] [--seed=1] [--steps=400] [--keep=FOLDER]

Each signal meets a run of its own, which trains, evaluates and exports, at a moment that is spread
evenly over the duration of an undisturbed run. One in four is sent twice. Checks the exit code, the
last line of the log, the time until the process has ended, and that no partial file is left. Every
20th run is then completed, and must end like the undisturbed run. Exit code 1 if a check fails.
"""

import collections
import json
import random
import re
import signal
import sys
import tempfile

from crash_runs import PARTIAL_FILES, Run, differences, parse_arguments

# What Kubernetes grants, within which a run finishes its step, saves a checkpoint and writes the
# reports; and what docs/faults.md states. A busy machine takes 3 s more.
_MOST_SECS = {'training': 33.}
_MOST_SECS_ELSEWHERE = 13.


def what_is_wrong(run, signum, code, phase, secs):
  """Returns what is wrong with the end of a run after a signal."""
  wrong, expected = [], 'stopped by ' + signum.name
  # Python has no handler yet while it starts, or its own one for SIGINT. A shell reports such an
  # end as the same code.
  is_pythons = phase == 'start' and (code == -signum or 'KeyboardInterrupt' in run.log)
  if not is_pythons and (code != 128 + signum or 'Traceback' in run.log
                         or not re.search('^{}.*\n\\Z'.format(expected), run.log, re.M)):
    wrong.append('code {}: {}'.format(code, run.log))
  if secs > _MOST_SECS.get(phase, _MOST_SECS_ELSEWHERE):
    wrong.append('{:.1f} s'.format(secs))
  return wrong + ['{} is left'.format(path) for path in run.folder.rglob('*')
                  if PARTIAL_FILES.search(path.name)]


def main():
  phases, slowest, found = collections.Counter(), {}, []
  with parse_arguments(__doc__, 'signals', 200) as (args, folder):
    choose, undisturbed = random.Random(args.seed), Run(folder / 'undisturbed', args.steps)
    _, _, longest_secs = undisturbed.start()
    while sum(phases.values()) < args.signals:
      run = Run(tempfile.mkdtemp(dir=str(folder)), args.steps)
      signum = choose.choice((signal.SIGTERM, signal.SIGINT))
      code, phase, secs = run.start(signum, choose.uniform(.05, longest_secs),
                                    choose.choice((1, 1, 1, 2)))
      if phase is None:  # It had come to its end before.
        continue
      wrong = what_is_wrong(run, signum, code, phase, secs)
      phases[phase] += 1
      slowest[phase] = round(max(secs, slowest.get(phase, 0.)), 2)
      if not sum(phases.values()) % 20:
        run.start()
        wrong = wrong + differences(run, undisturbed)
      print('{:3d}  {}  {:<8}  {:5.2f} s  {}'.format(
          sum(phases.values()), signum.name, phase, secs, wrong or 'as documented'), flush=True)
      found += wrong
  print(json.dumps({'signals': phases, 'seed': args.seed, 'slowest_secs': slowest, 'wrong': found}))
  sys.exit(1 if found else 0)


if __name__ == '__main__':
  main()
