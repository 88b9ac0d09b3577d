"""Writes `report/steps.json`, which has the step times of a run for the charts."""

import os

import numpy as np

from estimator_train.files import atomic

REPORT_FOLDER = 'report'
_STEPS_FILE = 'steps.json'
_MAX_POINTS, _MAX_BINS = 500, 60


def write_step_curve(model_dir: str, global_steps: np.ndarray, secs: np.ndarray) -> None:
  """Writes the curve and the histogram of the step times.

  Args:
    model_dir: model_dir of the run.
    global_steps: global step of each step, int [num_steps]; there is at least one step.
    secs: duration of each step in seconds, float [num_steps].
  """
  folder = os.path.join(model_dir, REPORT_FOLDER)
  os.makedirs(folder, exist_ok=True)
  # Each point of the curve stands for consecutive steps. This list contains, for each point, the
  # indices of its steps.
  steps_of_points = np.array_split(np.arange(len(secs)), min(_MAX_POINTS, len(secs)))
  # The bins end at the 99th percentile, and the last bin includes all slower steps. If the bins
  # ended at the slowest step, they could be so wide that one bin contains almost all steps.
  low, high = np.percentile(secs, [0, 99])
  edges = np.linspace(low, max(high, low * 1.001), min(_MAX_BINS, len(secs)) + 1)
  atomic.write_json(os.path.join(folder, _STEPS_FILE), {
      'global_step': [int(global_steps[steps[-1]]) for steps in steps_of_points],
      'mean_secs': [float(secs[steps].mean()) for steps in steps_of_points],
      'max_secs': [float(secs[steps].max()) for steps in steps_of_points],
      'histogram': {'edges_secs': edges.tolist(),
                    'counts': np.histogram(np.minimum(secs, edges[-1]), edges)[0].tolist()},
  })
