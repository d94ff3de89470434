#!/usr/bin/env bash
# Runs a real Apache Kafka (KRaft, combined broker and controller nodes) for tests, from the jars on Maven Central, on 127.0.0.1 only.
#
#   kafka.sh install                      jars and class-data archive into HOME; does nothing when they are there
#   kafka.sh start   DIR [OPTIONS]        set up in DIR (first time), start, wait until every broker is ready, print KAFKA_BOOTSTRAP=...
#   kafka.sh run     DIR [OPTIONS]        start, then wait for the end of standard input, kill all and remove DIR: brokers
#                                         that cannot outlive whoever holds the other end of that pipe
#   kafka.sh stop    DIR [ID]             SIGTERM, then SIGKILL after STOP_WAIT seconds (default 20)
#   kafka.sh kill9   DIR ID               SIGKILL one broker
#   kafka.sh restart DIR ID               stop one broker if it runs, start it again on its data
#   kafka.sh status  DIR                  one line per broker; exit 1 unless all run
#   kafka.sh tool    CLASS ARGS...        any main class, such as org.apache.kafka.tools.TopicCommand
#   kafka.sh destroy DIR                  stop all, remove DIR
#
# OPTIONS: --brokers 1|3 (1)  --port P (19092): broker i listens on P+i-1, its controller on P+10+i-1  --set KEY=VALUE (repeatable)
# HOME is KAFKA_HOME, by default .tmp/kafka of this repository. KAFKA_VERSION (4.4.0), KAFKA_HEAP (512m), START_WAIT (90).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
home=${KAFKA_HOME:-$root/.tmp/kafka}
version=${KAFKA_VERSION:-4.4.0}
heap=${KAFKA_HEAP:-512m}
start_wait=${START_WAIT:-90}
cluster=VGFpbHJhY2VUZXN0MDAwMQ # any 16 bytes in URL-safe base64

die() { echo "kafka.sh: $*" >&2; exit 1; }

need() { # COMMAND PACKAGE
  command -v "$1" >/dev/null && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "kafka.sh: installing $2" >&2
    { apt-get install -y --no-install-recommends "$2" || { apt-get update && apt-get install -y --no-install-recommends "$2"; }; } >/dev/null 2>&1 || true
  fi
  command -v "$1" >/dev/null || die "$1 is missing: install $2 (Debian's name; Java must be 17 or later)"
}
java_path() { readlink -f "$(command -v java)"; }
classpath() { local j cp=; for j in "$home"/libs/*.jar; do cp+=${cp:+:}$j; done; echo "$cp"; } # in fixed order, for the archive
# A short life needs little compilation. The archive is tied to this JVM and to the path of the jars.
jvm_flags() {
  echo -n "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
  if [ -f "$home/kafka.jsa" ] && [ "$(cat "$home/kafka.jsa.of" 2>/dev/null)" = "$(java_path) $version" ]; then echo -n " -XX:SharedArchiveFile=$home/kafka.jsa -Xshare:auto"; fi
}
tool() { # CLASS ARGS...
  # shellcheck disable=SC2046
  java $(jvm_flags) -Xmx256m -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$(classpath)" "$@"
}
pid_of() { # DIR ID: the pid, only if that process is this broker
  local f=$1/run/broker-$2.pid p
  [ -f "$f" ] || return 1
  p=$(<"$f"); [ -r "/proc/$p/cmdline" ] || return 1
  tr '\0' '\n' <"/proc/$p/cmdline" 2>/dev/null | grep -xF "$1/conf/broker-$2.properties" >/dev/null || return 1
  echo "$p"
}
ids() { local f; for f in "$1"/conf/broker-*.properties; do [ -f "$f" ] || continue; f=${f##*broker-}; echo "${f%.properties}"; done; }

cmd_install() {
  [ -f "$home/.done-$version" ] && return
  need java openjdk-17-jre-headless; need mvn maven; need flock util-linux
  mkdir -p "$home"
  exec 9>"$home/.lock"; flock 9 # several test binaries may come at once
  [ -f "$home/.done-$version" ] && return
  rm -rf "$home/libs" "$home/kafka.jsa"; mkdir -p "$home/libs"
  cat >"$home/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version>
      <exclusions><exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion></exclusions></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
POM
  mvn -q -B -f "$home/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home/libs" >&2 || die "mvn could not fetch Kafka $version"
  # the archive: one run of a broker that dumps the classes it loaded when it exits
  local d=$home/cds port=$((15000 + RANDOM % 12000))
  rm -rf "$d"
  if (BROKER_EXTRA="-XX:ArchiveClassesAtExit=$home/kafka.jsa" cmd_start "$d" --port "$port") >/dev/null 2>&1; then STOP_WAIT=60 cmd_stop "$d"; fi
  cmd_destroy "$d"
  echo "$(java_path) $version" >"$home/kafka.jsa.of"
  [ -f "$home/kafka.jsa" ] || echo "kafka.sh: no class-data archive was made; brokers start slower without it" >&2
  touch "$home/.done-$version"
}

write_conf() { # DIR ID N BASE KEY=VALUE...
  local d=$1 i=$2 n=$3 base=$4 k voters=; shift 4
  for ((k = 1; k <= n; k++)); do voters+=${voters:+,}$k@127.0.0.1:$((base + 9 + k)); done
  {
    cat <<CONF
process.roles=broker,controller
node.id=$i
controller.quorum.voters=$voters
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:$((base + i - 1)),CONTROLLER://127.0.0.1:$((base + 9 + i))
advertised.listeners=PLAINTEXT://127.0.0.1:$((base + i - 1))
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$d/data/broker-$i
auto.create.topics.enable=false
default.replication.factor=$n
offsets.topic.replication.factor=$n
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$n
transaction.state.log.min.isr=$(((n + 1) / 2))
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$n
share.coordinator.state.topic.min.isr=$(((n + 1) / 2))
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.backoff.ms=200
log.retention.ms=-1
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
CONF
    for k in "$@"; do echo "$k"; done
  } >"$d/conf/broker-$i.properties"
}

launch() { # DIR ID: start one broker, do not wait
  local d=$1 i=$2 log=$1/log/broker-$2.log p k
  pid_of "$d" "$i" >/dev/null && die "broker $i already runs"
  for p in $(sed -n 's/^listeners=//p' "$d/conf/broker-$i.properties" | grep -oE '[0-9]+(,|$)' | tr -d ,); do
    # one that was killed has lost its name before its sockets: give it a moment
    for ((k = 0; k < 100; k++)); do
      (: <"/dev/tcp/127.0.0.1/$p") 2>/dev/null || break
      if [ ! -f "$log" ] || [ "$k" = 99 ]; then die "port $p is taken"; fi
      sleep 0.1
    done
  done
  touch "$log"; wc -c <"$log" >"$d/run/broker-$i.offset"
  # shellcheck disable=SC2046,SC2086
  setsid nohup java $(jvm_flags) ${BROKER_EXTRA:-} -Xms64m -Xmx"$heap" -Djava.awt.headless=true \
    -Dorg.slf4j.simpleLogger.log.state.change.logger=warn -Dorg.slf4j.simpleLogger.log.org.apache.kafka.storage.internals.log=warn \
    -Dorg.slf4j.simpleLogger.showDateTime=true "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS" \
    -cp "$(classpath)" kafka.Kafka "$d/conf/broker-$i.properties" >>"$log" 2>&1 </dev/null 9>&- &
  echo $! >"$d/run/broker-$i.pid"
}
await() { # DIR ID: until the broker says that it is up (it does so once it is registered and unfenced)
  local d=$1 i=$2 p log=$1/log/broker-$2.log from k
  p=$(<"$d/run/broker-$i.pid"); from=$(<"$d/run/broker-$i.offset")
  for ((k = 0; k < start_wait * 10; k++)); do
    # not grep -q: it leaves early, tail then dies of SIGPIPE, and pipefail turns the match into a miss
    tail -c "+$((from + 1))" "$log" | grep 'Kafka Server started' >/dev/null && return 0
    kill -0 "$p" 2>/dev/null || { tail -c "+$((from + 1))" "$log" | grep -E 'ERROR|FATAL|Exception|Error' | cut -c1-300 | head -n 20 >&2 || true; die "broker $i exited while starting; see $log"; }
    sleep 0.1
  done
  tail -n 20 "$log" >&2; die "broker $i not ready after ${start_wait}s; see $log"
}

cmd_start() { # DIR OPTIONS
  local d=$1 n=1 base=19092 i p extra=() pids=(); shift
  while [ $# -gt 0 ]; do case $1 in
    --brokers) n=$2; shift 2 ;; --port) base=$2; shift 2 ;;
    --set) extra+=("$2"); shift 2 ;; *) die "unknown option $1" ;;
  esac; done
  case $n in 1 | 3) ;; *) die "--brokers takes 1 or 3" ;; esac
  mkdir -p "$d"/{conf,data,run,log}
  if [ -z "$(ids "$d")" ]; then
    for ((i = 1; i <= n; i++)); do write_conf "$d" "$i" "$n" "$base" ${extra[@]+"${extra[@]}"}; done
    for ((i = 1; i <= n; i++)); do echo "127.0.0.1:$((base + i - 1))"; done | paste -sd, - >"$d/conf/bootstrap"
    for ((i = 1; i <= n; i++)); do
      tool kafka.tools.StorageTool format -t "$cluster" -c "$d/conf/broker-$i.properties" >"$d/log/format-$i.log" 2>&1 &
      pids+=($!)
    done
    for p in "${pids[@]}"; do wait "$p" || { cat "$d"/log/format-*.log >&2; die "formatting failed"; }; done
  fi
  for i in $(ids "$d"); do pid_of "$d" "$i" >/dev/null || launch "$d" "$i"; done
  for i in $(ids "$d"); do await "$d" "$i"; done
  echo "KAFKA_BOOTSTRAP=$(<"$d/conf/bootstrap")"
}
cmd_run() {
  trap 'kill_all "$d"; rm -rf "$d"' EXIT
  trap '' INT TERM HUP # the pipe decides
  cmd_start "$@"
  while read -r _; do :; done
}
cmd_stop() {
  # without a quorum of controllers a broker cannot leave in order: when only a minority runs, do not wait long for it
  local d=$1 i p k wait=${STOP_WAIT:-20} n=0 up=0; shift; local which=("$@")
  for i in $(ids "$d"); do n=$((n + 1)); if pid_of "$d" "$i" >/dev/null; then up=$((up + 1)); fi; done
  if [ $((up * 2)) -le "$n" ]; then wait=2; fi
  [ ${#which[@]} -gt 0 ] || mapfile -t which < <(ids "$d")
  for i in ${which[@]+"${which[@]}"}; do p=$(pid_of "$d" "$i") && kill -TERM "$p" 2>/dev/null || true; done
  for i in ${which[@]+"${which[@]}"}; do
    for ((k = 0; k < wait * 10; k++)); do pid_of "$d" "$i" >/dev/null || break; sleep 0.1; done
    if pid_of "$d" "$i" >/dev/null; then echo "kafka.sh: broker $i did not stop in ${wait}s, killing it" >&2; cmd_kill9 "$d" "$i"; fi
    rm -f "$d/run/broker-$i.pid"
  done
}
cmd_kill9() {
  local p; p=$(pid_of "$1" "$2") || die "broker $2 does not run"
  kill -KILL "$p"; while pid_of "$1" "$2" >/dev/null; do sleep 0.05; done; rm -f "$1/run/broker-$2.pid"
}
kill_all() { local i p; for i in $(ids "$1"); do if p=$(pid_of "$1" "$i"); then kill -KILL "$p" 2>/dev/null || true; fi; done; }
cmd_restart() { [ -f "$1/conf/broker-$2.properties" ] || die "no broker $2"; cmd_stop "$1" "$2"; launch "$1" "$2"; await "$1" "$2"; }
cmd_status() {
  local i p rc=0
  for i in $(ids "$1"); do if p=$(pid_of "$1" "$i"); then echo "broker $i pid $p rss $(awk '/VmRSS/{print int($2/1024)}' "/proc/$p/status") MiB"; else echo "broker $i down"; rc=1; fi; done
  return $rc
}
cmd_destroy() { kill_all "$1"; rm -rf "$1"; }

usage() { sed -n '2,/^set /{/^#/p}' "${BASH_SOURCE[0]}"; exit 2; }
[ $# -ge 1 ] || usage
c=$1; shift
case $c in
  install) cmd_install ;;
  tool) cmd_install; tool "$@" ;;
  start | run) [ $# -ge 1 ] || usage; cmd_install; mkdir -p "$1"; d=$(cd "$1" && pwd -P); shift; "cmd_$c" "$d" "$@" ;;
  stop | status | destroy) [ $# -ge 1 ] || usage; mkdir -p "$1"; d=$(cd "$1" && pwd -P); shift; "cmd_$c" "$d" "$@" ;;
  kill9 | restart) [ $# -eq 2 ] || usage; d=$(cd "$1" && pwd -P); "cmd_$c" "$d" "$2" ;;
  *) die "unknown command $c" ;;
esac
