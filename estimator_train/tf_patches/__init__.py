"""Works around defects of TensorFlow 1.15.0, and contains all uses of TensorFlow's private names.

These modules import no other package of estimator_train. Each public function or class is one
workaround. Its docstring states the defect, its place in TensorFlow's sources, and the symptom. If
there is no defect, it states which private name is used, and why no public name does the same. The
development documentation lists these docstrings. For each workaround, a test fails without it. This
test is in `tests/tf_patches`, or calls the code that uses the workaround.
"""
