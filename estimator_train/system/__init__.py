"""Controls this process, starts others, and writes files atomically."""

import os

PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folder that contains the package; in a checkout, the root of the repository.
PACKAGE_PARENT_DIR = os.path.dirname(PACKAGE_DIR)
