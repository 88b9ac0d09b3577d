"""What this machine has, and whether training can run on it: for --mode=doctor.

Each check is a function of facts, and a function beside it looks the facts up. TensorFlow is only
imported in a child process, as that may crash or hang on the very machines that need a doctor.
"""
