#!/bin/sh
# Installs the tools that build foreign libraries:
#
#   prerequisites.sh        cmake and nasm, for libjpeg-turbo, which crates/transform links
#   prerequisites.sh mpi    Open MPI and libclang, for peers over MPI (feature `mpi` of crates/peer)
#
# As root, with apt-get, it installs what is missing; elsewhere it names it. If nothing is missing it
# takes no time.
set -eu

has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return
    for library in /usr/lib/llvm-*/lib/libclang*.so* /usr/lib*/libclang*.so* /usr/lib/*/libclang*.so*; do
        case "$library" in
        *libclang-cpp* | *\**) ;;
        *) return 0 ;;
        esac
    done
    return 1
}

missing=""
case "${1:-}" in
mpi)
    what="peers over MPI"
    command -v mpicc >/dev/null || missing="$missing libopenmpi-dev"
    command -v mpirun >/dev/null || missing="$missing openmpi-bin"
    has_libclang || missing="$missing libclang-dev"
    ;;
*)
    what="libjpeg-turbo"
    for tool in cmake nasm; do
        command -v "$tool" >/dev/null || missing="$missing $tool"
    done
    ;;
esac
[ -n "$missing" ] || exit 0

install_missing() {
    # shellcheck disable=SC2086 # one word for each package
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $missing
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing the tools that build $what:$missing"
    # A fresh machine has no lists of packages yet.
    install_missing >/dev/null 2>&1 || { apt-get update --quiet >/dev/null && install_missing; }
    exit 0
fi

case "$missing" in
*mpi* | *libclang*)
    echo "$what cannot be built: install$missing (Debian: apt-get install$missing)" >&2
    exit 1
    ;;
*cmake*)
    echo "libjpeg-turbo cannot be built without cmake: install$missing" \
        "(Debian: apt-get install$missing; cmake is on PyPI too)" >&2
    exit 1
    ;;
*)
    echo "warning: without nasm libjpeg-turbo has no vector instructions and decodes JPEG at a" \
        "fraction of its speed: install nasm (Debian: apt-get install nasm)" >&2
    ;;
esac
