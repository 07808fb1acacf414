#!/bin/sh
# Linux' NVMe host against the target, in the guest of `cargo xtask vm`, as root:
#
#     sh examples/nvmf/guest.sh PROGRAMS [PART...]
#
# PROGRAMS is the folder of nvmf-target and nvmf-host. The parts are: disk, faults, hosts, reverse, replicated,
# compare. Lines that begin with
# "report: " are results. Any step that fails ends it.
set -eu

here=$PWD
programs=$(realpath "$1")
shift
nqn=nqn.2014-08.org.nvmexpress:bellwire
# Seconds without a keep-alive after which either end gives the other up: no load of the machine takes so long. Steps
# wait for what has to come without a limit of their own; the guest has one.
alive=120
work=/tmp/nvmf
mkdir -p $work/mnt
target=
replica=

ended() {
	status=$?
	[ "$status" = 0 ] || {
		echo "failed with $status; the target, and the kernel:"
		tail -n 100 $work/*.log
		dmesg | tail -n 40
	} >&2
	umount -q $work/mnt || true
	nvme disconnect -n $nqn >/dev/null 2>&1 || true
	for left in $target $replica; do
		kill -CONT "$left" || true
		kill "$left" || true
	done
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

# Waits until a program has written this ($2) to its log ($1).
says() {
	until grep -q "$2" "$work/$1"; do
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
	nvme connect -t rdma -s 4420 -n $nqn -k $alive --reconnect-delay=1 --ctrl-loss-tmo=1800 "$@" >/dev/null
	disk=
	until [ -b "$disk" ]; do
		sleep 0.1
		disk=$(nvme list | sed -n 's|^\(/dev/nvme[^ ]*\) .*bellwire nvmf target.*|\1|p')
	done
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

# What the kernel has warned of since the last mark: each once, without its numbers, and without what it says
# of any machine that is busy.
busy='long keepalive RTT\|^hrtimer: interrupt took\|clocksource\|^sched: RT throttling\|^rcu: INFO'
mark() {
	echo "<4>nvmf: $1" >/dev/kmsg
}
warnings() {
	dmesg --level=emerg,alert,crit,err,warn >$work/dmesg
	grep -q "nvmf: $1" $work/dmesg
	sed "1,/nvmf: $1/d; s/^\[[^]]*\] //; s/[0-9][0-9]*/N/g" $work/dmesg | grep -v "$busy" | sort -u
}

# The kernel has warned of nothing but what it also says when its own host uses its own target, and when any
# program asks for devices: rxe asks dummy0 for its speed, which has none.
no_warnings() {
	warnings "$1" >$work/warnings
	[ -e $work/known ] || kernel_warnings >/dev/null
	grep -vxFf $work/known $work/warnings >$work/new || return 0
	echo "the kernel warned:"
	cat $work/new
	exit 1
}
kernel_warnings() {
	kernel_target
	mark kernel
	ibv_devinfo >/dev/null
	nvme discover -t rdma -a 10.77.0.1 -s 4421 >/dev/null
	connect_kernel
	fio --name=kernel --filename="$theirs" --direct=1 --ioengine=libaio --bs=4k --size=1m --rw=randrw --iodepth=8
	nvme disconnect -n $kernel
	warnings kernel >$work/known
	kernel_target_ends
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
		--allow_mounted_write=1 --rate_iops=$rate --number_ios=500 &
	fio=$!
	until [ "$(writes)" -gt $((before + 100)) ]; do
		sleep 0.1
	done
	cp -r examples/nvmf "$work/mnt/$name" &
	copy=$!
	"$@"
	wait $fio
	wait $copy
	took=$(longest)
	echo "report: nvmf: $name: all verified; the longest request took $took ms"
	# Far more than a recovery takes: the target's log and the kernel's have the reason.
	[ "$took" -lt 20000 ] || {
		tail -n 100 $work/target.log
		dmesg | tail -n 100
	}
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
	sleep "$1"
	for end in veth1 veth2; do
		tc qdisc del dev $end root
	done
}

# The target does not poll for a second.
paused() {
	kill -STOP $target
	sleep 1
	kill -CONT $target
}

faults() {
	mark faults
	# The first completion queue has too few entries for what is in flight.
	serve -f $work/blocks -s 64M --overrun 12 10.78.0.2
	connect -a 10.78.0.2 -w 10.78.0.1
	mkfs.ext4 -q "$disk" 32M
	mount "$disk" $work/mnt
	depth=64 rate=100000
	for attempt in 1 2 3 4 5 6 7 8 9 10; do
		through "completion queue overrun, attempt $attempt" paused
		grep "^CQ_ERR" $work/target.log && break
	done
	grep -q "^CQ_ERR" $work/target.log
	depth=8 rate=200
	through "target killed and started again" killed 10.78.0.2
	through "target stopped for 3 s" stopped
	through "cable cut for 3 s" cut 3
	umount $work/mnt
	fsck.ext4 -fn "$disk" >/dev/null
	mount "$disk" $work/mnt
	rmdir $work/mnt/lost+found
	for copy in $work/mnt/*; do
		diff -r examples/nvmf "$copy"
	done
	umount $work/mnt
	disconnect
	warnings faults
	stop
}

# The kernel's own target, on a disk in memory, at port 4421.
config=/sys/kernel/config
kernel=nqn.2014-08.org.nvmexpress:kernel
kernel_target() {
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
	cd "$here"
}
# Linux' host uses it: the block device.
connect_kernel() {
	before=$(ls /dev/nvme*n1 2>/dev/null || true)
	nvme connect -t rdma -a 10.77.0.1 -s 4421 -n $kernel -k $alive >/dev/null
	theirs=
	until [ -b "$theirs" ]; do
		theirs=$(ls /dev/nvme*n1 2>/dev/null | grep -vxF "$before" || true)
		sleep 0.1
	done
}
kernel_target_ends() {
	rm $config/nvmet/ports/1/subsystems/$kernel
	rmdir $config/nvmet/ports/1
	rmdir $config/nvmet/subsystems/$kernel/namespaces/1 $config/nvmet/subsystems/$kernel
	rmdir $config/nullb/nb0
}

# This folder's host with it.
reverse() {
	mark reverse
	kernel_target
	host="$programs/nvmf-host -n $kernel -p 4421"
	$host -c 500 --lenient check 10.77.0.1 | grep "^verified"
	$host -c 500 -i 1 measure 10.77.0.1 | grep "^reads"
	kernel_target_ends
	no_warnings reverse
	echo "report: nvmf: nvmf-host verified what it wrote to the kernel's target"
}

# Requests a second, and how long one takes in us, by fio: of the target, then of the kernel's.
rates() {
	for device in "$disk" "$theirs"; do
		fio --name=compare --filename="$device" --direct=1 --ioengine=libaio --bs=4k --size=32m \
			--rw="$1" --iodepth="$2" --number_ios="$3" --output-format=terse --terse-version=3
	done | awk -F ';' -v write="$(echo "$1" | grep -c write)" \
		'{ printf "%s %s ", write ? $49 : $8, write ? $81 : $40 }'
}

# The target against the kernel's, both on disks in memory, in turns. With --icount a second is 1e9
# instructions, of everything that runs: host, target and devices.
compare() {
	kernel_target
	serve --quiet -m 64M 10.77.0.1
	connect -a 10.77.0.1
	connect_kernel
	for command in randread randwrite; do
		for depth in 1 32; do
			# Once before it counts.
			rates $command $depth 200 >/dev/null
			for turn in 1 2 3; do
				echo "$(rates $command $depth ${REQUESTS:-1500})"
			done | awk -v what="$command of 4 KiB, depth $depth" '{
				ours += $1 / 3; took += $2 / 3; theirs += $3 / 3; took_theirs += $4 / 3
			}
			END {
				printf "report: nvmf: %s: %.0f a second, %.0f us; of the kernel %.0f, %.0f us; ", what, ours, took, theirs, took_theirs
				printf "1e9 by these: %.0f against %.0f: %.3f\n", 1e9 / ours, 1e9 / theirs, theirs / ours
			}'
		done
	done
	nvme disconnect -n $kernel >/dev/null
	disconnect
	stop
	kernel_target_ends
}

# Eight hosts at once, one of which sends nonsense.
hosts() {
	mark hosts
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
	no_warnings hosts
	stop
	echo "report: nvmf: eight hosts at once, one of which sent nonsense"
}

# The replica is stopped, and killed; then the primary is killed, and the replica has what was acknowledged.
replicated() {
	second() {
		: >$work/replica.log
		"$programs/nvmf-target" -m 16M -p 4430 --replica 4431 10.77.0.1 >$work/replica.log 2>&1 &
		replica=$!
		says replica.log " port 4430"
	}
	second
	serve -m 16M --replicate 10.77.0.1:4431 10.77.0.1
	connect -a 10.77.0.1
	says target.log "^the replica is complete"
	pieces="--name=replicated --size=6m --bs=4k --iodepth=8"
	verify $pieces --rate_iops=200 &
	fio=$!
	sleep 1
	kill -STOP $replica
	sleep 1
	kill -CONT $replica
	kill -9 $replica
	wait $replica || true
	second
	wait $fio
	says replica.log "^the copy is complete"
	kill -9 $target
	wait $target || true
	target=
	says replica.log "^hosts may come"
	disconnect
	connect -a 10.77.0.1 -s 4430
	verify $pieces --verify_only
	disconnect
	kill $replica
	wait $replica
	replica=
	echo "report: nvmf: replica stopped, killed, and left alone: it has what was acknowledged"
}

for part in "${@:-disk}"; do
	begun=$(date +%s)
	$part
	echo "nvmf: $part took $(($(date +%s) - begun)) s"
done
trap - EXIT
rm -rf $work
