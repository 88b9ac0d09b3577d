"""Paths of files in the package, as it is installed."""

import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folder that contains the package; in a checkout, its root.
PARENT = os.path.dirname(PACKAGE)
CONFIGS = os.path.join(PACKAGE, 'configs')
QUICKSTART = os.path.join(CONFIGS, 'quickstart.flags')
REQUIREMENTS = os.path.join(PACKAGE, 'install_requires.txt')
