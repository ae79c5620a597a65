#!/usr/bin/env bash
# Starts what docs/observability.md talks about: a Redis, an origin, three
# demo-api processes in front of it, Prometheus with the rules, and a storm of
# readers. Everything ends with it. OBSERVE_SECONDS ends it by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for program in redis-server prometheus curl; do
  command -v "$program" >/dev/null || {
    echo "observe: $program is not on PATH; install the Debian packages redis-server, prometheus and curl" >&2
    exit 1
  }
done

scratch=$(mktemp -d)
children=()
finish() {
  trap - EXIT INT TERM
  [[ ${#children[@]} == 0 ]] || kill "${children[@]}" 2>/dev/null || true
  wait
  rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 0' INT TERM

# run NAME COMMAND... starts a child whose output goes to a file of its own.
run() {
  local name=$1
  shift
  "$@" >"$scratch/$name.log" 2>&1 &
  children+=($!)
}

# ready NAME URL waits until a child answers.
ready() {
  for _ in {1..100}; do
    curl -fs -o /dev/null "$2" && return
    sleep 0.1
  done
  echo "observe: $1 does not answer at $2:" >&2
  tail -n 20 "$scratch/$1.log" >&2
  exit 1
}

go build -o "$scratch/demo-api" ./cmd/demo-api
run redis redis-server --port 6390 --bind 127.0.0.1 --save '' --appendonly no --dir "$scratch"
run origin "$scratch/demo-api" -addr 127.0.0.1:8090 -mode none -load 200ms -ttl 1ms
ready origin http://127.0.0.1:8090/readyz
for port in 8081 8082 8083; do
  run "demo-$port" "$scratch/demo-api" -addr "127.0.0.1:$port" -redis 127.0.0.1:6390 -origin http://127.0.0.1:8090 -ttl 2s -grace 10s
  ready "demo-$port" "http://127.0.0.1:$port/readyz"
done
run prometheus prometheus --config.file=deploy/prometheus/prometheus.yml --storage.tsdb.path="$scratch/data" --web.listen-address=127.0.0.1:9090
ready prometheus http://127.0.0.1:9090/-/ready

# storm lets fifty readers at a time come, every half second, and now and then
# somebody writes, so that all of them miss at once.
storm() {
  local n=0
  while true; do
    curl -s --parallel --parallel-max 50 -o /dev/null 'http://127.0.0.1:[8081-8083]/products/[1-20]' || true
    n=$((n + 1))
    if ((n % 10 == 0)); then
      curl -s -o /dev/null -X PUT -d '{"name": "Lamp", "price": 1499}' "http://127.0.0.1:8081/products/$((n % 20 + 1))" || true
    fi
    sleep 0.5
  done
}
storm >/dev/null 2>&1 &
children+=($!)

cat <<'END'
observe: the fleet is under load
  alerts     http://127.0.0.1:9090/alerts
  a query    http://127.0.0.1:9090/graph?g0.expr=guard:cacheguard_loads_avoided:ratio5m&g0.tab=0
  metrics    http://127.0.0.1:8081/metrics
  the demo   http://127.0.0.1:8081/
  dashboard  import deploy/grafana/cacheguard.json into Grafana
Ctrl-C ends it. To see an alert, stop a process: kill -STOP the redis-server on port 6390.
END
sleep "${OBSERVE_SECONDS:-infinity}" &
children+=($!)
wait "$!"
