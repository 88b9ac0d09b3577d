"""Exports trained models as SavedModel, Keras .h5, TensorFlow Lite or ONNX, and verifies them."""
