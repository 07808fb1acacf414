#!/bin/sh
# The target and its hosts in processes of their own, on the software device:
#
#     [PARTS=...] check.sh PROGRAMS [WRAPPER...]
#
# PROGRAMS is the folder of nvmf-target, nvmf-host and nvmf-hostile; WRAPPER runs each of them, such as
# "valgrind -q". The parts are: hosts, faults, file.
set -eu

programs=$1
shift
work=$(mktemp -d)
device=soft:nvmf-$$
target=

ended() {
	status=$?
	if [ "$status" != 0 ]; then
		echo "failed with $status; the target:" >&2
		tail -n 100 "$work/target.log" >&2
	fi
	[ -z "$target" ] || kill "$target" || true
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

for part in ${PARTS:-hosts faults file}; do
	$part "$@"
done
