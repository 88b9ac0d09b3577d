"""Trains Keras models through TensorFlow 1.15's Estimators, on one to many devices."""

__version__ = '0.1.0'
