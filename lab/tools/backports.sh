#!/bin/sh
# Unpacks a newer QEMU and kernel than Debian 12's, from its backports, in a folder of their own. Installs nothing, and needs
# no privilege.
#
#   lab/tools/backports.sh FOLDER
#
# The mirror is the one that apt uses for this system, or $DEBIAN_MIRROR.
set -eu

folder=$(mkdir -p "$1" && cd "$1" && pwd)
. /etc/os-release
[ "${ID:-}:${VERSION_CODENAME:-}" = debian:bookworm ] || {
    echo "lab/tools/backports.sh: this fetches Debian 12's backports, and this system is $PRETTY_NAME" >&2
    exit 1
}
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
    'Created-By: Packages' 'Codename: bookworm' 2>/dev/null | head -n 1)}
[ -n "$mirror" ] || {
    echo "lab/tools/backports.sh: apt knows no mirror of bookworm; give one as DEBIAN_MIRROR" >&2
    exit 1
}

work=$(mktemp -d "$folder/fetching.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages" "$work/root"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
for suite in bookworm bookworm-backports; do
    echo "deb [signed-by=$keyring] $mirror $suite main"
done >"$work/sources.list"

apt() {
    program=$1
    shift
    "$program" -qq -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$work/sources.list" \
        -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists="$work/lists" \
        -o Dir::Cache="$work/cache" "$@"
}

apt apt-get update
kernel=$(apt apt-cache depends linux-image-amd64/bookworm-backports |
    sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
cd "$work/packages"
for package in qemu-system-x86 qemu-system-common qemu-system-data seabios "$kernel"; do
    apt apt-get download "$package/bookworm-backports"
done
for package in *.deb; do dpkg -x "$package" "$work/root"; done

# The unpacked QEMU uses libraries of the installed QEMU.
"$work/root/usr/bin/qemu-system-x86_64" --version >/dev/null || {
    echo "lab/tools/backports.sh: libraries are missing: apt-get install qemu-system-x86 has most" >&2
    exit 1
}
rm -rf "$folder/root"
mv "$work/root" "$folder/root"
echo "unpacked; the lab takes them where these are set:"
echo "  export PMEMLAB_QEMU=$folder/root/usr/bin/qemu-system-x86_64 PMEMLAB_KERNEL=$folder/root"
