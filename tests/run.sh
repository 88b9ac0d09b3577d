#!/usr/bin/env bash
# Creates the environment if it is missing, then runs the tests with pytest.
#
#   tests/run.sh [--all] [--python=3.6|3.7] [--order=reversed|NUMBER]
#   tests/run.sh [--python=3.6|3.7] PYTEST-ARGUMENT...
#
# The first form runs the tests in parallel: those that are not marked `slow`, or with --all, all of
# them except the benchmarks. --all first creates the environments of other programs that load
# exported models, and of Jupyter, and for root installs the tools that some tests require.
# --order=reversed and --order=NUMBER change the order of the tests.
# The second form passes the arguments to pytest; paths are relative to the root of the checkout.
#
# Uses the environment .venv/, as run_train.sh does, or with --python the environment .venv-VERSION/
# with that version of CPython. With ESTIMATOR_TRAIN_TF=onednn, uses the build of TensorFlow with
# oneDNN, for CPUs, in .venv-onednn/ or .venv-VERSION-onednn/.
set -euo pipefail

# shellcheck source=requirements/environment.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../requirements/environment.sh"

venv=$root/.venv$build
version=
runs_all=
is_selection=
arguments=()
for argument; do
  case $argument in
    --all) runs_all=1 ;;
    --python=3.6 | --python=3.7)
      version=${argument#--python=}
      venv=$root/.venv-$version$build
      ;;
    --python=*)
      echo "error: --python must be 3.6 or 3.7: got ${argument#--python=}: give one of them" >&2
      exit 2
      ;;
    *)
      [[ $argument == --order=* ]] || is_selection=1
      arguments+=("$argument")
      ;;
  esac
done

ensure_venv "$venv" ${version:+"$version"}
cd "$root"
if [[ -n $runs_all ]]; then
  # The tests of what cannot be installed are skipped.
  scripts/install_ci_tools || true
  scripts/install_clients >/dev/null || true
  if [[ -d $venv/lib/python3.7 ]]; then
    scripts/install_notebooks >/dev/null || true
    scripts/install_search >/dev/null || true
  fi
fi
if [[ -z $is_selection ]]; then
  # Tests run in parallel because most of their time is spent in Python on one core, building graphs;
  # one more than there are cores, because some wait, for example for other processes.
  cores=$(nproc)
  options=(--ignore=tests/benchmarks "--numprocesses=$((cores < 4 ? cores + 1 : 4))" --dist=loadfile)
  # Only pytest-xdist for Python 3.7 moves tests to a worker that has none left.
  if compgen -G "$venv/lib/python*/site-packages/xdist/scheduler/worksteal.py" >/dev/null; then
    options[2]=--dist=worksteal
  fi
  [[ -n $runs_all ]] || options+=(-m 'not slow')
  set -- tests "${options[@]}" ${arguments[@]+"${arguments[@]}"}
else
  set -- "${arguments[@]}"
fi
printf -v TESTS_BEGAN_SECS '%(%s)T' -1
export TESTS_BEGAN_SECS
exec "$venv/bin/python" -m pytest -p no:cacheprovider "$@"
