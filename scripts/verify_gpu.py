"""Verifies on a host with GPUs that the program trains correctly on them; see scripts/verify_gpu.

Each check consists of runs of the program in new processes. All data sets ship with the package or
are synthetic, so that no network is needed. Rates depend on the size of the examples, but not on
their content.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import estimator_train
from estimator_train.errors import UserError
from estimator_train.modes.doctor import hardware
from estimator_train.system import child_process, machine, storage, tensorflow_probe

TIMEOUT_SECS = 300.
GPU_MEMORY_POLL_SECS = .2
SMALL_IMAGES = ['--dataset=fashion_mnist_sample', '--data_dir=']
# ImageNet weights would have to be downloaded. Random weights train at the same rate.
LARGE_IMAGES = ['--dataset=synthetic', '--data_dir=', '--weights=none']
# (flagfile, further flags, examples per replica on a GPU and on a CPU).
WORKLOADS = (
    ('fashion_mnist', SMALL_IMAGES, 128, 8),
    ('oct2017', LARGE_IMAGES, 32, 2),
    ('mnist_tf_data', SMALL_IMAGES, 256, 8),
    ('mnist_8gpu', SMALL_IMAGES, 128, 8),
    ('mnist_multi_worker_simple', SMALL_IMAGES, 64, 8),
    ('mnist_multi_worker_practical', SMALL_IMAGES, 64, 8),
)
# The tolerance is the norm of the difference of all variables, divided by their norm. In these
# runs, gradients that are wrong by a factor of two cause a difference of 1.7e-3. Two GPU runs may
# use different algorithms of cuDNN for the same convolution.
CPU_TOLERANCE, GPU_TOLERANCE = 1e-5, 1e-4
MIXED_LOSS_TOLERANCE = .05
EXACT_STEPS = 20
# SGD does not divide by the root of small gradients, which would enlarge rounding differences.
EXACT = ['--flagfile=fashion_mnist', *SMALL_IMAGES, '--optimizer=sgd', '--learning_rate=0.01']
# The examples/sec of one GPU at the peak rates of a card, by run and card; see docs/gpu.md. Written
# by scripts/check_gpu_graphs --predictions.
PREDICTIONS_FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'gpu_predictions.json')
OK, FAILED, NOT_RUN = 'ok', 'FAILED', 'not run'
COLUMNS = ('check', 'run', 'examples/sec', 'GPU memory, MB', 'figure', 'verdict')


class Devices:
  """The devices of the host, or logical CPU devices in place of GPUs.

  Attributes:
    count: the number of replicas of the runs on all devices.
    are_gpus: whether the devices are GPUs.
  """

  def __init__(self, cpu_replicas):
    self.are_gpus = not cpu_replicas
    self.count = cpu_replicas or tensorflow_probe.count_gpus()
    if not self.count:
      raise UserError('the program must see a GPU', 'TensorFlow sees none',
                      'see --mode=doctor; --cpu_replicas=2 runs the checks without GPUs')
    gpus = hardware.inspect_gpus().gpus if self.are_gpus else ()
    self._name = gpus[0].name if gpus else ''

  @property
  def kind(self):
    return 'GPU' if self.are_gpus else 'logical CPU device'

  def rate_at_peak(self, run_name):
    """Returns the predicted examples/sec of a run on one GPU; None if the card is not listed."""
    with open(PREDICTIONS_FILE, encoding='utf-8') as file:
      rates = json.load(file).get(run_name, {})
    return next((rate for card, rate in rates.items() if card in self._name), None)

  def flags(self, count):
    return (['--num_gpus={}'.format(count)] if self.are_gpus else
            ['--num_gpus=0', '--num_cpu_replicas={}'.format(count)])

  def describe(self, count):
    return '{} {}{}'.format(count, self.kind, '' if count == 1 else 's')

  @property
  def counts(self):
    """The numbers of devices of the runs: one and, if there are several, all."""
    return sorted({1, self.count})


class GpuMemory(threading.Thread):
  """Polls the used memory of the GPUs, because TensorFlow frees memory only when a run ends.

  Attributes:
    peak_mb: the largest value of any GPU; None if nvidia-smi does not work.
  """

  def __init__(self):
    super().__init__(daemon=True)
    self.peak_mb = None
    self._is_done = threading.Event()

  def run(self):
    while not self._is_done.wait(GPU_MEMORY_POLL_SECS):
      try:
        text = subprocess.check_output(
            ['nvidia-smi', '--query-gpu=memory.used', '--format=csv,noheader,nounits'],
            stderr=subprocess.DEVNULL, universal_newlines=True, timeout=10)
        self.peak_mb = max([self.peak_mb or 0, *map(int, text.split())])
      except (OSError, ValueError, subprocess.SubprocessError):
        return

  def __enter__(self):
    self.start()
    return self

  def __exit__(self, *unused_error):
    self._is_done.set()
    self.join()


class Run:
  """A run of the program in a new process.

  Attributes:
    error: the reason of a failure, in one line; None if the run was successful.
    result: the result of the mode; {} after a failure.
    gpu_memory_mb: the peak memory of a GPU; None without GPUs.
  """

  def __init__(self, model_dir, arguments):
    self.model_dir, self.gpu_memory_mb = model_dir, None
    with open(model_dir + '.log', 'w+b') as log, GpuMemory() as memory:
      child = child_process.run_python(
          ['-m', 'estimator_train', *arguments, '--model_dir=' + model_dir], TIMEOUT_SECS,
          environment(), stderr=log)
    self.error, self.gpu_memory_mb = child.error, memory.peak_mb
    self.result = child.json_values[-1] if child.json_values and not child.error else {}
    if self.error is None and not np.isfinite(self.result.get('train_loss', 0.)):
      self.error = 'the loss is {}'.format(self.result['train_loss'])

  @property
  def rate(self):
    return self.result.get('examples_per_sec')

  def variables(self):
    """Returns the variables of the last checkpoint, by name."""
    reader = tf.train.load_checkpoint(self.model_dir)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def environment():
  # Without this, Ampere and later GPUs compute float32 products from factors of 10 bits.
  return dict(child_process.child_environment(), NVIDIA_TF32_OVERRIDE='0')


def main(argv):
  parser = argparse.ArgumentParser(
      prog='scripts/verify_gpu', allow_abbrev=False,
      description='Verifies that the program trains correctly on the GPUs of this host, and '
      'measures how fast. Prints a table, and writes a report.')
  parser.add_argument('--output', default='gpu_report.json', help='path of the report')
  parser.add_argument('--steps', type=int, default=50, help='steps of each run of a workload')
  parser.add_argument('--cpu_replicas', type=int, default=0,
                      help='number of logical CPU devices to use in place of GPUs')
  args = parser.parse_args(argv)
  try:
    if args.steps < 12:  # Ten steps are warm-up.
      raise UserError('--steps must be at least 12', args.steps, 'give a larger number')
    if args.cpu_replicas < 0:
      raise UserError('--cpu_replicas must not be negative', args.cpu_replicas, 'omit it')
    with tempfile.TemporaryDirectory() as folder:
      report = verify(Devices(args.cpu_replicas), args.steps, folder)
    storage.write_json(args.output, report)
  except UserError as error:
    print('error: {}'.format(error), file=sys.stderr)
    return 2
  except OSError as error:
    print('error: the report cannot be written: {} ({}): give another --output'.format(
        args.output, error.strerror), file=sys.stderr)
    return 2
  counts = [sum(row['verdict'] == verdict for row in report['rows'])
            for verdict in (OK, FAILED, NOT_RUN)]
  print('{} ok, {} failed, {} not run, in {:.0f} s; see {}'.format(
      *counts, report['secs'], args.output))
  return 1 if counts[1] else 0


def verify(devices, steps, folder):
  """Runs all checks, prints a row for each, and returns the report."""
  start_time = time.monotonic()
  report = {'date': datetime.date.today().isoformat(), 'host': describe_host(),
            'device_kind': devices.kind, 'num_devices': devices.count, 'steps': steps, 'rows': []}
  print('{}, {}'.format(devices.describe(devices.count), report['host']['gpus'] or 'no GPU'))
  print('| {} |\n|{}'.format(' | '.join(COLUMNS), '---|' * len(COLUMNS)))
  for row in (row for check in CHECKS for row in check(devices, steps, folder)):
    report['rows'].append(row)
    # Each row is printed immediately, because all checks take a quarter of an hour.
    print('| {} |'.format(' | '.join(
        '-' if value is None else str(value) for value in row.values())), flush=True)
  return dict(report, secs=round(time.monotonic() - start_time, 1))


def describe_host():
  inventory = hardware.inspect_gpus()
  return {'machine': machine.describe_processor(), 'python': platform.python_version(),
          'tensorflow': tf.__version__, 'estimator_train': estimator_train.__version__,
          'gpus': [gpu.name for gpu in inventory.gpus],
          'driver': inventory.gpus[0].driver if inventory.gpus else None}


def make_row(check, description, figure, verdict, run=None):
  rate, memory = (run.rate, run.gpu_memory_mb) if run else (None, None)
  return dict(zip(COLUMNS, (check, description, rate and float('{:.4g}'.format(rate)), memory,
                            figure, verdict)))


def train(folder, name, devices, count, arguments):
  return Run(os.path.join(folder, name), ['--mode=train', *arguments, *devices.flags(count)])


def compare(check, description, run, reference, tolerance):
  """Returns the row about the difference between the variables of two runs."""
  for each in (run, reference):
    if each.error is not None:
      return make_row(check, description, each.error, FAILED)
  difference = relative_difference(run.variables(), reference.variables())
  figure = 'difference {:.1e}, tolerance {:.0e}'.format(difference, tolerance)
  return make_row(check, description, figure, OK if difference <= tolerance else FAILED, run)


def relative_difference(variables, expected):
  """Returns the norm of the difference of all variables, divided by the norm of `expected`."""
  if variables.keys() != expected.keys():
    return float('inf')
  squares = np.sum([[np.sum(np.square(np.subtract(variables[name], value, dtype=np.float64))),
                     np.sum(np.square(value, dtype=np.float64))]
                    for name, value in expected.items()], 0)
  return float(np.sqrt(squares[0] / squares[1]))


def share_of_peak(run, rate_at_peak):
  return ', {:.1%} of the rate at peak'.format(run.rate / rate_at_peak) if rate_at_peak else ''


def check_machine(unused_devices, unused_steps, folder):
  run = Run(os.path.join(folder, 'doctor'), ['--mode=doctor'])
  yield make_row('doctor', 'all checks', run.error or '{ok} ok, {warnings} warnings'.format(
      **run.result), FAILED if run.error else OK)


def check_workloads(devices, steps, folder):
  """Trains each published workload on one device and on all, with a constant batch per replica."""
  for flagfile, data_flags, gpu_batch, cpu_batch in WORKLOADS:
    per_replica = gpu_batch if devices.are_gpus else cpu_batch
    flags = ['--flagfile=' + flagfile, *data_flags, '--train_steps={}'.format(steps)]
    if data_flags is LARGE_IMAGES:
      side = 224 if devices.are_gpus else 64
      flags += ['--image_size={0},{0},3'.format(side), '--labels=cnv,dme,drusen,normal']
    rate_of_one = None
    for count in devices.counts:
      run = train(folder, '{}-{}'.format(flagfile, count), devices, count,
                  [*flags, '--batch_size={}'.format(per_replica * count)])
      figure = run.error or '{} per replica'.format(per_replica)
      if run.rate and count == 1:
        rate_of_one = run.rate
        figure += share_of_peak(run, devices.rate_at_peak(flagfile + '.flags, 1 GPU'))
      elif run.rate and rate_of_one:
        figure += ', {:.0%} efficiency'.format(run.rate / rate_of_one / count)
      yield make_row('workload', '{} on {}'.format(flagfile, devices.describe(count)), figure,
                     FAILED if run.error else OK, run)


def check_replicas(devices, unused_steps, folder):
  """Compares the variables after training with the same examples on one device and on all."""
  check, tolerance = 'replicas', GPU_TOLERANCE if devices.are_gpus else CPU_TOLERANCE
  if devices.count == 1:
    yield make_row(check, 'fashion_mnist', 'requires several devices', NOT_RUN)
    return
  arguments = [*EXACT, '--train_steps={}'.format(EXACT_STEPS),
               '--batch_size={}'.format(16 * devices.count)]
  one, many = (train(folder, 'exact-{}'.format(count), devices, count, arguments)
               for count in devices.counts)
  yield compare(check, 'fashion_mnist on {} and on 1'.format(devices.describe(devices.count)),
                many, one, tolerance)
  # On logical CPU devices, there is no NCCL.
  names = (('nccl', 'hierarchical_copy') if devices.are_gpus
           else ('reduction_to_one_device', 'hierarchical_copy'))
  runs = [train(folder, 'exact-' + name, devices, devices.count,
                [*arguments, '--all_reduce_alg=' + name]) for name in names]
  for name, run in zip(names, runs):
    yield compare('all-reduce', '{} and the default'.format(name), run, many, tolerance)


def check_mixed_precision(devices, steps, folder):
  """Compares the loss and the rate of mixed precision with those of float32, for ResNet-50."""
  side, batch = (224, 64) if devices.are_gpus else (32, 4)
  num_classes = 1000 if devices.are_gpus else 10
  arguments = [*LARGE_IMAGES, '--model=resnet50', '--image_size={0},{0},3'.format(side),
               '--labels=' + ','.join('class_{}'.format(index) for index in range(num_classes)),
               '--train_steps={}'.format(steps), '--batch_size={}'.format(batch),
               '--optimizer=momentum', '--learning_rate=0.01']
  fp32, mixed = (train(folder, 'resnet50-' + dtype, devices, 1, [*arguments, '--dtype=' + dtype])
                 for dtype in ('fp32', 'mixed'))
  yield make_row('precision', 'resnet50, fp32', fp32.error or '{} per replica'.format(batch)
                 + share_of_peak(fp32, devices.rate_at_peak('resnet50, 1 GPU')),
                 FAILED if fp32.error else OK, fp32)
  if fp32.error or mixed.error:
    yield make_row('precision', 'resnet50, mixed', mixed.error or fp32.error, FAILED)
    return
  loss, expected = mixed.result['train_loss'], fp32.result['train_loss']
  difference = abs(loss - expected) / max(abs(expected), 1.)
  yield make_row('precision', 'resnet50, mixed', 'loss {:.4g}, fp32 {:.4g}; {:.2f} times the '
                 'rate'.format(loss, expected, mixed.rate / fp32.rate)
                 + share_of_peak(mixed, devices.rate_at_peak('resnet50 mixed, 1 GPU')),
                 OK if difference <= MIXED_LOSS_TOLERANCE else FAILED, mixed)


def check_resuming(devices, unused_steps, folder):
  """Stops a run with SIGTERM, resumes it, and compares it with a run without a break."""
  check, description = 'resume', 'fashion_mnist, after SIGTERM'
  steps = 400 if devices.are_gpus else 60
  arguments = ['--mode=train', *EXACT, '--train_steps={}'.format(steps), '--log_every_steps=1',
               '--batch_size={}'.format(16 * devices.count), *devices.flags(devices.count)]
  whole = Run(os.path.join(folder, 'whole'), arguments)
  model_dir = os.path.join(folder, 'interrupted')
  code = stop_early([sys.executable, '-m', 'estimator_train', *arguments,
                     '--model_dir=' + model_dir], os.path.join(model_dir, 'metrics.jsonl'))
  if code != 128 + signal.SIGTERM:
    yield make_row(check, description, 'exit code {} after SIGTERM'.format(code), FAILED)
    return
  resumed = Run(model_dir, arguments)
  row = compare(check, description, resumed, whole,
                GPU_TOLERANCE if devices.are_gpus else CPU_TOLERANCE)
  if not resumed.error and not 0 < resumed.result['steps_run'] < steps:
    row.update(figure='the run was not interrupted', verdict=FAILED)
  yield row


def stop_early(command, metrics_path):
  """Sends SIGTERM to a run after its first logged steps, and returns its exit code."""
  process = child_process.start_process(command, environment(), subprocess.DEVNULL,
                                        subprocess.DEVNULL)
  try:
    deadline = time.monotonic() + TIMEOUT_SECS
    while process.poll() is None and time.monotonic() < deadline:
      with contextlib.suppress(OSError), open(metrics_path, encoding='utf-8') as file:
        if file.read().count('\n') >= 5:
          break
      time.sleep(.02)
    process.terminate()
    return process.wait(max(1., deadline - time.monotonic()))
  except subprocess.TimeoutExpired:
    return None
  finally:
    if process.poll() is None:
      process.kill()
      process.wait()


CHECKS = (check_machine, check_workloads, check_replicas, check_mixed_precision, check_resuming)

if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
