"""Diagnostics of the machine for --mode=doctor: what it has, and whether training can run on it.

Each check is a function of facts, which another function of the module collects. TensorFlow is
imported in a child process only, since the import may crash or hang on a faulty machine.
"""
