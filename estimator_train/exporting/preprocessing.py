"""Describes the preprocessing of a model's images, in `preprocessing.json` and in ONNX metadata."""

from typing import Any, Dict

import numpy as np

from estimator_train.exporting.trained_model import RestoredModel
from estimator_train.models import model_inputs

PREPROCESSING_FILE = 'preprocessing.json'


def describe(restored: RestoredModel) -> Dict[str, Any]:
  """Returns what a client must know of the inputs of an exported model, for a JSON object.

  Returns:
    A dict with the keys
      input: 'pictures', if the export resizes and scales uint8 images itself, or 'tensor';
      size: [height, width] of the network;
      resize: the method and its conventions, which are those of TensorFlow 1;
      channel_order: 'RGB' or 'BGR' in the tensor; None unless there are three channels. Pictures
        are always RGB;
      mean, scale: lists with a number per channel of the tensor: (resized - mean) * scale;
      class_names: the class names in the order of the outputs.
    If the examples are not images, only `input` and `class_names`.
  """
  description: Dict[str, Any] = {'input': 'pictures' if restored.exports_pictures else 'tensor'}
  if restored.image_shape is not None:
    height, width, channels = restored.image_shape
    name = restored.settings.model.preprocess
    mean, scale = (np.broadcast_to(values, channels).tolist()
                   for values in model_inputs.MEANS_AND_SCALES[name])
    order = None if channels != 3 else 'BGR' if name == 'caffe' else 'RGB'
    description.update(
        size=[height, width],
        resize={'method': 'bilinear', 'antialias': False, 'half_pixel_centers': False,
                'align_corners': False},
        channel_order=order, mean=mean, scale=scale)
  return dict(description, class_names=list(restored.dataset.labels))
