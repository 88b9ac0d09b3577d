"""`report/steps.json`: the time of the steps over a run, in no more points than a picture shows."""

import os

import numpy as np

from estimator_train.files import atomic

FOLDER = 'report'
FILE = 'steps.json'
_MAX_POINTS, _MAX_BARS = 500, 60


def write(model_dir: str, global_step: np.ndarray, secs: np.ndarray) -> None:
  """Writes the curve and the histogram of the steps' times.

  Args:
    model_dir: of the run.
    global_step: the steps' numbers, at least one.
    secs: how long each took.
  """
  folder = os.path.join(model_dir, FOLDER)
  os.makedirs(folder, exist_ok=True)
  parts = np.array_split(np.arange(len(secs)), min(_MAX_POINTS, len(secs)))
  # The few slowest would leave the others one bar; they are counted in the last.
  low, high = np.percentile(secs, [0, 99])
  edges = np.linspace(low, max(high, low * 1.001), min(_MAX_BARS, len(secs)) + 1)
  atomic.write_json(os.path.join(folder, FILE), {
      'global_step': [int(global_step[part[-1]]) for part in parts],
      'mean_secs': [float(secs[part].mean()) for part in parts],
      'max_secs': [float(secs[part].max()) for part in parts],
      'histogram': {'edges_secs': edges.tolist(),
                    'counts': np.histogram(np.minimum(secs, edges[-1]), edges)[0].tolist()},
  })
