"""A cluster on this machine, of stand-ins for the program that follow a plan."""

import json
import os
import signal
import subprocess
import sys

from conftest import ROOT, is_alive, wait_until

# A deadline for what hangs, however slow the machine is.
SECS = 300
# Short where a test waits for what is to happen; longer than any test where it must not.
SHORT, LONG = 0.2, 2. * SECS

# Writes down what it was given, then executes what PLAN has for its task and start.
STAND_IN = '''
import json, os, signal, sys, time
config = json.loads(os.environ['TF_CONFIG'])
task = '{type} {index}'.format(**config['task'])
def on(signum, code):
  signal.signal(signum, lambda *_: leave(code))
def leave(code):
  print(task, 'leaves', file=sys.stderr, flush=True)
  os._exit(code)
def wait(name='', exists=True):
  deadline = time.monotonic() + SECS
  while not name or os.path.exists(name) != exists:
    assert time.monotonic() < deadline
    time.sleep(0.01)
def wait_for_end(task):
  # What has ended keeps its number until the launcher, its parent, has noticed.
  name = '{} start {}'.format(task, start)
  wait(name)
  with open(name) as file:
    wait('/proc/{}'.format(json.load(file)['pid']), exists=False)
start = 1 + len([name for name in os.listdir('.') if name.startswith(task + ' start ')])
def ready():
  with open('part of ' + task, 'w') as file:
    json.dump(dict(config, argv=sys.argv[1:], pid=os.getpid()), file)
  os.rename('part of ' + task, '{} start {}'.format(task, start))
plan = json.loads(os.environ['PLAN']).get(task, ['sys.exit(0)'])
plan = plan[min(start, len(plan)) - 1]
if not plan.startswith('on('):
  ready()
exec(plan)
'''
LAUNCHER = '''
import sys
sys.path.insert(0, {root!r})
from estimator_train.launcher import local_cluster, supervisor
program = [sys.executable, 'stand_in.py']
sys.exit(local_cluster.main(sys.argv[1:], program, supervisor.Timeouts{limits!r}))
'''
# Ends with the wanted code on the signal, and is only there once it would.
OBEYS = 'on(signal.{}, {}); ready(); wait()'
IGNORES = 'on(signal.SIGTERM, 0); signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); wait()'


class Launch:
  """Starts the launcher in a folder of its own, and knows what the tasks wrote down there."""

  def __init__(self, folder):
    self.folder = folder
    (folder / 'stand_in.py').write_text('SECS = {}\n'.format(SECS) + STAND_IN)
    self._process = None

  def start(self, *arguments, limits=(LONG, LONG, LONG), stderr=subprocess.PIPE, **plan):
    """Starts it with flags and, by task (`worker_1`), what that does at its first start and on."""
    plan = {task.replace('_', ' '): ([does] if isinstance(does, str) else does)
            for task, does in plan.items()}
    self._process = subprocess.Popen(
        [sys.executable, '-c', LAUNCHER.format(root=str(ROOT), limits=limits),
         '--model_dir=model', '--train_steps=1'] + list(arguments),
        cwd=str(self.folder), env=dict(os.environ, PLAN=json.dumps(plan)),
        stdout=subprocess.PIPE, stderr=stderr, universal_newlines=True)
    return self._process

  def finish(self):
    """Returns the exit code, and what was written to the two outputs."""
    out, err = self._process.communicate(timeout=SECS)
    code, self._process = self._process.returncode, None
    assert not [pid for pid in self.pids() if is_alive(pid)]
    return code, out, err

  def run(self, *arguments, **plan):
    self.start(*arguments, **plan)
    return self.finish()

  def started(self, task, start=1):
    path = self.folder / '{} start {}'.format(task, start)
    wait_until(path.exists)
    return json.loads(path.read_text())

  def pids(self):
    return [json.loads(path.read_text())['pid'] for path in self.folder.glob('* start *')]

  def clean_up(self):
    if self._process is not None:
      self._process.kill()
      self._process.communicate()
    for pid in filter(is_alive, self.pids()):
      os.kill(pid, signal.SIGKILL)

  def log(self, name):
    return (self.folder / 'model' / 'logs' / name).read_text()
