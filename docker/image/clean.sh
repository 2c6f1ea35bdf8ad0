#!/bin/sh
# Makes the image's root out of the base image: a user, no build tool, no setuid file, no bytecode, no manuals.
# Runs as root in the stage `os` of the Dockerfile.
set -eu

# Numbers, not names: Kubernetes' runAsNonRoot reads the image's user without its passwd file.
groupadd --gid 10001 dosirak
useradd --no-log-init --no-create-home --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin dosirak
install -d -o 10001 -g 10001 /data

test -x /usr/bin/tini # process 1: it hands signals on and reaps what other processes leave
rm -f /usr/bin/tini-static

# pip, setuptools and what installs them; the standard library's tests and windows
for library in /usr/local/lib/python3.* /usr/lib/python3 /usr/lib/python3.*; do
    test -d "$library" || continue
    rm -rf "$library"/ensurepip "$library"/idlelib "$library"/tkinter "$library"/turtledemo "$library"/lib2to3 \
        "$library"/test "$library"/config-3.*
    for packages in "$library"/site-packages "$library"/dist-packages; do
        rm -rf "$packages"/pip "$packages"/pip-* "$packages"/setuptools "$packages"/setuptools-* "$packages"/wheel \
            "$packages"/wheel-* "$packages"/pkg_resources "$packages"/_distutils_hack "$packages"/distutils-precedence.pth
    done
done
rm -f /usr/local/bin/pip* /usr/local/bin/wheel /usr/local/bin/idle* /usr/local/bin/2to3* /usr/local/bin/python*-config
rm -rf /usr/local/include /usr/include

# bytecode: compile.py puts back what a start imports
find / -xdev -type d -name __pycache__ -prune -exec rm -rf {} +

# manuals, translations, caches, logs; the copyright files stay
find /usr/share/doc -type f ! -name copyright -delete
find /usr/share/doc -depth -type d -empty -delete
rm -rf /usr/share/man /usr/share/info /usr/share/locale /usr/share/lintian /usr/share/bash-completion \
    /var/lib/apt/lists /var/cache/* /var/log/* /root/.cache
install -d /var/lib/apt/lists/partial /var/cache/apt/archives/partial
find /tmp /var/tmp -mindepth 1 -delete 2>/dev/null || true

find / -xdev -type f -perm /6000 -exec chmod a-s {} +
