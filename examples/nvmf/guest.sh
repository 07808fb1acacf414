#!/bin/sh
# Linux' NVMe host against the target, in the guest of `cargo xtask vm`, as root:
#
#     sh examples/nvmf/guest.sh PROGRAMS [PART...]
#
# PROGRAMS is the folder of nvmf-target and nvmf-host. The parts are: disk, faults, hosts, reverse. Lines that begin with
# "report: " are results. Any step that fails ends it.
set -eu

here=$PWD
programs=$(realpath "$1")
shift
nqn=nqn.2014-08.org.nvmexpress:bellwire
work=/tmp/nvmf
mkdir -p $work/mnt
target=

ended() {
	status=$?
	[ "$status" = 0 ] || {
		echo "failed with $status; the target, and the kernel:"
		cat $work/target.log
		dmesg | tail -n 40
	} >&2
	umount -q $work/mnt || true
	nvme disconnect -n $nqn >/dev/null 2>&1 || true
	[ -z "$target" ] || kill -CONT "$target" || true
	[ -z "$target" ] || kill "$target" || true
}
trap ended EXIT

# Starts the target, and waits until it listens.
serve() {
	# Not the line of the one before.
	: >$work/target.log
	"$programs/nvmf-target" "$@" >$work/target.log 2>&1 &
	target=$!
	until grep -q "^nqn.* port " $work/target.log; do
		kill -0 $target
		sleep 0.1
	done
}

# Ends it, and sees that it has freed everything: it would say what is left.
stop() {
	kill $target
	wait $target
	target=
}

# The block device of the target's namespace, when it is there.
connect() {
	nvme connect -t rdma -s 4420 -n $nqn -k 5 --reconnect-delay=1 --ctrl-loss-tmo=120 "$@" >/dev/null
	for attempt in $(seq 100); do
		disk=$(nvme list | sed -n 's|^\(/dev/nvme[^ ]*\) .*bellwire nvmf target.*|\1|p')
		[ -b "$disk" ] && return
		sleep 0.1
	done
	echo "the disk does not appear" >&2
	exit 1
}

disconnect() {
	nvme disconnect -n $nqn | grep "disconnected 1 controller"
}

# Runs what has to fail, and to say why.
fails() {
	said=$1
	shift
	if "$@" >$work/said 2>&1; then
		echo "this should have failed: $*" >&2
		exit 1
	fi
	grep -i "$said" $work/said
}

# Whether the kernel has warned since the last mark. rxe asks dummy0 for its speed again and again, and a
# busy machine is slow.
mark() {
	echo "<4>nvmf: $1" >/dev/kmsg
}
no_warnings() {
	dmesg --level=emerg,alert,crit,err,warn >$work/warnings
	grep -q "nvmf: $1" $work/warnings
	warnings=$(sed "1,/nvmf: $1/d" $work/warnings | grep -v -e "speed is unknown" -e "long keepalive RTT" || true)
	[ -z "$warnings" ] || {
		echo "the kernel warned: $warnings" >&2
		exit 1
	}
}

verify() {
	fio --output=$work/fio --filename="$disk" --direct=1 --ioengine=libaio --rw=randwrite \
		--verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@"
}

disk() {
	mark disk
	serve -m 96M 10.77.0.1
	nvme discover -t rdma -a 10.77.0.1 -s 4420 | grep "subnqn: *$nqn"
	connect -a 10.77.0.1
	nvme id-ctrl "$disk" | grep -e "^mn *: bellwire nvmf target" -e "^cntrltype *: 1"
	nvme id-ns "$disk" | grep "^nsze *: 0x30000"
	nvme list-ns "$disk" | grep "0]:0x1"
	nvme effects-log "$disk" >/dev/null
	nvme smart-log "$disk" | grep "available_spare_threshold"
	nvme get-feature -f 7 "$disk" | grep "0x0*10001"
	nvme write-zeroes -s 0 -c 15 "$disk"
	echo "compare" | nvme write -s 8 -c 0 -z 512 "$disk"
	echo "compare" | nvme compare -s 8 -c 0 -z 512 "$disk"
	echo "compere" >$work/other
	fails "compare failure" nvme compare -s 8 -c 0 -z 512 -d $work/other "$disk"
	nvme dsm -d -s 8 -b 1 "$disk"
	fails "lba out of range" nvme read -s 0x30000 -c 0 -z 512 "$disk"

	verify --size=256k --bs=512 --iodepth=1 --name=one \
		--name=many --offset=8m --size=2m --bs=4k --iodepth=32 \
		--name=mixed --offset=16m --size=3m --bsrange=512-128k --iodepth=8 \
		--name=large --offset=32m --size=8m --bs=1m --iodepth=4
	echo "report: nvmf: fio verified 512 B to 1 MiB, depth 1 to 32"

	mkfs.ext4 -q "$disk"
	mount "$disk" $work/mnt
	cp -r include examples/nvmf $work/mnt
	sqlite3 $work/mnt/base "PRAGMA journal_mode=wal; CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB);
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		INSERT INTO t SELECT i, randomblob(500) FROM n; UPDATE t SET b = zeroblob(400) WHERE a % 7 = 0;
		PRAGMA wal_checkpoint(TRUNCATE);" >/dev/null
	db_bench --benchmarks=fillrandom,overwrite,readrandom,verifychecksum --num=1000 --value_size=400 \
		--sync=0 --use_direct_io_for_flush_and_compaction=1 --db=$work/mnt/rocks >$work/rocks 2>&1
	umount $work/mnt
	fsck.ext4 -fn "$disk" >/dev/null
	mount "$disk" $work/mnt
	diff -r include $work/mnt/include
	diff -r examples/nvmf $work/mnt/nvmf
	[ "$(sqlite3 $work/mnt/base 'PRAGMA integrity_check; SELECT count(*) FROM t')" = "ok
1000" ]
	db_bench --benchmarks=readrandom,verifychecksum --num=1000 --use_existing_db=1 \
		--db=$work/mnt/rocks >>$work/rocks 2>&1
	[ "$(grep -c "^verifychecksum" $work/rocks)" = 2 ]
	umount $work/mnt
	echo "report: nvmf: ext4, SQLite and RocksDB found everything again"
	disconnect
	no_warnings disk
	stop
}

# The longest time that a request took, in ms, of what fio has written.
longest() {
	sed -n 's/.*"max" : \([0-9]*\).*/\1/p' $work/fio | sort -n | tail -n 1 | awk '{ print int($1 / 1e6) }'
}

# The writes that have gone out to the target so far.
writes() {
	cat /sys/class/nvme/nvme*/nvme*n*/stat | awk '{ sum += $5 } END { print sum }'
}

# Writes some of the disk, and a file system on another part, while the fault ($2...) happens; reads it
# back and compares.
through() {
	name=$1
	shift
	before=$(writes)
	verify --output-format=json --name="$name" --offset=40m --size=8m --bs=4k --iodepth=$depth \
		--allow_mounted_write=1 --rate_iops=$rate --number_ios=1000 &
	fio=$!
	until [ "$(writes)" -gt $((before + 100)) ]; do
		sleep 0.1
	done
	cp -r examples/nvmf "$work/mnt/$name" &
	copy=$!
	"$@"
	wait $fio
	wait $copy
	echo "report: nvmf: $name: all verified; the longest request took $(longest) ms"
}

killed() {
	kill -9 $target
	wait $target || true
	sleep 1
	serve -f $work/blocks "$@"
}
stopped() {
	kill -STOP $target
	sleep 3
	kill -CONT $target
}
cut() {
	for end in veth1 veth2; do
		tc qdisc add dev $end root netem loss 100%
	done
	sleep 3
	for end in veth1 veth2; do
		tc qdisc del dev $end root
	done
}

faults() {
	# The first completion queue has too few entries for what is in flight.
	serve -f $work/blocks -s 64M --overrun 12 10.78.0.2
	connect -a 10.78.0.2 -w 10.78.0.1
	mkfs.ext4 -q "$disk" 32M
	mount "$disk" $work/mnt
	depth=64 rate=100000
	for attempt in 1 2 3 4 5; do
		through "completion queue overrun, attempt $attempt" true
		grep "^CQ_ERR" $work/target.log && break
	done
	grep -q "^CQ_ERR" $work/target.log
	depth=8 rate=200
	through "target killed and started again" killed 10.78.0.2
	through "target stopped for 3 s" stopped
	through "cable cut for 3 s" cut
	umount $work/mnt
	fsck.ext4 -fn "$disk" >/dev/null
	mount "$disk" $work/mnt
	rmdir $work/mnt/lost+found
	for copy in $work/mnt/*; do
		diff -r examples/nvmf "$copy"
	done
	umount $work/mnt
	disconnect
	stop
}

# The kernel's own target, and this folder's host.
reverse() {
	config=/sys/kernel/config
	kernel=nqn.2014-08.org.nvmexpress:kernel
	mountpoint -q $config || mount -t configfs config $config
	mkdir $config/nullb/nb0
	echo 64 >$config/nullb/nb0/size
	echo 1 >$config/nullb/nb0/memory_backed
	echo 1 >$config/nullb/nb0/power
	mkdir $config/nvmet/subsystems/$kernel
	cd $config/nvmet/subsystems/$kernel
	echo 1 >attr_allow_any_host
	mkdir namespaces/1
	echo -n /dev/nb0 >namespaces/1/device_path
	echo 1 >namespaces/1/enable
	mkdir $config/nvmet/ports/1
	cd $config/nvmet/ports/1
	echo rdma >addr_trtype
	echo ipv4 >addr_adrfam
	echo 10.77.0.1 >addr_traddr
	echo 4421 >addr_trsvcid
	ln -s $config/nvmet/subsystems/$kernel subsystems/
	cd $here
	host="$programs/nvmf-host -n $kernel -p 4421"
	$host -c 500 --lenient check 10.77.0.1 | grep "^verified"
	$host -c 500 -i 1 measure 10.77.0.1 | grep "^reads"
	rm $config/nvmet/ports/1/subsystems/$kernel
	rmdir $config/nvmet/ports/1
	rmdir $config/nvmet/subsystems/$kernel/namespaces/1 $config/nvmet/subsystems/$kernel
	rmdir $config/nullb/nb0
	echo "report: nvmf: nvmf-host verified what it wrote to the kernel's target"
}

# Eight hosts at once, one of which sends nonsense.
hosts() {
	serve --quiet -m 64M 10.77.0.1
	connect -a 10.77.0.1
	"$programs/nvmf-hostile" -k -c 2000 10.77.0.1 >$work/hostile &
	others=$!
	for host in 1 2 3 4 5 6; do
		"$programs/nvmf-host" -c 300 -i 4 measure 10.77.0.1 >/dev/null &
		others="$others $!"
	done
	verify --name=beside --size=2m --bs=4k --iodepth=8
	for other in $others; do
		wait $other
	done
	cat $work/hostile
	disconnect
	stop
	echo "report: nvmf: eight hosts at once, one of which sent nonsense"
}

for part in "${@:-disk}"; do
	$part
done
trap - EXIT
rm -rf $work
