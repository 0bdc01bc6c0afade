#!/bin/sh
# Makes sure that libjpeg-turbo can be built, which crates/transform links: it needs cmake, and nasm
# for its vector instructions. What is missing is installed where that is possible (as root, with
# apt-get) and named where it is not. If nothing is missing this takes no time.
set -eu

missing=""
for tool in cmake nasm; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
[ -n "$missing" ] || exit 0

install_missing() {
    # shellcheck disable=SC2086 # one word for each tool
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $missing
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing what builds libjpeg-turbo:$missing"
    # A fresh machine has no lists of packages yet.
    install_missing >/dev/null 2>&1 || { apt-get update --quiet >/dev/null && install_missing; }
    exit 0
fi

case "$missing" in
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
