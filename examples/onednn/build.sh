#!/bin/sh
# Builds the driver beside the sources, or as the file that is given. Needs oneDNN (Debian: apt-get install libdnnl-dev).
set -e
here=$(dirname "$0")
include=${TORCHGRAFT_INCLUDE:-$(python3 -c 'import torchgraft; print(torchgraft.include_path())' 2>/dev/null || echo "$here/../../torchgraft/include")}
exec "${CXX:-g++}" -std=c++20 -O3 -march=native -ffp-contract=fast -fno-trapping-math -fno-math-errno -fopenmp -fPIC \
  -fvisibility=hidden -shared -Wall -Wextra -Wno-unused-parameter -I"$include" "$here"/driver.cpp "$here"/attention.cpp \
  "$here"/loops.cpp "$here"/pointwise.cpp "$here"/products.cpp -o "${1:-$here/libonednn_device.so}" -ldnnl -lpthread
