"""Where the files of the package are, wherever it is installed."""

import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folder to import the package from; of a checkout, its root.
PARENT = os.path.dirname(PACKAGE)
CONFIGS = os.path.join(PACKAGE, 'configs')
QUICKSTART = os.path.join(CONFIGS, 'quickstart.flags')
REQUIREMENTS = os.path.join(PACKAGE, 'install_requires.txt')
