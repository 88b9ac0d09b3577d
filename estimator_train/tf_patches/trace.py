"""Traces of steps in Chrome's format."""

from typing import Any

from tensorflow.python.client import timeline


def chrome_trace(step_stats: Any) -> str:
  """Returns a Chrome trace of the operations in the step_stats of a RunMetadata, as JSON.

  Private name, no workaround: TensorFlow has no public function for this
  (tensorflow_core/python/client/timeline.py:346). The trace has no dataflow arrows, because they
  would wrongly connect operations of the same name in different steps.
  """
  return timeline.Timeline(step_stats).generate_chrome_trace_format(
      show_dataflow=False)
