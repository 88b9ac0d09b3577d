"""From the pixels that the input delivers to those that a network takes, in the model's graph."""

from typing import Callable

import tensorflow.compat.v1 as tf

# Of ImageNet, as the networks of tf.keras.applications were trained with: caffe's means of blue,
# green and red in grey levels; torch's mean and deviation of red, green and blue in [0, 1].
_CAFFE_MEANS = (103.939, 116.779, 123.68)
_TORCH_MEANS, _TORCH_DEVIATIONS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_preprocess(name: str, height: int, width: int,
                    channels: int) -> Callable[[tf.Tensor], tf.Tensor]:
  """Makes the function that scales a batch of images on the device of the model.

  Args:
    name: a choice of `--preprocess`.
    height: of the images.
    width: of the images.
    channels: that the model takes; a single one is repeated to as many.

  Returns:
    A function of grey levels from 0 to 255, uint8 or float32 [B, height, width, 1 or channels],
    that returns float32 [B, height, width, channels].

  Raises:
    ValueError: there is no such preprocessing.
  """
  if name not in _SCALE:
    raise ValueError('no preprocessing is implemented for {!r}'.format(name))

  def preprocess(pixels: tf.Tensor) -> tf.Tensor:
    pixels = tf.cast(pixels, tf.float32)
    shape = tf.concat([tf.shape(pixels)[:3], [channels]], 0)
    scaled = tf.broadcast_to(_SCALE[name](pixels), shape)
    scaled.set_shape((None, height, width, channels))
    return scaled

  return preprocess


_SCALE = {
    'unit': lambda pixels: pixels / 255.,
    'tf': lambda pixels: pixels / 127.5 - 1.,
    'caffe': lambda pixels: pixels[..., ::-1] - tf.constant(_CAFFE_MEANS),
    'torch': lambda pixels: (pixels / 255. - tf.constant(_TORCH_MEANS))
             / tf.constant(_TORCH_DEVIATIONS),
}
