"""Defines the paths of the installed package and of its files."""

import os

PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folder that contains the package; in a checkout, the root of the repository.
PACKAGE_PARENT_DIR = os.path.dirname(PACKAGE_DIR)
CONFIGS_DIR = os.path.join(PACKAGE_DIR, 'configs')
QUICKSTART_FLAGFILE = os.path.join(CONFIGS_DIR, 'quickstart.flags')
REQUIREMENTS_FILE = os.path.join(PACKAGE_DIR, 'install_requires.txt')


def user_cache_dir() -> str:
  """Returns the folder for files that speed up later runs, and that the user may delete."""
  base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(base, 'estimator_train')
