#!/usr/bin/env bash
# Prints the path of a Python that TensorFlow 1.15 runs on: CPython 3.7, else 3.6.
#
#   requirements/find_python.sh [3.6|3.7]
#
# Looks on PATH, then under pyenv, then asks uv to install one. If all fail, prints what was tried
# and exits with 2.
set -euo pipefail

if (($#)); then wanted=("$1"); else wanted=(3.7 3.6); fi
tried=()
work=
trap '[[ -z $work ]] || rm -rf "$work"' EXIT

# Imports the modules that an environment requires (some distributions package venv separately, and
# self-built Pythons may lack ssl) and prints "IMPLEMENTATION VERSION BITS MACHINE EXECUTABLE". The
# executable is resolved, so that nothing depends on a version manager's shim or on another virtual
# environment.
probe='
import ensurepip, os, platform, ssl, struct, sys, venv
print(platform.python_implementation(), "%d.%d" % sys.version_info[:2], 8 * struct.calcsize("P"),
      platform.machine(), os.path.realpath(sys.executable))'

# Sets the variables of the probe's fields, or fails; adds the result to `tried`. Only the last line
# of the output is used: it is the error of a broken candidate, and a shim may print warnings first.
examine() {  # CANDIDATE
  local output
  if ! output=$("$1" -I -c "$probe" 2>&1 </dev/null); then
    tried+=("$1: does not work: ${output##*$'\n'}")
    return 1
  fi
  read -r implementation version bits machine executable <<<"${output##*$'\n'}"
  tried+=("$1: $implementation $version, $bits bit, $machine")
}

is_supported() {
  [[ $implementation == CPython && $bits == 64 && $machine =~ ^(x86_64|AMD64|amd64)$ ]]
}

candidates() {
  local version name
  for version in "${wanted[@]}"; do type -aP "python$version" || true; done
  for name in python3 python; do type -aP "$name" || true; done
  for version in "${wanted[@]}"; do
    # The newest patch release first.
    compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version*/bin/python" | sort -rV || true
  done
}

fallback=  # the first candidate with the second choice of version
newer=     # a Python that can install uv
while read -r candidate; do
  examine "$candidate" || continue
  if is_supported && [[ $version == "${wanted[0]}" ]]; then
    echo "$executable"
    exit
  fi
  if is_supported && [[ -z $fallback && $version == "${wanted[1]:-}" ]]; then
    fallback=$executable
  fi
  if [[ -z $newer && $version =~ ^3\.([89]|[1-9][0-9])$ ]]; then newer=$executable; fi
done < <(candidates)
if [[ -n $fallback ]]; then
  echo "$fallback"
  exit
fi

# Runs a command without output. If it fails, adds the last line of its output to `tried`.
quietly() {  # TITLE COMMAND...
  local output
  if ! output=$("${@:2}" 2>&1 </dev/null); then
    tried+=("$1: failed: ${output##*$'\n'}")
    return 1
  fi
}

# Prints the Python that uv installs and exits, or adds the reason for the failure to `tried`.
try_uv() {  # UV TITLE
  local uv=$1 title="$2: python install ${wanted[0]}"
  echo "No CPython ${wanted[*]} found: asking uv to install ${wanted[0]}" >&2
  quietly "$title" "$uv" python install "${wanted[0]}" || return 0
  if candidate=$("$uv" python find "${wanted[0]}" 2>/dev/null) && examine "$candidate" &&
    is_supported && [[ $version == "${wanted[0]}" ]]; then
    echo "$executable"
    exit
  fi
  tried+=("$title: done, but uv finds no usable Python: ${candidate:-no output}")
}

if [[ ${wanted[0]} == 3.6 ]]; then
  tried+=("uv: does not provide CPython 3.6")
else
  # uv must not add commands to ~/.local/bin. It runs in /, where no project and no virtual
  # environment affects its result.
  export UV_PYTHON_INSTALL_BIN=0
  unset VIRTUAL_ENV
  cd /
  if uv=$(type -P uv); then try_uv "$uv" "$uv"; else tried+=("uv: not on PATH"); fi
  if [[ -n $newer ]]; then
    work=$(mktemp -d)
    # uv 0.6 is the last series that provides CPython 3.7.
    title="uv from the package index, by $newer"
    if quietly "$title" "$newer" -m venv "$work/uv" &&
      quietly "$title" "$work/uv/bin/python" -I -m pip install --quiet \
        --disable-pip-version-check uv==0.6.17; then
      try_uv "$work/uv/bin/uv" "$title"
    fi
  else
    tried+=("uv from the package index: no Python 3.8 or later to install it with")
  fi
fi

{
  echo "error: no CPython ${wanted[*]} (64 bit, x86-64) found, which TensorFlow 1.15 needs. Tried:"
  printf '  %s\n' "${tried[@]}"
  echo "Install one (pyenv install ${wanted[0]}), or use Docker:"
  echo "  docker build -t estimator-train ."
  echo "  docker run --rm estimator-train"
} >&2
exit 2
