#!/usr/bin/env bash
# Write the Python modules of protos/ into a folder (default gen/). The import path of a generated module is the path of
# its proto, so that nothing needs rewriting. Messages for every file, stubs only where there is a service.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-gen} python=${PYTHON:-python}
rm -rf "$out/corral" && mkdir -p "$out"
mapfile -t files < <(find protos -name '*.proto' | sort)
mapfile -t services < <(find protos -name '*_service.proto' | sort)
"$python" -m grpc_tools.protoc -Iprotos --python_out="$out" --pyi_out="$out" "${files[@]}"
"$python" -m grpc_tools.protoc -Iprotos --grpc_python_out="$out" --mypy_grpc_out="generate_concrete_servicer_stubs:$out" "${services[@]}"
find "$out/corral" -type d -exec touch {}/__init__.py {}/py.typed \;
