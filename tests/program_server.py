"""Processes that start fast: copies of a process that has imported TensorFlow."""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys

_CLONE_NEWNET = 0x40000000
_SERVER = multiprocessing.get_context('forkserver')
_SERVER.set_forkserver_preload(['program_server', 'estimator_train.modes.train'])


class ServedProcess(_SERVER.Process):
  """A process that runs `python ARGUMENTS`, with a session of its own; as subprocess.Popen.

  Args:
    arguments: of Python: `-m MODULE ...` or `-c CODE ...`.
    cwd: its folder.
    env: its environment variables.
    outputs: the paths of the files of its two outputs, which exist.
    namespace: the network namespace in which it runs; None: that of this process.
  """

  def __init__(self, arguments, cwd, env, outputs, namespace=None):
    os.environ['PYTHONPATH'] = env['PYTHONPATH']  # Of the server, which is started when needed.
    super().__init__(target=_run, args=(
        list(arguments), str(cwd), dict(env), list(map(str, outputs)), namespace))
    self.start()

  def poll(self):
    return self.exitcode

  def wait(self, secs=None):
    self.join(secs)
    if self.exitcode is None:
      raise subprocess.TimeoutExpired('a served process', secs)
    return self.exitcode

  def send_signal(self, signum):
    if self.poll() is None:
      os.kill(self.pid, signum)


def _run(arguments, cwd, env, outputs, namespace):
  os.setsid()
  signal.signal(signal.SIGINT, signal.default_int_handler)
  for number, path in enumerate(outputs, 1):
    os.dup2(os.open(path, os.O_WRONLY), number)
  if namespace is not None:
    descriptor = os.open('/run/netns/' + namespace, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
      raise OSError(ctypes.get_errno(), 'setns', namespace)
    os.close(descriptor)
  os.chdir(cwd)
  os.environ.clear()
  os.environ.update(env)
  sys.path[:0] = env['PYTHONPATH'].split(os.pathsep)
  kind, program, *sys.argv[1:] = arguments
  try:
    if kind == '-m':
      runpy.run_module(program, run_name='__main__', alter_sys=True)
    else:
      exec(program, {'__name__': '__main__'})
  finally:
    atexit._run_exitfuncs()
