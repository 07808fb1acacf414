#!/bin/sh
# rxe.sh: moves a file over Soft-RoCE: a completion queue overruns, at either end, and the cable is cut
# and mended. Succeeds if it arrives whole each time, and the mover says what it recovered from.
#
#   cargo build --release -p bellwire-examples --example mover
#   cargo xtask vm -- sh examples/mover/rxe.sh
set -u
mover=${BELLWIRE_EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}/mover
folder=$(mktemp -d)
from=$folder/from to=$folder/to said=$folder/said
size=$((32 << 20))
failed=0
head -c $size /dev/urandom >"$from"

# judge NAME STATUS RECOVERY...: of the move that has just ended
judge() {
	name=$1 right=$2
	shift 2
	cat "$said"
	[ "$right" = 0 ] && cmp "$from" "$to" || right=1
	for recovery in "$@"; do
		grep -q "$recovery" "$said" || right=1
	done
	if [ $right = 0 ]; then
		echo "ok      $name"
	else
		echo "FAILED  $name"
		failed=$((failed + 1))
	fi
	rm -f "$to"
}

for end in sender receiver; do
	option=$([ $end = sender ] && echo --fault || echo --fault-receiver)
	timeout 120 "$mover" "$from" --output "$to" --device rxe0 $option cq-err@30% >"$said" 2>&1
	judge "overrun at the $end" $? "$end: recovered from .*CQ_ERR"
done

# What is on the way lies beside the output, under another name.
moved() {
	stat -c %s "$folder"/.mover-* 2>/dev/null || echo 0
}

# One end of the cable goes down, the receiver's or the sender's: both are cut off.
for sender in rxe2 rxe1; do
	receiver=$([ $sender = rxe1 ] && echo rxe2 || echo rxe1)
	timeout 120 "$mover" "$from" --output "$to" --device $sender --peer-device $receiver >"$said" 2>&1 &
	mover_pid=$!
	until [ "$(moved)" -gt $((size / 8)) ] || ! kill -0 $mover_pid 2>/dev/null; do
		:
	done
	ip link set veth1 down
	at=$(moved)
	sleep 1.5
	echo "down at $at of $size bytes; $(moved) when it comes up again"
	ip link set veth1 up
	wait $mover_pid
	status=$?
	[ "$at" -gt 0 ] && [ "$at" -lt $size ] || status="not cut in the midst"
	judge "cable cut, sent from $sender" "$status" "sender: recovered from .*PORT_ERR" \
		"receiver: recovered from .*PORT_ERR"
done

rm -r "$folder"
echo "$failed failed"
[ $failed = 0 ]
