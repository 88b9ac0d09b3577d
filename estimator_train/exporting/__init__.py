"""Exports trained models as SavedModel, Keras .h5 or TensorFlow Lite files."""
