"""The start of a new run, of a resumed run, and of the prediction of one image.

  python tests/benchmarks/start_up.py [--data_dir=DIR] [--runs=10] [--against=CHECKOUT]

The first two are the times from the start of the process to the end of its first training step,
with batches of 256 images; the third is the time of the whole process. With --against, another
checkout of this package runs in turn with this one, with the same interpreter.
"""

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

import common
from PIL import Image

DEADLINE_SECS = 300.
# Like `-m estimator_train`, but does not prefer the package in the current folder.
_RUN = 'import runpy, sys; del sys.path[0]; runpy.run_module("estimator_train", None, "__main__")'
NEW, RESUMED, PREDICT = 'new run', 'resumed run', '--mode=predict of one image'


def main() -> None:
  parser = common.Parser(__doc__)
  parser.add_data_dir(required=False)
  parser.add_count('--runs', 10, 'runs of each kind')
  parser.add_argument('--against', type=Path, help='folder of another checkout')
  args = parser.parse_args()

  checkouts = {'this checkout': common.ROOT}
  if args.against is not None:
    checkouts['the other'] = args.against.resolve()
  secs: Dict[str, Dict[str, List[float]]] = {
      kind: {name: [] for name in checkouts} for kind in (NEW, RESUMED, PREDICT)}
  parts: Dict[str, List[Dict[str, float]]] = {NEW: [], RESUMED: []}
  common.warm_up(DEADLINE_SECS)
  with tempfile.TemporaryDirectory(prefix='benchmark-') as folder:
    image = Path(folder) / 'image.png'
    Image.new('L', (28, 28), 100).save(str(image))
    for _ in range(args.runs):
      for name, checkout in checkouts.items():
        run = _Runs(checkout, Path(folder) / 'run', args.data_dir)
        for kind, steps in ((NEW, 2), (RESUMED, 4)):
          throughput = run.train(steps)
          secs[kind][name].append(throughput['time_to_first_step_secs'])
          if checkout == common.ROOT:
            parts[kind].append(throughput['first_step_parts_secs'])
        secs[PREDICT][name].append(run.predict(image))
  _report(secs, parts)


class _Runs:
  """A run directory of a checkout, which is removed if it exists."""

  def __init__(self, checkout: Path, model_dir: Path, data_dir: Optional[str]) -> None:
    shutil.rmtree(str(model_dir), ignore_errors=True)
    self._model_dir = model_dir
    self._variables = {'PYTHONPATH': str(checkout)}
    self._flags = ['-c', _RUN, '--model_dir={}'.format(model_dir)] + (
        ['--dataset=fashion_mnist_sample'] if data_dir is None
        else ['--dataset=fashion_mnist', '--data_dir=' + data_dir])

  def train(self, steps: int) -> Dict[str, Any]:
    """Trains up to a step, and returns throughput.json."""
    common.run_python(self._flags + [
        '--mode=train', '--noreport_page', '--batch_size=256', '--throughput_warmup_steps=0',
        '--train_steps={}'.format(steps)], DEADLINE_SECS, variables=self._variables)
    found: Dict[str, Any] = json.loads(
        (self._model_dir / 'throughput.json').read_text(encoding='utf-8'))
    return found

  def predict(self, image: Path) -> float:
    """Returns the seconds that the prediction of an image takes."""
    began = time.perf_counter()
    common.run_python(self._flags + ['--mode=predict', '--input={}'.format(image)], DEADLINE_SECS,
                      variables=self._variables)
    return time.perf_counter() - began


def _report(secs: Dict[str, Dict[str, List[float]]],
            parts: Dict[str, List[Dict[str, float]]]) -> None:
  """Prints the medians, the ratio to the other checkout, and the medians of the parts."""
  machine = common.machine()
  print(common.machine_line(machine) + '\n')
  medians = {kind: {name: round(statistics.median(values), 3) for name, values in by_name.items()}
             for kind, by_name in secs.items()}
  ratios = {kind: common.median_ratio(by_name['the other'], by_name['this checkout'])
            for kind, by_name in secs.items() if 'the other' in by_name}
  print(common.markdown_table(
      ['start', 's', 'the other checkout, s', 'ratio'],
      [[kind, '{:.2f}'.format(by_name['this checkout']),
        '{:.2f}'.format(by_name['the other']) if kind in ratios else '',
        '{of_medians:.2f} ({min:.2f} to {max:.2f})'.format(**ratios[kind])
        if kind in ratios else ''] for kind, by_name in medians.items()]))
  median_parts = {
      kind: {part: round(statistics.median(run.get(part, 0.) for run in runs), 3)
             for part in runs[0]} for kind, runs in parts.items()}
  print('\n' + json.dumps({'benchmark': 'start_up', 'machine': machine, 'secs': secs,
                           'medians': medians, 'ratios': ratios, 'parts': median_parts}))


if __name__ == '__main__':
  common.exit_with(main)
