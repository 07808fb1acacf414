#!/bin/sh
# rxe.sh: clients of an echo server over Soft-RoCE, by librdmacm. Succeeds if every message comes back to
# every client, and a client is notified when nobody listens, and when the server is killed.
#
#   cargo build --release -p bellwire-examples --example echo
#   cargo xtask vm -- sh examples/echo/rxe.sh
set -u
echo=${BELLWIRE_EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}/echo
said=$(mktemp)
failed=0

# judge NAME RIGHT: of what has just been done
judge() {
	if [ "$2" = 0 ]; then
		echo "ok      $1"
	else
		cat "$said"
		echo "FAILED  $1"
		failed=$((failed + 1))
	fi
}

# serve ARGUMENT...: a server in the background, once it listens
serve() {
	: >"$said"
	timeout 120 "$echo" -d rdma "$@" >"$said" 2>&1 &
	server=$!
	until grep -q listening "$said" || ! kill -0 $server 2>/dev/null; do
		sleep 0.1
	done
}

# On rxe0, by its address.
serve -c 8
timeout 60 "$echo" -d rdma 10.77.0.1 -c 8 -n 100 -s 4096
client=$?
wait $server
judge "eight clients" $(($? + client))
grep -q '800 messages of 8 clients sent back' "$said"
judge "all messages are sent back" $?

! timeout 60 "$echo" -d rdma 10.77.0.1 -p 9 >"$said" 2>&1 && grep -q REJECTED "$said"
judge "nobody listens" $?

serve
# timeout passes the signal on.
(sleep 2 && kill $server) &
timeout 60 "$echo" -d rdma 10.77.0.1 -n 1000000000 >"$said.client" 2>&1
status=$?
cat "$said.client"
[ $status = 1 ]
judge "a server that is killed" $?

rm -f "$said" "$said.client"
echo "$failed failed"
[ $failed = 0 ]
