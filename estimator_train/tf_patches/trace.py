"""Traces of steps for Chrome."""

from typing import Any

from tensorflow.python.client import timeline


def chrome_trace(step_stats: Any) -> str:
  """Returns the JSON of a Chrome trace of the operations that a RunMetadata holds.

  Private name, no workaround: TensorFlow has no public function for it
  (tensorflow_core/python/client/timeline.py:346). Dataflow is left out, whose arrows join
  operations of the same name, of whatever step.
  """
  return timeline.Timeline(step_stats).generate_chrome_trace_format(
      show_dataflow=False)
