"""What the report page of a finished run costs the process that trained it.

  python tests/benchmarks/page.py [--runs=7] [--model_dir=DIR]

Trains `fashion_cnn` for 300 steps on the sample of Fashion-MNIST, unless --model_dir is a finished
run. Then new processes import what a training imports, and write the page of the run once.
"""

import json
import os
import statistics
import tempfile

import common

TARGET_SECS = .5
_DEADLINE_SECS = 600.
_FLAGS = ('--mode=train_and_evaluate', '--dataset=fashion_mnist_sample', '--model=fashion_cnn',
          '--batch_size=128', '--train_steps=300')
_WRITE = '''
import json, sys, time
import estimator_train.modes.train
from estimator_train.reports import page
before = time.perf_counter(), time.process_time()
path = page.write_page(sys.argv[1])
after = time.perf_counter(), time.process_time()
print(json.dumps([path, after[0] - before[0], after[1] - before[1]]))
'''


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_count('--runs', 7, 'processes that write the page')
  parser.add_argument('--model_dir', help='folder of a finished run')
  args = parser.parse_args()
  machine = common.machine()
  with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
    if not args.model_dir:
      common.run_python(['-m', 'estimator_train', '--model_dir=' + folder, *_FLAGS],
                        _DEADLINE_SECS)
    written = [json.loads(common.run_python(
        ['-c', _WRITE, args.model_dir or folder], _DEADLINE_SECS).lines[-1])
               for _ in range(args.runs)]
    size = os.path.getsize(written[0][0])
  wall, cpu = (statistics.median(secs) for secs in list(zip(*written))[1:])
  reached = cpu <= TARGET_SECS

  print('{}; {} processes\n'.format(common.machine_line(machine), args.runs))
  print(common.markdown_table(
      ['of the page', 'median', 'target at most {:g} s'.format(TARGET_SECS)],
      [['CPU time', '{:.2f} s'.format(cpu), common.verdict(reached)],
       ['elapsed time', '{:.2f} s'.format(wall), ''],
       ['size', '{:,} kB'.format(size // 1000), '']]) + '\n')
  print(json.dumps({'benchmark': 'page', 'machine': machine, 'runs': args.runs, 'cpu_secs': cpu,
                    'wall_secs': wall, 'bytes': size, 'targets': {'cpu_secs': TARGET_SECS},
                    'reached': {'cpu_secs': reached}}))


if __name__ == '__main__':
  common.exit_with(main)
