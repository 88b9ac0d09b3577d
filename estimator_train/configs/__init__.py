"""The flagfiles of the package, and the figures of the published workloads."""

import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
