#!/usr/bin/env bash
# Runs the tests: sets up what is missing, then pytest.
#
#   tests/run.sh [--python=3.6|3.7] [PYTEST-ARGUMENT...]
#
# Without --python in .venv/, as run_train.sh does; with it in .venv-VERSION/, made by exactly that
# CPython. With ESTIMATOR_TRAIN_TF=onednn on TensorFlow's build for CPUs, in environments of that
# name: .venv-onednn/ or .venv-VERSION-onednn/. Without arguments, or with --order alone, all tests
# run, but not the benchmarks. Paths are relative to the root. --order=reversed and --order=NUMBER run
# them in another order.
set -euo pipefail

# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../requirements/environment.sh"

venv=$root/.venv$build
version=
if [[ ${1:-} == --python=* ]]; then
  version=${1#--python=}
  venv=$root/.venv-$version$build
  shift
  if [[ ! $version =~ ^3\.[67]$ ]]; then
    echo "error: --python takes 3.6 or 3.7: $version: name one of them" >&2
    exit 2
  fi
fi

printf -v TESTS_BEGAN_SECS '%(%s)T' -1
export TESTS_BEGAN_SECS
ensure_venv "$venv" ${version:+"$version"}
# Most of a test's time is Python building a graph, on one core.
if (($# == 0)) || [[ $# == 1 && $1 == --order=* ]]; then
  set -- tests --ignore=tests/benchmarks --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@"
fi
cd "$root"
exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
