#!/bin/sh
# interop.sh [DEVICE GID_INDEX ADDRESS]: plays each game against rdma-core's program, as server and as
# client, polling and sleeping. Succeeds if both sides do, each time, and count the right bytes.
#
#   cargo build --release -p bellwire-examples --example pingpong
#   cargo xtask vm -- sh examples/pingpong/interop.sh rxe0 1 10.77.0.1
set -u
device=${1:-rxe0} index=${2:-1} address=${3:-10.77.0.1}
ours=${BELLWIRE_EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}/pingpong
iters=20
port=18600
failed=0

# game NAME SERVER CLIENT: of messages of $size
game() {
	port=$((port + 1))
	options="-d $device -g $index -n $iters -p $port"
	said=$(timeout 60 sh xtask/src/vm/pair.sh $port "$2 $options" "$3 $options $address" 2>&1)
	status=$?
	right=$(echo "$said" | grep -c "^$((size * iters * 2)) bytes in ")
	# What their server says of data that is wrong; it ends with 0 all the same.
	if [ $status = 0 ] && [ "$right" = 2 ] && ! echo "$said" | grep -q "invalid data"; then
		echo "ok      $1"
	else
		echo "$said"
		echo "FAILED  $1"
		failed=$((failed + 1))
	fi
}

for kind in rc uc ud srq; do
	theirs=ibv_${kind}_pingpong
	for events in "" " -e"; do
		# A datagram is a packet.
		for size in 64 $([ $kind = ud ] && echo 1024 || echo 20000); do
			with="$events -s $size"
			game "$kind$with: our server" "$ours -t $kind$with" "$theirs$with"
			game "$kind$with: our client" "$theirs -c$with" "$ours -t $kind$with"
		done
	done
	game "$kind$with: both ours" "$ours -t $kind$with" "$ours -t $kind$with"
done
echo "$failed failed"
[ $failed = 0 ]
