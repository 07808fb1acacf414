#!/bin/busybox sh
# The guest's first program, started by its kernel: makes the RDMA devices, then runs the host's
# programs in the host's file system, one after the other, as the scripts in the run's folder say.
#
# What fails ends it, and the guest with it; the trace on the console shows what it was.
set -eux
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox --install -s /bin
trap 'poweroff -f' EXIT

# busybox needs these for itself.
mkdir -p /dev /proc /sys /tmp /raw /host
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys

# No addresses but those that are given: they would change the GID tables while programs run.
echo 1 >/proc/sys/net/ipv6/conf/default/addr_gen_mode
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
# Both ends of the cable are here.
echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
echo 0 >/proc/sys/net/ipv4/conf/default/rp_filter

for module in /modules/*.ko; do
	insmod "$module"
done

# The host's files. Two mounts of them, so that a workspace below /tmp or /run can be shown there.
share="-t 9p -o trans=virtio,version=9p2000.L,msize=262144"
mount $share,ro,cache=loose root /raw
# Of another architecture, the programs are not the host's: what is shown of the host is the workspace.
foreign=
if grep -q system /sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag; then
	foreign=1
	mount $share,ro,cache=loose system /host
else
	mount -o bind /raw /host
fi
mount -t devtmpfs dev /host/dev
mount -t proc proc /host/proc
mount -t sysfs sys /host/sys
mount -t tmpfs tmp /host/tmp
mount -t tmpfs run /host/run
mkdir -p /host/dev/pts /host/dev/shm /host/dev/hugepages
mount -t devpts pts /host/dev/pts
mount -t tmpfs shm /host/dev/shm
mount -t hugetlbfs huge /host/dev/hugepages
chmod 1777 /host/tmp /host/dev/shm
ln -s /proc/self/fd /host/dev/fd
ln -s /proc/self/fd/0 /host/dev/stdin
ln -s /proc/self/fd/1 /host/dev/stdout
ln -s /proc/self/fd/2 /host/dev/stderr

# The folder of this run: what to do, and how it ended.
run=/host/run/bellwire-vm
mkdir "$run"
mount $share,cache=none run "$run"
for needed in workspace target; do
	dir=$(cat "$run/$needed")
	if [ -n "$foreign" ] || [ ! -d "/host$dir" ]; then
		mkdir -p "/host$dir"
		mount -o bind "/raw$dir" "/host$dir"
	fi
done
work=$(cat "$run/work")
mkdir -p "/host$work"
mount $share,cache=mmap work "/host$work"

# rxe0 on dummy0, which comes with its module and leads nowhere; rxe1 and rxe2 on the ends of a cable
# that can be cut (`ip link set veth1 down`).
on_host() {
	# busybox would run its own program of that name.
	chroot /host /usr/bin/env "$@"
}
on_host ip link set lo up
on_host ip link add veth1 type veth peer name veth2
on_host ip link set dummy0 address 02:00:0a:4d:00:01
on_host ip link set veth1 address 02:00:0a:4e:00:01
on_host ip link set veth2 address 02:00:0a:4e:00:02
on_host ip addr add 10.77.0.1/24 dev dummy0
on_host ip addr add 10.78.0.1/24 dev veth1
on_host ip addr add 10.78.0.2/24 dev veth2
for link in dummy0 veth1 veth2; do
	on_host ip link set "$link" up multicast on arp on
done
on_host rdma link add rxe0 type rxe netdev dummy0
on_host rdma link add rxe1 type rxe netdev veth1
on_host rdma link add rxe2 type rxe netdev veth2
until [ "$(cat /sys/class/infiniband/rxe*/ports/1/state | grep -c ACTIVE)" = 3 ]; do
	sleep 0.1
done

echo 64 >/proc/sys/vm/nr_hugepages
ulimit -l unlimited

port() {
	until file=$(grep -lx "$1" /sys/class/virtio-ports/*/name); do
		sleep 0.1
	done
	echo "/dev/$(basename "$(dirname "$file")")"
}
stdout=$(port stdout)
stderr=$(port stderr)
# Pipes, because programs may open their standard output again, which such a port refuses.
mkfifo /tmp/stdout /tmp/stderr
cat /tmp/stdout >"$stdout" &
cat /tmp/stderr >"$stderr" &
exec 3>/tmp/stdout 4>/tmp/stderr

# What has the host's root: nothing but the host's programs.
left_behind() {
	ls -l /proc/[0-9]*/root 2>/dev/null | sed -n 's|.* /proc/\([0-9]*\)/root -> /host$|\1|p'
}

echo >"$run/up"
number=0
while [ -e "$run/$number.sh" ]; do
	status=0
	setsid chroot /host /bin/sh "/run/bellwire-vm/$number.sh" </dev/null >&3 2>&4 3>&- 4>&- || status=$?
	echo "$status" >"$run/$number.status"
	while left=$(left_behind) && [ -n "$left" ]; do
		kill -9 $left || true
	done
	number=$((number + 1))
done
exec 3>&- 4>&-
wait
