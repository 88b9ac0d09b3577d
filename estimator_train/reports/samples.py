"""Writes a few examples of an evaluation with their predictions, for the report page.

`report/samples.json` has the predicted classes of images, which are written as PNG files.
`report/outputs.json` has the true and predicted values of outputs that predict numbers.
"""

import io
import os
from typing import Any, List, Optional, Sequence

import numpy as np

from estimator_train.files import atomic
from estimator_train.reports.step_curve import REPORT_FOLDER

_SAMPLES_FILE = 'samples.json'
OUTPUTS_FILE = 'outputs.json'
# The charts of an output, by its index in outputs.json.
VALUES_FILE, ERRORS_FILE = 'output-{}-values.png', 'output-{}-errors.png'
_MAX_VALUES = 5000  # Per output, of which an example may have several.


def write_samples(model_dir: str, class_names: Sequence[str], samples: Sequence[Any]) -> None:
  """Writes the examples and their images, or nothing if Pillow is not installed.

  Args:
    model_dir: model_dir of the run.
    class_names: class names, by class index.
    samples: examples with the attributes `image` (pixel values from 0 to 255,
      [height, width, 1 or 3]), `class_index` (of the true class) and `outputs` (the outputs of the
      model, [num_classes]).
  """
  if not samples:
    return
  try:
    from PIL import Image  # Optional: only --mode=audit and the report page use Pillow.
  except ImportError:
    return
  folder = os.path.join(model_dir, REPORT_FOLDER)
  os.makedirs(folder, exist_ok=True)
  entries = []
  for index, sample in enumerate(samples):
    image_name = 'sample-{:02d}.png'.format(index)
    pixels = np.clip(sample.image, 0, 255).astype(np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(png, 'PNG')
    atomic.write_bytes(os.path.join(folder, image_name), png.getvalue())
    probabilities = as_probabilities(sample.outputs)
    predicted = int(np.argmax(probabilities))
    entries.append({
        'label': class_names[sample.class_index], 'predicted': class_names[predicted],
        'probability': float(probabilities[predicted]), 'image': image_name})
  atomic.write_json(os.path.join(folder, _SAMPLES_FILE), {'samples': entries})


def write_output_samples(model_dir: str, samples: Sequence[Any]) -> None:
  """Writes the true and predicted values of outputs that predict numbers.

  Args:
    model_dir: model_dir of the run.
    samples: for each output, an object with the attributes `output_name`, `targets` and `outputs`,
      arrays of the same shape.
  """
  if not samples:
    return
  folder = os.path.join(model_dir, REPORT_FOLDER)
  os.makedirs(folder, exist_ok=True)
  atomic.write_json(os.path.join(folder, OUTPUTS_FILE), {
      sample.output_name: {'examples': len(sample.targets), **{
          name: _finite_numbers(values) for name, values in (
              ('true', sample.targets), ('predicted', sample.outputs))}}
      for sample in samples})


def _finite_numbers(values: np.ndarray) -> List[Optional[float]]:
  """Returns the first values as a list, with None for values that are not finite."""
  return [float('{:.6g}'.format(value)) if np.isfinite(value) else None
          for value in values.astype(np.float64).ravel()[:_MAX_VALUES]]


def as_probabilities(outputs: np.ndarray) -> np.ndarray:
  """Returns the class probabilities [num_classes]. Outputs that are logits are converted."""
  outputs = outputs.astype(np.float64)
  if outputs.min() >= 0 and abs(outputs.sum() - 1) < 1e-3:
    return outputs
  exponentials = np.exp(outputs - outputs.max())
  return exponentials / exponentials.sum()
