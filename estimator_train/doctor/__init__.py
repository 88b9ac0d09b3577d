"""Diagnoses the machine for --mode=doctor: what it has, and whether training can run on it.

Each check takes facts that another function of its module has collected. TensorFlow is imported in
a child process only, because the import may crash or hang on a faulty machine.
"""
