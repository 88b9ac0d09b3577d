"""Stops training runs by SIGTERM and SIGINT at random moments, and checks how they end.

  python tests/crash/stop_signals.py [--signals=200] [--seed=1] [--steps=400] [--keep=FOLDER]

Each signal meets a run of its own, which trains, evaluates and exports, at a moment that is spread
evenly over the duration of an undisturbed run. One in four is sent twice. Checks the exit code, the
last line of the log, the time until the process has ended, and that no partial file is left. Every
20th run is then completed, and must end like the undisturbed run. Exit code 1 if a check fails.
"""

import argparse
import collections
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crash_runs import HALVES, ROOT, Run, differences

# Seconds. docs/faults.md states the first one. The second one is what Kubernetes grants, within
# which a run finishes its step, saves a checkpoint and writes the reports.
MOST_SECS = {False: 10., True: 30.}
_ALLOWANCE_SECS = 3.  # The machine is busy.
# What the log has when a phase begins.
_PHASES = ((r'^step \d+/', None), (r'replica\(s\) on', 'first step'),
           ('building the model', 'graph'), ('preparing the data', 'data'),
           ('importing TensorFlow', 'import'), ('', 'start'))
_TRAINING = ('saving', 'training', 'evaluating', 'first step', 'last evaluation')


def phase_of(run):
  """Returns what a run is at, by its log."""
  phase = next(phase for pattern, phase in _PHASES if re.search(pattern, run.log, re.MULTILINE))
  return phase or run.phase


def stop(run, signum, after_secs, times):
  """Starts a run, and sends a signal to it.

  Returns:
    (what the run was at, the seconds from the signal to its end, what is wrong); None: the run had
    ended before.
  """
  process = run.spawn()
  try:
    time.sleep(after_secs)
    phase = phase_of(run)
    began = time.monotonic()
    if process.poll() is not None or (run.folder / '1.out').stat().st_size:
      return None
    for _ in range(times):
      process.send_signal(signum)
    process.wait(60)
  except subprocess.TimeoutExpired:
    return phase, 60., ['it does not end: ' + run.log]
  finally:
    process.kill()
    process.wait()
  secs = time.monotonic() - began
  return phase, secs, _what_is_wrong(run, signum, process.returncode, phase, secs)


def _what_is_wrong(run, signum, code, phase, secs):
  wrong, name = [], signal.Signals(signum).name
  # Python has no handler yet while it starts. A shell reports such an end as the same code.
  if code not in (128 + signum,) + ((-signum,) if phase == 'start' else ()):
    wrong.append('code {}'.format(code))
  lines = run.log.splitlines() or ['']
  if code >= 0 and not lines[-1].startswith('stopped by ' + name):
    wrong.append('the last line is ' + lines[-1])
  if secs > MOST_SECS[phase in _TRAINING] + _ALLOWANCE_SECS:
    wrong.append('{:.1f} s'.format(secs))
  if 'Traceback' in run.log:
    wrong.append("a traceback: " + run.log)
  return wrong + ['{} is left'.format(path) for path in run.folder.rglob('*')
                  if HALVES.search(path.name)]


def main():
  parser = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--signals', type=int, default=200, help='how many (default: 200)')
  parser.add_argument('--seed', type=int, default=1, help='of the moments (default: 1)')
  parser.add_argument('--steps', type=int, default=400, help='of a run (default: 400)')
  parser.add_argument('--keep', help='folder for the runs, which stay there')
  args = parser.parse_args()
  sys.path[:0] = [str(ROOT), str(ROOT / 'tests')]
  choose = random.Random(args.seed)
  with tempfile.TemporaryDirectory(prefix='stop-signals-') as temporary:
    folder = Path(args.keep or temporary)
    folder.mkdir(exist_ok=True)
    undisturbed = Run(folder / 'undisturbed', args.steps)
    _, longest_secs = undisturbed.start()
    phases, slowest, found, attempt = collections.Counter(), {}, [], 0
    while sum(phases.values()) < args.signals:
      attempt += 1
      run = Run(folder / str(attempt), args.steps)
      signum = choose.choice((signal.SIGTERM, signal.SIGINT))
      outcome = stop(run, signum, choose.uniform(.05, longest_secs), choose.choice((1, 1, 1, 2)))
      if outcome is None:
        continue
      phase, secs, wrong = outcome
      phases[phase] += 1
      slowest[phase] = round(max(secs, slowest.get(phase, 0.)), 2)
      if not sum(phases.values()) % 20:
        run.start()
        wrong = wrong + differences(run, undisturbed)
      print('{:3d}  {:<7}  {:<15}  {:5.2f} s  {}'.format(
          sum(phases.values()), signal.Signals(signum).name, phase, secs,
          '; '.join(wrong) or 'as documented'), flush=True)
      found += wrong
  print(json.dumps({'signals': phases, 'seed': args.seed, 'slowest_secs': slowest, 'wrong': found}))
  sys.exit(1 if found else 0)


if __name__ == '__main__':
  main()
