#!/bin/sh
# What the guest promises to the programs that run in it; the trace ends where one is broken.
set -eux

[ -f Cargo.toml ]
if touch Cargo.toml; then
	exit 1
fi
for dir in /tmp /run /dev/shm "$BELLWIRE_VM_WORK"; do
	echo probe >"$dir/probe"
	rm "$dir/probe"
done
[ "$(ulimit -l)" = unlimited ]
[ "$(cat /proc/sys/vm/nr_hugepages)" = 64 ]

for device in rxe0 rxe1 rxe2; do
	ibv_devinfo -d "$device"
done

# The cable: both ports follow it.
wait_for() {
	for device in rxe1 rxe2; do
		until grep "$1" "/sys/class/infiniband/$device/ports/1/state"; do
			sleep 0.1
		done
	done
}
ip link set veth1 down
wait_for DOWN
ip link set veth1 up
wait_for ACTIVE
