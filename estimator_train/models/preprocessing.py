"""Scales pixel values to the range that a network expects, in the graph of the model."""

from typing import Callable

import tensorflow.compat.v1 as tf

# ImageNet statistics with which the networks of tf.keras.applications were trained. `caffe` uses
# the means of blue, green and red, for pixel values in [0, 255]. `torch` uses the means and the
# standard deviations of red, green and blue, for pixel values in [0, 1].
_CAFFE_MEANS = (103.939, 116.779, 123.68)
_TORCH_MEANS, _TORCH_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_preprocess(name: str, height: int, width: int,
                    channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the function that scales a batch of images on the device of the model.

  Args:
    name: a value of `--preprocess`.
    height: the height of the images, in pixels.
    width: the width of the images, in pixels.
    channels: the number of channels of the model's input. The single channel of a grey image is
      repeated to this number.

  Returns:
    A function that takes pixel values from 0 to 255, uint8 or float32, [B, height, width, channels]
    or of grey images [B, height, width, 1], and returns float32 [B, height, width, channels].

  Raises:
    ValueError: no preprocessing has this name.
  """
  if name not in _SCALE_FUNCTIONS:
    raise ValueError('no preprocessing is implemented for {!r}'.format(name))

  def preprocess(pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.cast(pixels, tf.float32)
    shape = tf.concat([tf.shape(pixels)[:3], [channels]], 0)
    scaled = tf.broadcast_to(_SCALE_FUNCTIONS[name](pixels), shape)
    scaled.set_shape((None, height, width, channels))
    return scaled

  return preprocess


_SCALE_FUNCTIONS = {
    'unit': lambda pixels: pixels / 255.,
    'tf': lambda pixels: pixels / 127.5 - 1.,
    'caffe': lambda pixels: pixels[..., ::-1] - tf.constant(_CAFFE_MEANS),
    'torch': lambda pixels: (pixels / 255. - tf.constant(_TORCH_MEANS))
             / tf.constant(_TORCH_DEVIATIONS),
}
