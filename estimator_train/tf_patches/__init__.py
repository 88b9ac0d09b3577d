"""Works around defects of TensorFlow 1.15.0, and contains all uses of TensorFlow's private names.

These modules import no other package of estimator_train. Each public function or class is one
workaround. Its docstring names the defect, where the defect is in TensorFlow's sources, and the
symptom; or which private name is used, because no public one does the same.
The development documentation lists these docstrings. The tests that fail without a workaround are
those of `tests/tf_patches`, or call the code that uses the workaround.
"""
