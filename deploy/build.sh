#!/usr/bin/env bash
# Install Corral from this source tree into a folder that can be copied: PREFIX/bin/corral and what it needs, no compiler.
# The Dockerfile runs it; it works the same on a machine: deploy/build.sh /opt/corral
#
# llama.cpp is compiled with a backend for each generation of processors, the best of which is chosen at the start, so that
# the result runs on any processor of the architecture. BACKEND=cuda adds NVIDIA GPUs (CUDA_ARCHITECTURES: which ones).
# BACKEND=native compiles for this processor alone, in a fifth of the time. CMAKE_ARGS adds arguments of your own.
set -euo pipefail
prefix=${1:?usage: deploy/build.sh PREFIX}
cd "$(dirname "$0")/.."

portable="-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON"
case ${BACKEND:-cpu} in
  cpu) arguments=$portable ;;
  cuda) arguments="$portable -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-75;80;86;89;90;100;120}" ;;
  native) arguments= ;;
  *) echo "BACKEND is cpu, cuda or native, not $BACKEND" >&2; exit 2 ;;
esac

python=${PYTHON:-python3}
# The locked tools and packages, and llama.cpp, which is compiled or taken from the cache, and tried.
CMAKE_ARGS="$arguments ${CMAKE_ARGS:-}" "$python" -m tools.bootstrap runtime

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip --no-input wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work" .

"$python" -m venv --clear --without-pip "$prefix"
install() { .venv/bin/python -m pip --no-input --python "$prefix/bin/python" install --quiet --no-deps --no-build-isolation "$@"; }
install --require-hashes -r .venv/others.lock
install "$(cat .venv/.corral-llama-wheel)"
install "$work"/corral-*.whl

mkdir -p "$prefix/share/doc/corral"
cp LICENSE NOTICE "$prefix/share/doc/corral/"
"$prefix/bin/corral" version
