#!/usr/bin/env bash
# Sees to Debian packages: scripts/debian.sh PACKAGE …
# Installs the missing ones when run as root where there is apt-get; says what to do otherwise.
set -euo pipefail

missing=()
for package in "$@"; do
    # A command of the same name is as good as the package: it may have come another way.
    command -v "$package" >/dev/null || dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' \
        || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "needed and not there: ${missing[*]}. Install with this system's package manager (the names are Debian's)." >&2
    exit 1
fi
if [[ $(id -u) -ne 0 ]]; then
    echo "needed and not there: ${missing[*]}. Run: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "installing Debian packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq </dev/null
apt-get install -qq -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
