"""The networks of the published workloads, by the value of `--model`.

Each function takes the shape of the images, (height, width, channels), and the number of classes.
It returns an uncompiled model from float32 [B, height, width, channels] to probabilities or logits
[B, num_classes]. All convolutions are 3x3, all poolings 2x2.
"""

from typing import Tuple

import tensorflow.compat.v1 as tf

ImageShape = Tuple[int, int, int]


def fashion_cnn(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the small convolutional network of fashion_mnist.flags.

  The images must be at least 18 pixels high and wide. The model has 93,322 parameters for images of
  28x28x1 and 10 classes. Its outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Conv2D(64, 3, activation='relu'),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_conv8(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds one convolution with 8 filters, as in Keras's tf.data examples.

  Its outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(8, 3, padding='same', activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_deep(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_8gpu.flags, with batch norm and dropout.

  Batch norm computes its statistics over the batch of each replica, and each replica draws its own
  dropout masks. The trained weights therefore depend slightly on the number of replicas. The
  outputs are probabilities.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Conv2D(256, 3, activation='relu'),
      layers.BatchNormalization(),
      layers.Conv2D(128, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Dropout(0.25),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dropout(0.5),
      layers.Dense(num_classes, activation='softmax'),
  ])


def mnist_dense(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_multi_worker_simple.flags. Its outputs are logits."""
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dense(num_classes),
  ])


def mnist_practical(image_shape: ImageShape, num_classes: int) -> tf.keras.Model:
  """Builds the network of mnist_multi_worker_practical.flags. Its outputs are logits.

  The publication has two examples, which this package calls the simple and the practical form.
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.Conv2D(32, 3, activation='relu', input_shape=image_shape),
      layers.MaxPooling2D(2),
      layers.Flatten(),
      layers.Dense(64, activation='relu'),
      layers.Dense(num_classes),
  ])
