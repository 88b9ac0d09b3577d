"""ResNet-50 as published, for imagenet_resnet50.flags, whose first lines state the command.

Unlike `--model=resnet50`, whose head is a dense layer on all features, this network ends with
global average pooling.
"""

import tensorflow.compat.v1 as tf


def model(image_shape, num_classes):
  return tf.keras.applications.ResNet50(weights=None, input_shape=image_shape, classes=num_classes)
