"""A Jupyter kernel in one environment, with the packages of Jupyter from another one.

  .venv-notebooks/bin/python scripts/notebook_kernel.py --install FOLDER PYTHON

writes to FOLDER, for $JUPYTER_PATH, the description of a kernel that runs in the environment of
PYTHON. The kernel finds ipykernel in .venv-notebooks, after all packages of its own environment.
Both environments must have the same version of Python.
"""

import json
import os
import sys

KERNEL_NAME = 'python3'  # The name that any Jupyter has, so that notebooks open elsewhere, too.


def install(folder, python):
  site_packages = next(path for path in sys.path if os.path.basename(path) == 'site-packages')
  description = {
      'argv': [python, os.path.abspath(__file__), site_packages, '-f', '{connection_file}'],
      'display_name': 'estimator_train', 'language': 'python'}
  path = os.path.join(folder, 'kernels', KERNEL_NAME, 'kernel.json')
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path + '.part', 'w') as file:
    json.dump(description, file)
  os.replace(path + '.part', path)


def run():
  sys.path[0] = ''  # The folder of the notebook, as in other kernels.
  sys.path.append(sys.argv.pop(1))
  from ipykernel import kernelapp
  kernelapp.launch_new_instance()


if __name__ == '__main__':
  if sys.argv[1] == '--install':
    install(*sys.argv[2:])
  else:
    run()
