#!/usr/bin/env bash
# Trains: sets up what is missing (once, in .venv/), then runs the program with the given flags.
#
#   ./run_train.sh             the quickstart, on data that ships with the package
#   ./run_train.sh FLAG...     python -m estimator_train FLAG...
#
# Works from any folder; relative paths in flags are the caller's.
set -euo pipefail

# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/requirements/environment.sh"

ensure_venv "$root/.venv"
if (($# == 0)); then set -- "--flagfile=$root/estimator_train/configs/quickstart.flags"; fi
exec "$root/.venv/bin/python" -m estimator_train "$@"
