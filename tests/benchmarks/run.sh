#!/usr/bin/env bash
# Compares this package with its peers: sets up what is missing, then the comparisons.
#
#   tests/benchmarks/run.sh {NAME... | --all} [--train_pattern=PATTERN] [--pairs=5] [--quick]
#
# In .venv/ and .venv-onednn/, as run_train.sh makes them, and .venv-torch/ for PyTorch. --all
# measures the rows of docs/performance.md, which takes hours, and updates them. --help shows the
# rest.
set -euo pipefail

unset ESTIMATOR_TRAIN_TF  # Both builds are measured.
# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../requirements/environment.sh"

ensure_venv "$root/.venv"
build=-onednn
ensure_venv "$root/.venv-onednn"
exec "$root/.venv/bin/python" "$root/tests/benchmarks/compare.py" "$@"
