#!/usr/bin/env bash
# Builds an image without a daemon, and writes it as an OCI archive.
#
#   docker/build-local.sh [--target cpu|api|demo|cuda] [--smoke] ARCHIVE
#
#   --target   which image of docker/Dockerfile; cpu if left out
#   --smoke    then run it: the demo served as uid 10001 on a read-only root, a stream over SIGTERM, its end
#
# It needs root, Debian's packages buildah and debootstrap, Python 3.11 with pip, and no container runtime. The base is
# Debian 12 by debootstrap, from where this machine gets its packages; wheels are fetched by this machine's pip, as it is
# configured, and must have the hashes of docker/locks. Base, wheels and layers are kept for the next build in
# $XDG_CACHE_HOME/dosirak-image; remove that folder to build from nothing.
set -euo pipefail

cd "$(dirname "$0")/.."
target=cpu smoke='' archive=''
release=bookworm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dosirak-image
python=${PYTHON:-python3.11}
suite_packages=python3,tini,libgomp1,ca-certificates

fail() { echo "build-local: $1" >&2; exit 2; }
say() { echo "[$SECONDS s] $1"; }

while [ $# -gt 0 ]; do
    case $1 in
    --target) target=${2:-}; shift 2 || fail 'name a target: --target cpu, api, demo or cuda' ;;
    --smoke) smoke=yes; shift ;;
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d'; exit 0 ;;
    -*) fail "there is no option $1: --target and --smoke are all" ;;
    *) [ -z "$archive" ] || fail "one ARCHIVE, not two: $archive and $1"; archive=$1; shift ;;
    esac
done
[ -n "$archive" ] || fail 'name the file to write: docker/build-local.sh [--target T] [--smoke] ARCHIVE'
case $target in
cpu | api | demo | cuda) ;;
*) fail "there is no target $target: choose cpu, api, demo or cuda" ;;
esac

missing=()
command -v buildah >/dev/null || missing+=(buildah)
[ -s "$cache/base.tar" ] || command -v debootstrap >/dev/null || missing+=(debootstrap)
[ ${#missing[@]} -eq 0 ] || fail "missing here: ${missing[*]}; on Debian: apt-get install buildah debootstrap"
[ "$(id -u)" = 0 ] || fail 'this needs root: debootstrap and the build change roots'
"$python" -m pip --version >/dev/null 2>&1 || fail "$python with pip is missing: it fetches the wheels; PYTHON names another"
[ "$("$python" -c 'import sys; print(*sys.version_info[:2])')" = "3 11" ] || fail "$python is not Python 3.11, which the image has"

mkdir -p "$cache"
store=(buildah --root "$cache/storage" --runroot "$cache/run")

# The first address of this machine's own package sources.
mirror() {
    { sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources 2>/dev/null || true
      sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\).*/\2/p' /etc/apt/sources.list 2>/dev/null || true; } |
        head -n 1
}

make_base() {
    local root from
    root=$(mktemp -d "$cache/base.XXXXXX") from=$(mirror)
    say "base: debootstrap $release"
    if ! debootstrap --variant=minbase --include="$suite_packages" $release "$root" ${from:+"$from"} >"$cache/base.log" 2>&1
    then
        tail -n 5 "$cache/base.log" >&2
        rm -rf --one-file-system "$root"
        fail 'debootstrap failed; its last lines are above'
    fi
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin
    tar -C "$root" -cf "$cache/base.tar.part" .
    rm -rf --one-file-system "$root"
    mv "$cache/base.tar.part" "$cache/base.tar"
}

import_base() {
    local container
    container=$("${store[@]}" from scratch)
    "${store[@]}" add --quiet "$container" "$cache/base.tar" / >/dev/null
    "${store[@]}" config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin --cmd bash "$container"
    "${store[@]}" commit --quiet --rm "$container" localhost/dosirak-base >/dev/null
}

# A folder for each content of the locks, so that a change of one package fetches it alone: pip keeps what it has seen.
fetch_wheels() {
    local lock wanted=(tools api)
    [ "$target" = api ] || wanted+=(engine)
    case $target in cpu | demo) wanted+=(torch-cpu) ;; cuda) wanted+=(torch-cuda) ;; esac
    mkdir -p "$cache/wheels"
    for lock in "${wanted[@]}"; do
        local marker="$cache/wheels/.$lock-$(sha256sum "docker/locks/$lock.lock" | cut -c1-16)"
        [ -e "$marker" ] && continue
        say "wheels: $lock.lock"
        "$python" -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
            --dest "$cache/wheels" -r "docker/locks/$lock.lock" ||
            fail "$lock.lock could not be fetched as it is locked: if this machine's index has other files, docker/locks/make.sh writes its hashes"
        touch "$marker"
    done
}

build() {
    say "build: target $target"
    "${store[@]}" bud --isolation chroot --layers --quiet --format oci --target "$target" --tag "localhost/dosirak:$target" \
        --build-arg PYTHON_IMAGE=localhost/dosirak-base \
        --build-arg PIP_OPTIONS='--no-index --find-links /wheels' \
        --build-arg VERSION="$(sed -n 's/^__version__ = "\(.*\)"/\1/p' models/__init__.py)" \
        --build-arg REVISION="$(git rev-parse HEAD 2>/dev/null || true)" \
        --volume "$cache/wheels:/wheels:ro" --file docker/Dockerfile . >"$cache/build.log" 2>&1 || {
        tail -n 40 "$cache/build.log" >&2
        fail "the build failed; its last lines are above, all of them in $cache/build.log"
    }
}

sizes() { # the bytes of all files of the image, each once
    local at=$1
    find "$at" -xdev \( -type f -o -type l \) -printf '%D:%i %s\n' | sort -u | awk '{ sum += $2 } END { printf "%.0f\n", sum }'
}

[ -s "$cache/base.tar" ] || make_base
"${store[@]}" inspect --type image localhost/dosirak-base >/dev/null 2>&1 || import_base
fetch_wheels
build

container=$("${store[@]}" from --quiet "localhost/dosirak:$target")
trap '"${store[@]}" rm "$container" >/dev/null 2>&1 || true' EXIT
root=$("${store[@]}" mount "$container")
unpacked=$(sizes "$root")
say "archive: $archive"
"${store[@]}" push --quiet "localhost/dosirak:$target" "oci-archive:$archive:dosirak:$target"
awk -v u="$unpacked" -v a="$(stat -c %s "$archive")" -v t="$target" \
    'BEGIN { printf "dosirak:%s  %.0f MB unpacked, %.0f MB as an archive\n", t, u / 1e6, a / 1e6 }'

if [ -n "$smoke" ]; then
    say "smoke: running it"
    "${store[@]}" inspect --type image "localhost/dosirak:$target" >"$cache/image.json"
    "$python" docker/image/smoke.py "$root" "$cache/image.json" "$target"
fi
say "done"
