"""Converts the trace of a step to Chrome's format."""

from typing import Any

from tensorflow.python.client import timeline


def chrome_trace(step_stats: Any) -> str:
  """Returns a Chrome trace of the operations in the step_stats of a RunMetadata, as JSON.

  Not a workaround for a defect: this function uses the private name `timeline.Timeline`
  (tensorflow_core/python/client/timeline.py:346), because no public function makes a Chrome trace.
  The trace has no dataflow arrows, because arrows would wrongly connect operations of the same name
  in different steps.
  """
  return timeline.Timeline(step_stats).generate_chrome_trace_format(
      show_dataflow=False)
