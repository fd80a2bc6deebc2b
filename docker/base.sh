#!/bin/sh
# Makes the image's base with debootstrap if none can be pulled: a minimal Debian.
#
#   docker/base.sh SUITE TAG
#
# The mirror is debootstrap's own choice, or $DEBIAN_MIRROR.
set -eu

suite=$1
tag=$2

[ "$(id -u)" = 0 ] || {
    echo "docker/base.sh: debootstrap needs root: run 'sudo docker/base.sh $suite $tag'" >&2
    exit 1
}

command -v debootstrap >/dev/null || {
    command -v apt-get >/dev/null || {
        echo "docker/base.sh: debootstrap is missing; install it by this system's own means" >&2
        exit 1
    }
    apt-get update -q
    # Ubuntu's debootstrap does not bring the keys that Debian's packages are signed with.
    DEBIAN_FRONTEND=noninteractive apt-get install -qy -o DPkg::Lock::Timeout=300 --no-install-recommends \
        debootstrap debian-archive-keyring
}

root=$(mktemp -d "${TMPDIR:-/var/tmp}/pmemlab-base.XXXXXX")
# debootstrap leaves the kernel's file systems mounted in there if it is interrupted.
trap 'umount -lR "$root/proc" "$root/sys" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT TERM

debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    "$suite" "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"}
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
# debootstrap lists only the release; its updates and security fixes are separate.
sed -i "s#^deb \(.*\)/debian $suite main\$#&\ndeb \1/debian $suite-updates main\ndeb \1/debian-security $suite-security main#" \
    "$root/etc/apt/sources.list"
tar -C "$root" -c . | docker import --change "LABEL pmemlab.base=$suite" - "$tag"
