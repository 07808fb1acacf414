#!/bin/sh
# The target and its hosts in processes of their own, on the software device:
#
#     [PARTS=...] check.sh PROGRAMS [WRAPPER...]
#
# PROGRAMS is the folder of nvmf-target, nvmf-host and nvmf-hostile; WRAPPER runs each of them, such as
# "valgrind -q". The parts are: hosts, faults, file, replicated.
set -eu

programs=$1
shift
work=$(mktemp -d)
device=soft:nvmf-$$
target=
replica=

ended() {
	status=$?
	if [ "$status" != 0 ]; then
		echo "failed with $status; the target:" >&2
		tail -n 100 "$work/target.log" "$work/replica.log" >&2 || true
	fi
	for left in $target $replica; do
		kill "$left" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap ended EXIT

serve() {
	# Not the line of the one before.
	: >"$work/target.log"
	"$@" "$programs/nvmf-target" -d "$device" $options 127.0.0.1 >"$work/target.log" 2>&1 &
	target=$!
	until grep -q " port " "$work/target.log"; do
		kill -0 $target
		sleep 0.1
	done
}

# It ends as it should: with nothing left.
stop() {
	kill $target
	wait $target
	target=
}

host() {
	command=$1
	shift
	"$@" "$programs/nvmf-host" -d "$device" $arguments "$command" 127.0.0.1
}

hosts() {
	options="-m 16M -t 2"
	serve "$@"
	arguments="-c 200" host check "$@"
	# One host is measured while another one sends nonsense.
	arguments="-c 1000 -i 8" host measure "$@" &
	measured=$!
	"$@" "$programs/nvmf-hostile" -d "$device" -c ${NONSENSE:-4000} 127.0.0.1
	wait $measured
	arguments="-c 200 -i 32" host check "$@"
	stop
}

faults() {
	# Queues that fail under load: all hosts are served again.
	for fault in cq-err@500 srq-err@500 qp-fatal@3; do
		options="-m 16M --fault $fault"
		serve "$@"
		"$@" "$programs/nvmf-hostile" -d "$device" -c 1500 127.0.0.1
		arguments="-c 100" host check "$@"
		stop
		# Of a queue pair that is gone there is no event: its requests were flushed.
		case $fault in
		cq-err*) said="^CQ_ERR" ;;
		srq-err*) said="^SRQ_ERR" ;;
		*) said="^QP_FATAL\|ends: Flushed" ;;
		esac
		grep -m 1 "$said" "$work/target.log"
	done
	# A device that fails ends the target, with the reason.
	options="-m 16M --fault device-fatal@200"
	serve "$@"
	if arguments="-c 200" host check "$@" 2>/dev/null || wait $target; then
		echo "the target goes on without a device" >&2
		exit 1
	fi
	target=
	# Either event comes first.
	grep "DEVICE_FATAL\|device .* is being removed" "$work/target.log"
}

file() {
	options="-f $work/blocks -s 16M -b 4096"
	serve "$@"
	arguments="-c 200" host check "$@"
	arguments="-c 200 -i 1 -s 131072 -w" host measure "$@"
	stop
}

# Waits until this program's log ($1) says something.
says() {
	until grep -q "$2" "$work/$1.log"; do
		kill -0 $3
		sleep 0.05
	done
}

# Blocks on two targets: one is killed, then the other, and nothing that was acknowledged is lost.
replicated() {
	second() {
		: >"$work/replica.log"
		"$@" "$programs/nvmf-target" -d "$device" -p 4430 -f "$work/second" -s 4M --replica 4431 127.0.0.1 \
			>"$work/replica.log" 2>&1 &
		replica=$!
		says replica " port 4430" $replica
	}
	acknowledged() {
		sed -n 's/^acknowledged //p' "$work/written.log"
	}
	second "$@"
	# Its link fails once, and recovers.
	options="-m 4M --replicate 127.0.0.1:4431 --fault link@150"
	serve "$@"
	arguments="-c 100 -i 16" host check "$@"
	grep "^link: QP_FATAL" "$work/target.log"
	says target "^the replica is complete" $target
	# It is its primary's alone.
	if arguments="-p 4430 -c 1" host verify "$@" 2>"$work/refused"; then
		echo "a replica serves hosts" >&2
		exit 1
	fi
	grep "rejects its admin queue: 6" "$work/refused"
	# The replica is killed: writes wait until it is there again.
	: >"$work/written.log"
	arguments="-c 300" host write "$@" >"$work/written.log" &
	writes=$!
	says written "^writing" $writes
	kill -9 $replica
	wait $replica || true
	says target "^the replica is gone" $target
	second "$@"
	says replica "^the copy is complete" $replica
	wait $writes
	arguments="-c $(acknowledged)" host verify "$@"
	# The primary is killed: the replica has everything, and is a target from then on.
	: >"$work/written.log"
	arguments="-c 1000000" host write "$@" >"$work/written.log" &
	writes=$!
	says written "^writing" $writes
	sleep 0.2
	kill -9 $target
	wait $target || true
	wait $writes
	says replica "^hosts may come" $replica
	options="-m 4M --replicate 127.0.0.1:4431"
	# One that has nothing does not become its primary.
	serve "$@"
	says target "^the replica is gone: it has the copy" $target
	arguments="-p 4430 -c $(acknowledged)" host verify "$@"
	grep "^hosts come" "$work/replica.log"
	# What was the primary is refused, whatever it has.
	says target "^the replica is gone: it serves hosts itself" $target
	stop
	kill $replica
	wait $replica
	replica=
}

for part in ${PARTS:-hosts faults file replicated}; do
	$part "$@"
done
