"""Traces of steps, for Chrome."""

from typing import Any

from tensorflow.python.client import timeline


def chrome_trace(step_stats: Any) -> str:
  """Returns a Chrome trace of the operations in the step_stats of a RunMetadata, as JSON.

  Private name, no workaround: TensorFlow has no public function for it
  (tensorflow_core/python/client/timeline.py:346). The trace has no dataflow arrows, which would
  connect operations of the same name across steps.
  """
  return timeline.Timeline(step_stats).generate_chrome_trace_format(
      show_dataflow=False)
