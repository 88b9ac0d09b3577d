"""Ends this process by SIGKILL at a point of the program that is named."""

import functools
import glob
import os
import re
import shutil
import signal
import sys
import threading

import tensorflow.compat.v1 as tf
from tensorflow.python.lib.io import file_io
from tensorflow.python.training import checkpoint_management

from estimator_train.modes import train_and_evaluate
from estimator_train.reports import page
from estimator_train.run_dir import run_lock
from estimator_train.tf_patches import saved_weights
from estimator_train.training.checkpoints import best_checkpoint
from estimator_train.training.evaluation import evaluator

# What is called at each point.
POINTS = {
    'os.replace': (os, 'replace'),
    'os.rename': (os, 'rename'),
    'os.link': (os, 'link'),
    'rmtree': (shutil, 'rmtree'),
    'save': (tf.train.Saver, 'save'),
    'weights': (saved_weights, '_save_variables'),
    'meta': (tf.train.Saver, 'export_meta_graph'),
    'state': (checkpoint_management, 'update_checkpoint_state_internal'),
    'rename': (file_io, 'rename'),
    'delete': (file_io, 'delete_file'),
    'lock': (run_lock, '_acquire'),
    'evaluate': (evaluator._EvaluationGraph, 'run'),
    'promote': (best_checkpoint, 'promote_if_better'),
    'page': (page, 'write_page_of_finished_run'),
    'saved_model': (tf.saved_model.Builder, 'save'),
    'model.h5': (train_and_evaluate.h5_model, 'write_h5'),
}


def inject(point, when, match='', count=1):
  """Has the process die at a call.

  Args:
    point: of POINTS; or `_temp_`, where TensorFlow's own code writes: a file is waited for there.
    when: `before` or `after` it.
    match: what one of the call's texts, or the file, looks like.
    count: which of such calls.
  """
  if point == '_temp_':
    threading.Thread(target=_watch, args=(match,), daemon=True).start()
    return
  owner, name = POINTS[point]
  call = getattr(owner, name)
  left = [count]

  @functools.wraps(call)
  def called(*args, **kwargs):
    texts = [str(value) for value in list(args) + list(kwargs.values())
             if isinstance(value, (str, bytes, int, os.PathLike))]
    if any(re.search(match, text) for text in texts or ['']):
      left[0] -= 1
    else:
      return call(*args, **kwargs)
    if left[0] == 0 and when == 'before':
      _die()
    result = call(*args, **kwargs)
    if left[0] == 0:
      _die()
    return result

  setattr(owner, name, called)
  if owner is checkpoint_management:  # The saver has a name of its own for it.
    sys.modules['tensorflow.python.training.saver'].checkpoint_management = owner


def _watch(pattern):
  while not glob.glob(pattern):
    pass
  _die()


def _die():
  os.kill(os.getpid(), signal.SIGKILL)

