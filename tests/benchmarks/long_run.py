"""Whether a long run stays as it began: memory, open files, threads, step time, and what it writes.

  python tests/benchmarks/long_run.py [--minutes=60] [--sample_secs=5]

Trains a small model on the sample that ships with the package, as a process of its own, with
checkpoints, evaluations and summaries, and looks at it from outside every few seconds. SIGTERM ends
it. After the warm-up, the first fifth of the time, a line is fitted to what grows by bytes; what is
counted, and the time of a step, is compared between the first third and the last, by medians, as
one moment would turn a line: a slow one of the machine, or one in which a checkpoint is open. The
processor time of a step shows what the run does more of; the wall time also what else the machine
does.

It exits with code 1 when a figure is above its bound.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import common
import numpy as np

LOG_EVERY_STEPS = 100
_FLAGS = ('--mode=train_and_evaluate', '--dataset=fashion_mnist_sample',
          '--model=own_models:two_layers', '--optimizer=momentum', '--learning_rate=0.001',
          '--batch_size=32', '--train_steps=2000000000', '--save_checkpoints_steps=2000',
          '--eval_every_steps=4000', '--log_every_steps={}'.format(LOG_EVERY_STEPS),
          '--noreport_page')
_STEP = re.compile(r'step (\d+)/')
_TAIL_BYTES = 4096
_WARM_UP = .2
_END_SECS = 120
_TICKS = os.sysconf('SC_CLK_TCK')


class Sample(NamedTuple):
  """What is seen of the process at a moment.

  Attributes:
    secs: since the first sample.
    step: the global step of its last line.
    cpu_secs: processor time that it has used.
    memory: resident bytes.
    files: open file descriptors.
    threads: of it.
    event_bytes: of the event files for TensorBoard.
    log_bytes: of what it wrote on standard error.
    names: files and folders in its model_dir.
    disk_bytes: of all of them but the event files.
  """
  secs: float
  step: int
  cpu_secs: float
  memory: int
  files: int
  threads: int
  event_bytes: int
  log_bytes: int
  names: int
  disk_bytes: int


class Figure(NamedTuple):
  """A figure of the run, and the most that it may be."""
  name: str
  unit: str
  value: float
  bound: float

  @property
  def is_kept(self) -> bool:
    return self.value <= self.bound


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_count('--minutes', 60, 'how long to look at it')
  parser.add_count('--sample_secs', 5, 'between two looks')
  args = parser.parse_args()

  machine = common.machine()
  with tempfile.TemporaryDirectory(prefix='long-run-') as folder:
    samples, throughput = _watch(Path(folder), 60. * args.minutes, args.sample_secs)
  figures = _figures(samples)
  _report(machine, samples, figures, throughput)
  if not all(figure.is_kept for figure in figures):
    sys.exit(1)


def _watch(folder: Path, secs: float, sample_secs: float) -> Any:
  """Runs the program for so long; returns the samples, and its `throughput.json`."""
  model_dir, log = folder / 'model', folder / 'log'
  environment = dict(os.environ, PYTHONPATH='{}:{}'.format(common.ROOT, common.ROOT / 'tests'))
  environment.pop('TF_CONFIG', None)
  with log.open('wb') as err:
    process = subprocess.Popen(
        [sys.executable, '-m', 'estimator_train', '--model_dir={}'.format(model_dir)]
        + list(_FLAGS), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=err)
  try:
    samples = []
    began: Optional[float] = None
    while began is None or time.monotonic() < began + secs:
      time.sleep(sample_secs if began is not None else .5)
      if process.poll() is not None:
        raise common.ChildFailed('ended with code {}'.format(process.returncode),
                                 log.read_text().splitlines())
      step = _last_step(log)
      if step is None:
        continue
      began = began or time.monotonic()
      samples.append(_look(process.pid, time.monotonic() - began, step, model_dir, log))
      if len(samples) % 60 == 0:
        common.log('{secs:.0f} s: step {step}, {memory} bytes, {files} files'.format(
            **samples[-1]._asdict()))
    process.send_signal(signal.SIGTERM)
    code = process.wait(_END_SECS)
    if code != 128 + signal.SIGTERM:
      raise common.ChildFailed('SIGTERM ended it with code {}'.format(code),
                               log.read_text().splitlines())
    return samples, json.loads((model_dir / 'throughput.json').read_text())
  finally:
    if process.poll() is None:
      process.kill()
      process.wait()


def _last_step(log: Path) -> Optional[int]:
  with log.open('rb') as file:
    file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
    steps = _STEP.findall(file.read().decode('utf-8', 'replace'))
  return int(steps[-1]) if steps else None


def _look(pid: int, secs: float, step: int, model_dir: Path, log: Path) -> Sample:
  folder = Path('/proc') / str(pid)
  status = dict(line.split(':', 1) for line in (folder / 'status').read_text().splitlines())
  times = (folder / 'stat').read_text().rpartition(')')[2].split()[11:13]
  names, events, others = 0, 0, 0
  for parent, folders, files in os.walk(str(model_dir)):
    names += len(folders) + len(files)
    for name in files:
      try:
        size = os.stat(os.path.join(parent, name)).st_size
      except FileNotFoundError:  # An old checkpoint.
        continue
      if 'tfevents' in name:
        events += size
      else:
        others += size
  return Sample(secs, step, sum(map(int, times)) / _TICKS, int(status['VmRSS'].split()[0]) * 1024,
                len(os.listdir(str(folder / 'fd'))), int(status['Threads']), events,
                log.stat().st_size, names, others)


def _figures(samples: Sequence[Sample]) -> List[Figure]:
  """Returns the slopes and drifts after the warm-up, with their bounds."""
  steady = [sample for sample in samples if sample.secs >= _WARM_UP * samples[-1].secs]
  steps = np.array([sample.step for sample in steady])
  hours = np.array([sample.secs for sample in steady]) / 3600

  def slope(name: str, by: np.ndarray) -> float:
    return float(np.polyfit(by, [getattr(sample, name) for sample in steady], 1)[0])

  base = steady[0].memory
  return [
      # A hundred bytes a step would be ten times that.
      Figure('memory', '% of it an hour', 100 * slope('memory', hours) / base, 5.),
      Figure('open files', 'more, first to last third', _more(steady, 'files'), 0.),
      Figure('threads', 'more, first to last third', _more(steady, 'threads'), 0.),
      Figure('processor time of a step', '% from first to last third',
             _drift(steady, 'cpu_secs'), 5.),
      Figure('wall time of a step', '% from first to last third', _drift(steady, 'secs'), 5.),
      # They are for each line that is logged, however many steps lie between two.
      Figure('event files', 'bytes a logged step', slope('event_bytes', steps) * LOG_EVERY_STEPS,
             1000.),
      Figure('log', 'bytes a logged step', slope('log_bytes', steps) * LOG_EVERY_STEPS, 200.),
      Figure('files in model_dir', 'more, first to last third', _more(steady, 'names'), 0.),
      Figure('bytes there without event files', '% of it an hour',
             100 * slope('disk_bytes', hours) / steady[0].disk_bytes, 5.),
  ]


def _more(samples: Sequence[Sample], name: str) -> float:
  """Returns how much more of this there mostly is in the last third than in the first."""
  values = [getattr(sample, name) for sample in samples]
  third = len(values) // 3
  return statistics.median(values[-third:]) - statistics.median(values[:third])


def _drift(samples: Sequence[Sample], name: str) -> float:
  """Returns by how many percent a step takes more of this in the last third than in the first."""
  a_step = [(getattr(after, name) - getattr(before, name)) / (after.step - before.step)
            for before, after in zip(samples, samples[1:]) if after.step > before.step]
  third = len(a_step) // 3
  return 100 * (statistics.median(a_step[-third:]) / statistics.median(a_step[:third]) - 1)


def _report(machine: Dict[str, Any], samples: Sequence[Sample], figures: Sequence[Figure],
            throughput: Dict[str, Any]) -> None:
  first, last = samples[0], samples[-1]
  print('{}; {:.0f} s, steps {:,} to {:,}\n'.format(
      common.machine_line(machine), last.secs - first.secs, first.step, last.step))
  print(common.markdown_table(
      ['figure', 'measured', 'unit', 'bound', ''],
      [[figure.name, '{:.2f}'.format(figure.value), figure.unit, '{:g}'.format(figure.bound),
        common.verdict(figure.is_kept)] for figure in figures]) + '\n')
  print(json.dumps({
      'benchmark': 'long_run', 'machine': machine, 'first': first._asdict(),
      'last': last._asdict(), 'figures': [figure._asdict() for figure in figures],
      'examples_per_sec': throughput['examples_per_sec'],
      'step_secs': throughput['step_secs'], 'drift': throughput['drift']}))


if __name__ == '__main__':
  common.exit_with(main)
