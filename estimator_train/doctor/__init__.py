"""Diagnoses for --mode=doctor whether training can run on the machine.

In each module, some functions collect properties of the machine. The functions `check_...` judge
these properties and do not examine the machine themselves. TensorFlow is imported in a child
process only, because the import may crash or hang on a faulty machine.
"""
