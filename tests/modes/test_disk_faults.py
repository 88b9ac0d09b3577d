"""Disks that are full, read-only or gone, and too little memory, in runs of the program."""

import contextlib
import errno
import functools
import os
import re
import resource
import sys
import time

import pytest
import tensorflow.compat.v1 as tf
from conftest import run_process, wait_until
from mode_runs import QUICK, act_before, evaluated_steps

from estimator_train.checkpoints import finding, saving
from estimator_train.errors import UserError
from estimator_train.run_dir import RunDir, resource_errors
from estimator_train.settings import Settings
from estimator_train.training import progress

FLAGS = [*QUICK, '--log_every_steps=1000']


@pytest.fixture
def no_waits(monkeypatch):
  """Has attempts follow each other at once, with seconds passing as if they were waited for."""
  now = [0.]

  def sleep(secs):
    now[0] += secs

  monkeypatch.setattr('estimator_train.training.trainer.RetryingSaver', functools.partial(
      saving.RetryingSaver, clock=lambda: now[0], sleep=sleep))
  return sleep


def at_step(monkeypatch, step, act):
  """Has something happen before a step."""
  act_before(monkeypatch, progress.ShowProgress, 'before_run', act, step)


def fill(folder):
  """Fills the disk."""
  with contextlib.suppress(OSError):
    (folder / 'fill').write_bytes(bytes(1 << 23))


def test_a_disk_that_fills_up_ends_a_run_with_its_last_good_checkpoint(
    run_well, run_program, mounted, monkeypatch, no_waits):
  disk = mounted('size=8m')
  at_step(monkeypatch, 15, lambda: fill(disk))
  done = run_program('--mode=train', '--train_steps=30', '--save_checkpoints_steps=10',
                     '--model_dir', disk / 'run', '--save_retry_secs=20', *FLAGS)
  assert done.code == 3 and done.out == ''
  error = done.err.splitlines()[-1]
  assert error.startswith('error: the checkpoint of step 30 could not be saved for 20 s '
                          '(--save_retry_secs=20): No space left on device: ')
  assert (' needed, 0 bytes free in {0}/run; the last good checkpoint is {0}/run/model.ckpt-10'
          .format(disk)) in error
  assert done.err.count('retrying in') >= 4 and 'Traceback' not in done.err
  names = os.listdir(str(disk / 'run'))
  assert not [name for name in names if '_temp_' in name or '.tmp' in name or '-20.' in name]
  assert finding.find_intact_checkpoint(str(disk / 'run'))[1] == 10
  # With room, the same command goes on from there.
  (disk / 'fill').unlink()
  done = run_well('--mode=train', '--train_steps=30', '--model_dir', disk / 'run', *FLAGS)
  assert 'resuming from step 10' in done.err


def steps_of_events(folder):
  """Yields the steps of all events that can be read."""
  for path in folder.glob('events.*'):
    with contextlib.suppress(tf.errors.DataLossError):
      yield from (event.step for event in tf.train.summary_iterator(str(path)))


def test_a_run_outlives_a_disk_that_is_full_for_a_while(
    run_well, mounted, monkeypatch, no_waits):
  disk = mounted('size=8m')
  at_step(monkeypatch, 25, lambda: fill(disk))

  def make_room():
    (disk / 'fill').unlink()
    no_waits(60)
    # TensorFlow names an event file after the second, and would replace one of the same second.
    first, = (disk / 'run').glob('events.*')
    wait_until(lambda: time.time() >= int(first.name.split('.')[3]) + 1)

  at_step(monkeypatch, 95, make_room)
  done = run_well('--mode=train_and_evaluate', '--train_steps=120', '--eval_every_steps=20',
                  '--model_dir', disk / 'run', *QUICK)
  assert done.result['global_step'] == 120
  assert 'the checkpoint of step 40 could not be saved: No space left on device' in done.err
  assert 'saved the checkpoint of step 95, 60 s after' in done.err
  assert evaluated_steps(done) == [20, 95, 100, 120]
  assert {20, 100, 120} <= set(steps_of_events(disk / 'run'))


def test_a_disk_that_is_full_during_the_last_checkpoint(run_well, mounted, monkeypatch, no_waits):
  disk = mounted('size=8m')
  at_step(monkeypatch, 25, lambda: fill(disk))
  save = saving.RetryingSaver.save

  def save_then_make_room(*args, **options):
    is_saved = save(*args, **options)
    if not is_saved:
      (disk / 'fill').unlink()
      no_waits(60)
      first, = (disk / 'run').glob('events.*')
      wait_until(lambda: time.time() >= int(first.name.split('.')[3]) + 1)
    return is_saved

  monkeypatch.setattr(saving.RetryingSaver, 'save', save_then_make_room)
  done = run_well('--mode=train', '--train_steps=30', '--save_checkpoints_steps=20',
                  '--model_dir', disk / 'run', *QUICK)
  assert 'saved the checkpoint of step 30, 60 s after' in done.err
  assert len(list((disk / 'run').glob('events.*'))) == 2
  assert 30 in set(steps_of_events(disk / 'run'))


def test_a_folder_that_is_removed(tmp_path, run_program, monkeypatch, no_waits):
  folder, away = tmp_path / 'run', tmp_path / 'away'
  at_step(monkeypatch, 15, lambda: folder.rename(away))
  done = run_program('--mode=train', '--train_steps=30', '--save_checkpoints_steps=10',
                     '--model_dir', folder, '--save_retry_secs=2', *FLAGS)
  assert 'No such file or directory in {}'.format(folder) in done.err
  assert done.code == 3 and not folder.exists()
  assert finding.find_intact_checkpoint(str(away))[1] == 10


def test_a_report_that_cannot_be_written_does_not_hide_the_checkpoint(
    tmp_path, run_program, monkeypatch):
  def fsync(number):
    if 'throughput.json' in os.readlink('/proc/self/fd/{}'.format(number)):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', fsync)
  done = run_program('--mode=train', '--train_steps=7', '--model_dir', tmp_path, *FLAGS)
  assert done.code == 3 and 'Traceback' not in done.err
  assert done.err.splitlines()[-1].startswith(
      'error: there is no space to write: {}/throughput.json (No space left on device, '.format(
          tmp_path))
  assert done.err.endswith('; the last good checkpoint is {}/model.ckpt-7\n'.format(tmp_path))
  assert not list(tmp_path.glob('throughput.json*'))


def test_translated_errors():
  for error, text in (
      (OSError(errno.EMFILE, 'x', 'a'), r'too many open files: a \(.*, ulimit -n is \d+\): raise'),
      (tf.errors.ResourceExhaustedError(None, None, 'a; Too many open files'), 'too many open '),
      (tf.errors.ResourceExhaustedError(None, None, 'a; No space left on device\n\t [[node x]]'),
       r'there is no space to write: a \(No space left on device, .* free\): free some space, and'),
      (OSError(errno.EDQUOT, 'x', 'a'), r'there is no space to write: a \(Disk quota exceeded, '),
      (OSError(errno.EROFS, 'x'), r'cannot be read or written: DIR \(Read-only file system\): f'),
      (OSError(errno.EIO, 'x', 'a'), r'a file cannot be read or written: a \(Input/output error'),
      (FileNotFoundError(errno.ENOENT, 'x', 'DIR/a'), r'a folder is missing: DIR/a \(No such fi'),
      (MemoryError(), 'out of memory on this machine: --batch_size=128: give a smaller'),
      (tf.errors.ResourceExhaustedError(
          None, None, 'OOM when allocating tensor with shape[32,64,224,224] and type float on /job:'
          'localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc\n\t [[node x]]'),
       r'^out of memory on /device:GPU:1: a float tensor of shape \[32,64,224,224\] at --batch_s'),
      (ImportError('Traceback\nImportError: x.so: failed to map segment from shared object\nF'),
       'too little memory to import TensorFlow: a library cannot be mapped: raise the limit, for')):
    translated = resource_errors.translate_error(
        error, Settings(train_steps=1), RunDir('DIR'), None)
    assert isinstance(translated, UserError) and re.search(text, str(translated)), str(translated)
  for other in (FileNotFoundError(errno.ENOENT, 'x', 'a'), ValueError('x'), UserError('a', 'b', ''),
                tf.errors.NotFoundError(None, None, 'a; No such file or directory')):
    translated = resource_errors.translate_error(other, Settings(), RunDir(os.curdir), None)
    assert translated is None, other


@pytest.mark.parametrize('message, what', [
    ('2 root error(s) found.\n  (0) Resource exhausted: OOM when allocating tensor with shape[32,9]'
     ' and type half on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t '
     '[[{{node a}}]]\nHint: If you want to see a list of allocated tensors when OOM happens, add',
     r'out of memory on /device:GPU:0: a half tensor of shape \[32,9\] at --batch_size=128: give'),
    ('2 root error(s) found.\n  (0) Internal: Dst tensor is not initialized.\n\t [[{{node x}}]]',
     'out of memory on a GPU: Internal: Dst tensor is not initialized.: free the memory'),
    ('failed initializing StreamExecutor for CUDA device ordinal 0: Internal: failed call to '
     'cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: 1',
     'out of memory on a GPU: '),
    ('cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime version',
     'the driver of the GPU is too old: '),
    ('CUDA runtime implicit initialization on GPU:0 failed. Status: all CUDA-capable devices are '
     'busy or unavailable', 'another process has the GPU for itself: '),
    ('CUDA runtime implicit initialization on GPU:0 failed. Status: device kernel image is invalid',
     'TensorFlow does not support the GPU: '),
    ('TensorFlow device (GPU:0) is being mapped to multiple CUDA devices (1 now, and 0 previously)',
     'this process already uses other GPUs: '),
    ('4 root error(s) found.\n  (0) Internal: NCCL: unhandled system error. Set NCCL_DEBUG=WARN '
     'for detail.\n\t [[node NcclAllReduce]]',
     'NCCL failed: Internal: NCCL: unhandled system error'),
    ('Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so '
     'try looking to see if a warning log message was printed above.\n\t [[{{node c}}]]',
     'a library of CUDA failed: Failed to get convolution'),
    ('Blas GEMM launch failed : a.shape=(32, 784), b.shape=(784, 9), m=32, n=9, k=784',
     'a library of CUDA failed: '),
    ('Attempting to perform BLAS operation using StreamExecutor without BLAS support',
     'a library of CUDA failed: '),
    ('Failed to call ThenRnnForward with model config: [rnn_mode, rnn_input_mode]: 2, 0',
     'a library of CUDA failed: '),
    ("No OpKernel was registered to support Op 'CudnnRNNV2' used by node cu_dnnlstm/CudnnRNNV2",
     'the model requires a GPU: '),
    ('indices[0] = 5 is not in [0, 5)\n\t [[node NCCL/cuDNN]]', None)])
def test_translated_errors_of_gpus(message, what):
  """The messages are those of public reports."""
  error = tf.errors.InternalError(None, None, message)
  translated = resource_errors.translate_error(error, Settings(), RunDir('DIR'), None)
  if what is None:
    assert translated is None
  else:
    assert isinstance(translated, UserError) and re.match(what, str(translated)), str(translated)


def test_without_memory_to_start(tmp_path):
  done = run_process(
      'bash', '-c', 'ulimit -v 500000; exec "$@"', '-', sys.executable, '-m', 'estimator_train',
      '--dataset=fashion_mnist_sample', '--train_steps=1',
      '--model_dir={}'.format(tmp_path / 'run'))
  assert (done.returncode, done.stdout, done.stderr) == (
      2, '', 'importing TensorFlow\nerror: too little memory to import TensorFlow: ulimit -v is '
      '500000: raise the limit, for example by ulimit -v unlimited\n')


def test_ordinary_runs_train_after_one_without_memory(run_program, run_well, tmp_path):
  # Without a limit a system might promise what it does not have.
  resource.setrlimit(resource.RLIMIT_AS, (100 * 10 ** 9, resource.RLIM_INFINITY))
  flags = ['--mode=train', '--train_steps=3', *FLAGS]
  done = run_program(*flags, '--model=own_models:too_large', '--model_dir', tmp_path / 'too large')
  assert done.code == 2 and 'Traceback' not in done.err
  assert done.err.splitlines()[-1].startswith(
      'error: out of memory on /device:CPU:0: a float tensor of shape [262144,4194304] at '
      '--batch_size=4: give a smaller --batch_size')
  for number in range(2):
    run_well(*flags, '--image_size=28,28', '--model=fashion_cnn', '--batch_size=256',
             '--model_dir', tmp_path / str(number))
