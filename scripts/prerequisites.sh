#!/bin/sh
# Makes sure that what links foreign libraries can be built:
#
#   prerequisites.sh        libjpeg-turbo, which crates/transform links: it needs cmake, and nasm for
#                           its vector instructions
#   prerequisites.sh mpi    peers over MPI, feature `mpi` of crates/peer: Open MPI, and libclang, by
#                           which its header is read
#
# What is missing is installed where that is possible (as root, with apt-get) and named where it is
# not. If nothing is missing this takes no time.
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
    echo "installing what builds $what:$missing"
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
    echo "cmake is missing, by which libjpeg-turbo is built:" \
        "install$missing (Debian: apt-get install$missing; cmake is on PyPI too)" >&2
    exit 1
    ;;
*)
    echo "warning: nasm is missing, so libjpeg-turbo is built without vector instructions" \
        "and decodes JPEG at a fraction of its speed (Debian: apt-get install nasm)" >&2
    ;;
esac
