#!/usr/bin/env bash
# Print the CMake arguments that llama.cpp needs here beside its own: usually none.
#
# g++ before 11.5, 12.4 and 13.3 drops most of the AMX tile configuration that llama.cpp writes (gcc bug 114098), and on a
# processor with AMX the first decode then dies of an illegal instruction. Some virtual machines announce AMX and lack it,
# with the same end. So AMX is tried the way llama.cpp uses it, and left out where that fails.
set -euo pipefail
compiler=${CXX:-c++}
macros=$("$compiler" -march=native -dM -E -x c++ /dev/null 2>/dev/null) || exit 0
[[ $macros == *__AMX_INT8__* ]] || exit 0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/probe.cc" <<'PROBE'
#include <cstdint>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

struct Config {
    uint8_t palette = 0, start_row = 0, reserved[14] = {0};
    uint16_t colsb[16] = {0};
    uint8_t rows[16] = {0};
};

int main() {
    const int request_permission = 0x1023, tile_data = 18;
    if (syscall(SYS_arch_prctl, request_permission, tile_data)) return 0;  // llama.cpp leaves AMX alone then
    alignas(64) Config wanted = {};
    wanted.palette = 1;
    wanted.rows[7] = 16;
    wanted.colsb[7] = 64;
    _tile_loadconfig(&wanted);
    _tile_zero(7);
    _tile_release();
}
PROBE
works() { "$compiler" -O3 -march=native -o "$folder/probe" "$folder/probe.cc" && "$folder/probe"; }
if ! works >/dev/null 2>&1; then
  echo "-DCMAKE_C_FLAGS=-U__AMX_INT8__ -DCMAKE_CXX_FLAGS=-U__AMX_INT8__"
fi
