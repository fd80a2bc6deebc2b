#!/bin/sh
# Gets a Docker engine that answers (`make docker`), and ends it (`make docker-stop`).
#
#   docker/engine.sh up      install Docker and Compose if they are missing (Debian, Ubuntu),
#                            start the engine and wait until it answers
# docker/engine.sh check   say in a line what to do if no engine answers
#   docker/engine.sh down    end the engine that `up` started without systemd
set -eu

pid_file=/run/pmemlab-dockerd.pid
log=/var/log/pmemlab-dockerd.log
socket=/var/run/docker.sock
wait_s=60

say() { echo "docker: $*"; }
fail() { echo "docker: $*" >&2; exit 1; }

answers() { docker version >/dev/null 2>&1; }
has_compose() { docker compose version >/dev/null 2>&1 || docker-compose version >/dev/null 2>&1; }
has_package() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

need_root() {
    [ "$(id -u)" = 0 ] || fail "$1 needs root: run 'sudo make docker'," \
        "then 'sudo usermod -aG docker $(id -un)', and log in again"
}

install_packages() {
    packages=
    command -v dockerd >/dev/null || packages=docker.io
    has_compose || packages="$packages docker-compose"
    [ -n "$packages" ] || return 0
    need_root "installing $packages"
    command -v apt-get >/dev/null || fail "there is no apt-get here:" \
        "install Docker and Compose by this system's own means, then run 'make lab-up'"
    apt-get update -q
    # Newer Debians have Docker's command line in a package of its own; Ubuntu has Compose's
    # second version under another name than Debian.
    case $packages in *docker.io*) ! has_package docker-cli || packages="$packages docker-cli" ;; esac
    ! has_package docker-compose-v2 || packages=$(echo "$packages" | sed 's/docker-compose/&-v2/')
    say "installing $packages"
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -qy -o DPkg::Lock::Timeout=300 --no-install-recommends $packages
}

# Prints the engine that the user has chosen, unless it is the one here.
chosen() {
    if [ -n "${DOCKER_HOST:-}" ]; then
        host=$DOCKER_HOST by="DOCKER_HOST, $DOCKER_HOST"
    elif context=$(docker context inspect --format '{{.Name}} {{.Endpoints.docker.Host}}' 2>/dev/null); then
        host=${context#* } by="Docker's context ${context%% *}, ${context#* }"
    else
        host=${DOCKER_CONTEXT:-} by="Docker's context ${DOCKER_CONTEXT:-}"
    fi
    case $host in '' | default | "unix://$socket" | unix:///run/docker.sock) ;; *) echo "$by" ;; esac
}

# Fails if the user has chosen another engine: starting one here would not help.
need_here() {
    where=$(chosen)
    [ -z "$where" ] || fail "no Docker engine answers at $where: start it, or choose another"
}

start() {
    need_root "starting the engine"
    if [ -d /run/systemd/system ]; then
        say "starting the engine by systemd"
        systemctl start docker
    else
        say "starting dockerd in the background; its log is $log"
        nohup dockerd --pidfile "$pid_file" >"$log" 2>&1 </dev/null &
    fi
}

wait_for_answer() {
    waited=0
    until answers; do
        [ "$waited" -lt "$wait_s" ] || {
            [ ! -s "$log" ] || tail -n 20 "$log" >&2
            fail "the engine has not answered for $wait_s s"
        }
        sleep 1
        waited=$((waited + 1))
    done
}

# Fails if an engine runs but refuses this user.
need_access() {
    [ "$(id -u)" = 0 ] || [ ! -S "$socket" ] || [ -w "$socket" ] ||
        fail "an engine runs, but $(id -un) may not use it:" \
            "run 'sudo usermod -aG docker $(id -un)', and log in again"
}

check() {
    answers || {
        need_here
        need_access
        fail "no Docker engine answers; 'make docker' gets one"
    }
    has_compose || fail "there is no Docker Compose; 'make docker' gets it"
}

up() {
    install_packages
    if ! answers; then
        need_here
        need_access
        start
        wait_for_answer
    fi
    say "engine $(docker version --format '{{.Server.Version}}') answers"
    [ ! -s "$pid_file" ] || say "'make docker-stop' ends it"
}

down() {
    [ -s "$pid_file" ] || fail "no engine of 'make docker' runs here ($pid_file is not there);" \
        "one that systemd runs is ended by 'systemctl stop docker'"
    [ "$(id -u)" = 0 ] || fail "ending the engine needs root: run 'sudo make docker-stop'"
    pid=$(cat "$pid_file")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || {
        rm -f "$pid_file"
        fail "the engine of 'make docker' had ended by itself; its log is $log"
    }
    kill "$pid"
    while [ -d "/proc/$pid" ]; do sleep 0.2; done
    rm -f "$pid_file" "$log"
    say "ended"
}

case "${1:-}" in
    up) up ;;
    check) check ;;
    down) down ;;
    *) fail "usage: docker/engine.sh up | check | down" ;;
esac
