#!/usr/bin/env bash
# Creates the environment if it is missing, then runs the tests with pytest.
#
#   tests/run.sh [--python=3.6|3.7] [PYTEST-ARGUMENT...]
#
# Uses the environment .venv/, as run_train.sh does, or with --python the environment .venv-VERSION/
# with that version of CPython. With ESTIMATOR_TRAIN_TF=onednn, uses the build of TensorFlow with
# oneDNN, for CPUs, in .venv-onednn/ or .venv-VERSION-onednn/. Without arguments, or with only
# --order, runs all tests except the benchmarks. --order=reversed and --order=NUMBER change the
# order of the tests. Paths in arguments are relative to the root of the checkout.
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
    echo "error: --python must be 3.6 or 3.7: got $version: give one of them" >&2
    exit 2
  fi
fi

printf -v TESTS_BEGAN_SECS '%(%s)T' -1
export TESTS_BEGAN_SECS
ensure_venv "$venv" ${version:+"$version"}
# Tests run in parallel because most of their time is spent in Python on one core, building graphs.
if (($# == 0)) || [[ $# == 1 && $1 == --order=* ]]; then
  set -- tests --ignore=tests/benchmarks --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@"
fi
cd "$root"
exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
