#!/usr/bin/env bash
# Build the programs Corral is measured against, from the very source that the locked llama-cpp-python ships:
# llama-server, llama-batched-bench, llama-quantize, ggml-rpc-server. About ten minutes on two cores, once; prints where they are.
#   bench/peers.sh [FOLDER]        FOLDER: $CORRAL_PEERS, else ~/.cache/corral-peers
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)}
lock=requirements/runtime.txt
version=$(sed -n 's/^llama-cpp-python==\([^ ]*\).*/\1/p' "$lock")
folder=${1:-${CORRAL_PEERS:-$HOME/.cache/corral-peers}}/$version
bin=$folder/build/bin source=$folder/llama_cpp_python-$version/vendor/llama.cpp
programs=(llama-server llama-batched-bench llama-quantize ggml-rpc-server)

built() { for program in "${programs[@]}"; do [[ -x $bin/$program ]] || return 1; done; }

if ! built; then
  mkdir -p "$folder"
  if [[ ! -d $source ]]; then
    echo "peers: fetching the source of llama-cpp-python $version" >&2
    # the lock's own lines, so that pip checks the hash of what it fetches
    sed -n '/^llama-cpp-python==/,/^[^ ]/{/^llama-cpp-python==/p;/--hash/p}' "$lock" \
      | sed '$ s/ *\\$//' >"$folder/source.txt"
    "$python" -m pip download --quiet --require-hashes --no-deps --no-binary llama-cpp-python \
      --dest "$folder" --requirement "$folder/source.txt"
    tar -xzf "$folder"/llama_cpp_python-"$version".tar.gz -C "$folder"
  fi
  cmake=$(command -v cmake || echo "$(dirname "$python")/cmake")
  echo "peers: compiling; the log is $folder/build.log" >&2
  # the arguments that Corral's own llama.cpp is built with, so that both have the same kernels
  read -ra native <<<"$(tools/cmake_args.sh) ${CMAKE_ARGS:-}"
  "$cmake" -S "$source" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_UI=OFF -DGGML_RPC=ON "${native[@]}" >"$folder/build.log" 2>&1
  "$cmake" --build "$folder/build" --parallel "$(nproc)" --target "${programs[@]}" >>"$folder/build.log" 2>&1
fi
echo "$bin"
