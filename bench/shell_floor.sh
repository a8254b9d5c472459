#!/usr/bin/env bash
# The bare floor that recovery is measured against: a shell loop that starts a gang and, when any rank fails, kills the
# rest at once and starts all again. It knows nothing: no cause, no blame, no budget, no hang.
#
#   shell_floor.sh RANKS COMMAND [ARGUMENT ...]
#
# Every rank gets the environment of torchrun and writes to standard output; what the loop does stands on standard
# error, with the time in seconds since the epoch. FLOOR_MAX_ATTEMPTS (default 100) ends a loop that would never end.
set -u
if [ $# -lt 2 ] || ! [ "$1" -ge 1 ] 2>/dev/null; then
  echo "usage: shell_floor.sh RANKS COMMAND [ARGUMENT ...]" >&2
  exit 2
fi
ranks=$1
shift

say() { echo "floor: $EPOCHREALTIME $*" >&2; }

end_all() { # whoever is left, frozen or not
  local left
  left=$(jobs -pr)
  # shellcheck disable=SC2086 - one word a process
  [ -z "$left" ] || kill -KILL $left
  { wait; } 2>/dev/null # without bash's line about each that was killed
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fresh_port() { # below the range that the kernel gives out by itself, so that no connection of ours can hold it
  local port
  while :; do
    port=$((20000 + (RANDOM << 15 | RANDOM) % 12000))
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

for ((attempt = 1; attempt <= ${FLOOR_MAX_ATTEMPTS:-100}; attempt++)); do
  port=$(fresh_port)
  pids=()
  for ((rank = 0; rank < ranks; rank++)); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks GROUP_RANK=0 \
      MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TORCHELASTIC_RESTART_COUNT=$((attempt - 1)) "$@" &
    pids+=($!)
  done
  say "attempt $attempt port $port pids ${pids[*]}"
  status=0
  for ((ended = 0; ended < ranks && status == 0; ended++)); do
    wait -n || status=$?
  done
  [ $status -eq 0 ] && say "all ranks ended with 0" && exit 0
  say "attempt $attempt: a rank ended with $status"
  end_all
done
say "gave up after $((attempt - 1)) attempts"
exit 1
