#!/bin/sh
# latency.sh PERF ITERATIONS ROUNDS DEVICE GID_INDEX ADDRESS: messages of 8 bytes between two processes,
# on two cores and one device: by bellwire's perf, which prints a JSON document, and by rdma-core's
# perftest, which prints a line of figures; in turns. First WRITE, then READ, then SEND.
set -u
perf=$1 iterations=$2 rounds=$3 device=$4 index=$5 address=$6
port=18700

ours() {
	"$perf" --device "$device" --listen latency &
	listener=$!
	until grep -q '@bellwire-examples/.*/perf/latency$' /proc/net/unix; do
		kill -0 $listener || return
		sleep 0.1
	done
	"$perf" lat --device "$device" --op "$1" --size 8 --iters "$iterations" \
		--no-inline --signal-every 1 --json --connect latency &&
		wait $listener
}

theirs() {
	test="ib_$1_lat -d $device -x $index -s 8 -n $iterations -F -p $port"
	sh xtask/src/vm/pair.sh $port "taskset -c 1 $test >/dev/null" "taskset -c 0 $test $address"
}

round=0
while [ $round -lt "$rounds" ]; do
	round=$((round + 1))
	for operation in write read send; do
		port=$((port + 1))
		ours $operation && theirs $operation || exit
	done
done
