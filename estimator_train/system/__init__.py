"""Controls this process, starts others, and writes files atomically."""

import os

PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In a checkout, this is the root of the repository.
PACKAGE_PARENT_DIR = os.path.dirname(PACKAGE_DIR)
