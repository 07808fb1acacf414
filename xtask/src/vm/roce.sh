#!/bin/sh
# roce.sh DIR: hw/roce's examples, built in DIR, against rdma-core's on Soft-RoCE: pingpong on each transport, either as
# server, and rping, which connects by the communication manager, and whose server reads and writes memory. The kernel's
# module has the UDP port in its network namespace, so the examples get another, at the end of a cable of its own.
set -eu
examples=$1
unshare -n sleep 1000 &
elsewhere=$!
trap 'rdma link delete rxe3; ip link delete veth3; kill $elsewhere' EXIT
until [ "$(readlink /proc/$elsewhere/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do
	sleep 0.1
done
there() {
	nsenter -t "$elsewhere" -n "$@"
}
ip link add veth3 type veth peer name veth4
ip link set veth3 address 02:00:0a:4f:00:01
ip link set veth4 address 02:00:0a:4f:00:02
ip link set veth4 netns "$elsewhere"
ip addr add 10.79.0.1/24 dev veth3
ip link set veth3 up
there ip addr add 10.79.0.2/24 dev veth4
there ip link set veth4 up
rdma link add rxe3 type rxe netdev veth3
until grep ACTIVE /sys/class/infiniband/rxe3/ports/1/state &&
	grep -q 0a4f:0001 /sys/class/infiniband/rxe3/ports/1/gids/1; do
	sleep 0.1
done

# Without retries a lost packet ends the game, so these games are short and have three tries.
again() {
	"$@" || "$@" || "$@"
}
for game in "rc 10000 20" "uc 3000 10" "ud 1000 10"; do
	# shellcheck disable=SC2086
	set -- $game
	try=again
	[ "$1" != rc ] || try=
	pingpong="timeout 120 ibv_$1_pingpong -d rxe3 -g 1 -s $2 -n $3"
	roce="timeout 120 $examples/roce_pingpong 10.79.0.2 -t $1 -s $2 -n $3"
	$try sh xtask/src/vm/pair.sh 18515 "$pingpong" "nsenter -t $elsewhere -n $roce --peer 10.79.0.1"
	$try there sh xtask/src/vm/pair.sh 18515 "$roce" "nsenter -t 1 -n $pingpong 10.79.0.2"
done

# The server may not listen yet: the kernel rejects the request then (reason 8).
timeout 120 rping -s -a 10.79.0.1 -C 5 -S 5000 &
tries=0
until there timeout 60 "$examples/roce_rping" 10.79.0.2 10.79.0.1 -C 5 -S 5000; do
	tries=$((tries + 1))
	[ $tries -lt 60 ]
	sleep 0.5
done
wait $! || true
