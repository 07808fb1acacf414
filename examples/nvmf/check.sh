#!/bin/sh
# The target and its hosts in processes of their own, on the software device:
#
#     [PARTS=...] check.sh PROGRAMS [WRAPPER...]
#
# PROGRAMS is the folder of nvmf-target, nvmf-host and nvmf-hostile; WRAPPER runs each of them, such as
# "valgrind -q". The parts are: limits, hosts, faults, file, replicated, bounds, terminated, refused.
set -eu

programs=$1
shift
work=$(mktemp -d)
device=soft:nvmf-$$
target=
replica=
jobs=

ended() {
	status=$?
	if [ "$status" != 0 ]; then
		echo "failed with $status; the target:" >&2
		tail -n 100 "$work"/*.log "$work"/*/said "$work"/*/*.log "$work"/*/*/*.log >&2 || true
	fi
	# First what would start others.
	for left in $jobs $target $replica $(cat "$work/pids" "$work"/*/pids 2>/dev/null); do
		kill -9 "$left" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap ended EXIT
# Of a run that takes too long its logs tell where it waits, too.
trap 'exit 143' TERM INT HUP

# Waits until a log ($1) of a process ($3) has a line like $2: 2,400 times 50 ms at most.
says() {
	looks=0
	until grep -q "$2" "$work/$1.log" 2>"$work/none"; do
		kill -0 "$3"
		looks=$((looks + 1))
		if [ $looks = 2400 ]; then
			echo "$1.log does not have \"$2\"" >&2
			exit 1
		fi
		sleep 0.05
	done
}

serve() {
	# Not the line of the one before.
	: >"$work/target.log"
	"$@" "$programs/nvmf-target" -d "$device" $options 127.0.0.1 >"$work/target.log" 2>&1 &
	target=$!
	echo $target >>"$work/pids"
	says target " port " $target
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

# Ends a program of a part below, as it should: with nothing left, and within its bound, after which it would end
# with another status.
ends() {
	kill -CONT "$1"
	kill "$1"
	wait "$1"
}

# Hosts that take what they can get, each from an address of its own; and beside them an honest one.
hogs() {
	options="-m 16M"
	serve "$@"
	at=2
	for way in silent queues names deaf requests; do
		"$@" "$programs/nvmf-hog" -d "$device" -a 127.0.0.$at $way 127.0.0.1 >"$work/$way.log" &
		echo $! >>"$work/pids"
		eval "$way=$!"
		at=$((at + 1))
	done
	for way in silent queues names deaf requests; do
		eval "says $way ^holding \$$way"
	done
	# One host has two associations, and an address half of everything.
	grep "^holding 10 queues" "$work/queues.log"
	[ "$(sed -n 's/^holding \([0-9]*\) .*/\1/p' "$work/names.log")" -le 48 ]
	for address in 127.0.0.1 127.0.0.3 127.0.0.5; do
		# The last ones share an address with a hog.
		arguments="-c 100 -a $address -r 20" host check "$@"
	done
	says deaf "^ended after" $deaf
	grep "does not take a response" "$work/target.log"
	[ "$(sed -n 's/^ended after \([0-9]*\) ms.*/\1/p' "$work/deaf.log" | head -n 1)" -lt 14000 ]
	# It ends while they hold what they have.
	stop
	# Those of them that ask it again end by themselves.
	kill $silent $queues $names $deaf $requests 2>"$work/none" || true
}

# A pair of targets in folder $1, with hosts at port $2, and what the primary is given ($3).
pair() {
	name=$1 port=$2 given=$3
	folder=$work/$name
	shift 3
	mkdir "$folder"
	"$@" "$programs/nvmf-target" -d "$device" -p $((port + 1)) -m 4M --replica $((port + 2)) 127.0.0.1 \
		>"$folder/replica.log" 2>&1 &
	second=$!
	echo $second >>"$work/pids"
	says $name/replica " port $((port + 1))" $second
	"$@" "$programs/nvmf-target" -d "$device" -p $port -m 4M $given --replicate 127.0.0.1:$((port + 2)) 127.0.0.1 \
		>"$folder/target.log" 2>&1 &
	first=$!
	echo $first >>"$work/pids"
	says $name/target "^the replica is complete" $first
}

# A replica that is stopped ($2: STOP) or killed (KILL): a write waits for its deadline and not longer, reads go on, and
# the primary ends while writes wait.
gone() {
	way=$1 port=$2
	shift 2
	pair "$way" $port "" "$@"
	"$@" "$programs/nvmf-host" -d "$device" -p $port -i 8 wait 127.0.0.1 >"$folder/waited.log" &
	waiter=$!
	says $name/waited "^writing" $waiter
	kill -$way $second
	wait $waiter
	grep "^waited" "$folder/waited.log"
	[ "$(sed -n 's/^waited \([0-9]*\) ms.*/\1/p' "$folder/waited.log")" -lt 13000 ]
	"$@" "$programs/nvmf-host" -d "$device" -p $port -c 1000 write 127.0.0.1 >"$folder/written.log" &
	waiter=$!
	says $name/written "^connected" $waiter
	sleep 0.3
	ends $first
	# It got no response: that is what it says.
	wait $waiter
	grep "^acknowledged 0" "$folder/written.log"
	[ $way = KILL ] || ends $second
}

# The like of one that goes on alone.
alone() {
	port=$1
	shift
	pair alone $port --alone "$@"
	kill -STOP $second
	"$@" "$programs/nvmf-host" -d "$device" -p $port -c 100 -w measure 127.0.0.1
	ends $first
	ends $second
}

# Silent links with a replica do not keep its primary away. Another primary waits, and each program ends as it should.
links() {
	"$@" "$programs/nvmf-hog" -d "$device" -p 4501 links 127.0.0.1 >"$work/links.log" &
	hog=$!
	echo $hog >>"$work/pids"
	options="-m 4M --replicate 127.0.0.1:4501"
	for first in primary replica; do
		: >"$work/replica.log"
		"$@" "$programs/nvmf-target" -d "$device" -p 4500 -m 4M --replica 4501 127.0.0.1 >"$work/replica.log" 2>&1 &
		replica=$!
		echo $replica >>"$work/pids"
		says replica " port 4500" $replica
		says links "^holding" $hog
		sleep 1
		begun=$(date +%s)
		serve "$@"
		says target "^the replica is complete" $target
		took=$(($(date +%s) - begun))
		echo "complete within $took s"
		[ $took -lt 10 ]
		if [ $first = primary ]; then
			"$@" "$programs/nvmf-target" -d "$device" -p 4502 $options 127.0.0.1 >"$work/other.log" 2>&1 &
			other=$!
			echo $other >>"$work/pids"
			says other "another primary" $other
			ends $other
			stop
			says replica "^hosts may come" $replica
			ends $replica
		else
			ends $replica
			says target "^the replica is gone" $target
			stop
		fi
	done
	kill $hog || true
	replica=
}

# A replica without descriptors left says so, waits meanwhile, and goes on when there are some again.
descriptors() {
	: >"$work/replica.log"
	"$@" "$programs/nvmf-target" -d "$device" -p 4510 -m 4M --replica 4511 127.0.0.1 >"$work/replica.log" 2>&1 &
	replica=$!
	echo $replica >>"$work/pids"
	says replica " port 4510" $replica
	# One more, whatever it has inherited: a descriptor gets the lowest number that is free.
	free=0
	while [ -e /proc/$replica/fd/$free ]; do
		free=$((free + 1))
	done
	prlimit --pid $replica --nofile=$((free + 1)):4096
	options="-m 4M --replicate 127.0.0.1:4511"
	serve "$@"
	says replica "^no link can be accepted.*ulimit -n" $replica
	before=$(ticks $replica)
	sleep 2
	used=$(($(ticks $replica) - before))
	echo "$used ticks of the processor in 2 s"
	[ $used -lt 100 ]
	prlimit --pid $replica --nofile=4096:4096
	says target "^the replica is complete" $target
	stop
	ends $replica
	replica=
}

# Of the processor, in hundredths of a second.
ticks() {
	awk '{ print $14 + $15 }' /proc/$1/stat
}

# Waits on other computers have deadlines, and other hosts go on meanwhile. What waits does so at the same time.
bounds() {
	: >"$work/pids"
	jobs=
	for job in "gone STOP 4600" "gone KILL 4610" "alone 4620" links descriptors; do
		(
			# Its own files.
			work=$work/${job%% *}${job##* } device=$device-${job##* }
			mkdir -p "$work"
			: >"$work/pids"
			$job "$@" >"$work/said" 2>&1
		) &
		jobs="$jobs $!"
	done
	hogs "$@"
	for job in $jobs; do
		wait $job
	done
	jobs=
}

# SIGTERM of a target that nobody uses, with a host that does nothing, with one that is at work, and with one that is
# stopped meanwhile; of a primary whose replica is not there, and of both while one copies to the other. The part bounds
# has a replica that is stopped, killed, or in use by another primary.
terminated() {
	options="-m 16M"
	serve "$@"
	stop
	options="-m 128M --replicate 127.0.0.1:4521"
	serve "$@"
	stop
	for first in primary replica; do
		: >"$work/replica.log"
		"$@" "$programs/nvmf-target" -d "$device" -p 4520 -m 128M --replica 4521 127.0.0.1 >"$work/replica.log" 2>&1 &
		replica=$!
		echo $replica >>"$work/pids"
		says replica " port 4520" $replica
		serve "$@"
		says replica "^a primary" $replica
		[ $first = replica ] || stop
		ends $replica
		[ $first = primary ] || stop
	done
	replica=
	options="-m 16M"
	for connected in queues measure stopped; do
		serve "$@"
		# Not the lines of the one before.
		: >"$work/host.log"
		if [ $connected = queues ]; then
			"$@" "$programs/nvmf-hog" -d "$device" queues 127.0.0.1 >"$work/host.log" &
		else
			"$@" "$programs/nvmf-host" -d "$device" -c 100000000 -i 32 measure 127.0.0.1 >"$work/host.log" 2>&1 &
		fi
		user=$!
		echo $user >>"$work/pids"
		says host "^holding\|^connected" $user
		if [ $connected = stopped ]; then
			# Another host goes on.
			kill -STOP $user
			arguments="-c 50" host check "$@"
		fi
		stop
		[ $connected != stopped ] || kill -CONT $user
		[ $connected != queues ] || kill $user || true
		# What had no response has none: its connection has ended.
		wait $user || true
		[ $connected = queues ] || grep "the connection has ended" "$work/host.log"
	done
}

# Refuses an allocation ($3) of one of the targets ($1: alone, primary, replica), or it and all behind it ($2: one,
# after). The target ends with an error, or a host is rejected and the next one is served; SIGTERM ends it.
refuse() {
	role=$1 behind=$2
	folder=$work/$role-$behind-$3 device=$device-$role-$behind-$3
	refusing="env REFUSE_AT=$3"
	shift 3
	mkdir "$folder"
	[ "$behind" = one ] || refusing="$refusing REFUSE_AFTER=1"
	given=
	if [ "$role" != alone ]; then
		of_replica=$refusing
		[ "$role" = replica ] || of_replica=
		$of_replica "$@" "$programs/nvmf-target-refuse" -d "$device" -p 4701 -m 1M --replica 4702 127.0.0.1 \
			>"$folder/replica.log" 2>&1 &
		replica=$!
		echo $replica >>"$folder/pids"
		serves replica 4701 $replica
		if [ -n "$ended" ]; then
			replica=
			return
		fi
		given="--replicate 127.0.0.1:4702"
	fi
	of_target=$refusing
	[ "$role" != replica ] || of_target=
	$of_target "$@" "$programs/nvmf-target-refuse" -d "$device" -m 1M $given 127.0.0.1 >"$folder/target.log" 2>&1 &
	target=$!
	echo $target >>"$folder/pids"
	serves target 4420 $target
	if [ -z "$ended" ]; then
		served=
		for try in 1 2; do
			# Without any memory no host is served.
			if timeout 60 "$programs/nvmf-host" -d "$device" -c 5 check 127.0.0.1 >"$folder/host.log" 2>&1; then
				served=1
			fi
			[ -z "$served$([ "$behind" = one ] || echo 1)" ] || break
		done
		[ "$behind" = after ] || [ -n "$served" ]
		ends $target
	fi
	target=
	if [ -n "$replica" ]; then
		ends $replica
		replica=
	fi
	grep -q "^refused: " "$folder"/*.log || : >"$folder/none"
}

# Waits until a program ($1, $3) says that it serves a port ($2), or has ended: with an error that says why.
serves() {
	looks=0
	ended=
	touch "$folder/$1.log"
	until grep -q " port $2\$" "$folder/$1.log"; do
		if ! kill -0 "$3" 2>"$folder/gone"; then
			ended=0
			wait "$3" || ended=$?
			[ "$ended" = 1 ]
			grep -q "^nvmf-target: " "$folder/$1.log"
			return
		fi
		looks=$((looks + 1))
		[ $looks -lt 2400 ]
		sleep 0.05
	done
}

# Each allocation is refused, until none is left: some at a time, because most of their time is waits.
refused() {
	if [ ! -x "$programs/nvmf-target-refuse" ]; then
		echo "left out: nvmf-target-refuse needs glibc"
		return
	fi
	for walk in "alone one" "alone after" "primary one" "replica one"; do
		nth=0
		# All that are behind one are refused behind the one before it, too.
		step=$([ "${walk#* }" = one ] && echo 1 || echo 5)
		until ls "$work/${walk% *}-${walk#* }"-*/none >"$work/none" 2>&1; do
			jobs=
			for in_batch in 1 2 3 4 5 6 7 8; do
				(refuse $walk $nth "$@") &
				jobs="$jobs $!"
				nth=$((nth + step))
			done
			for job in $jobs; do
				wait $job
			done
			jobs=
		done
		echo "$walk: each of $nth refused"
	done
}

# The table of README.md has the limits of the program.
limits() {
	"$@" "$programs/nvmf-target" --limits >"$work/limits"
	while IFS=: read -r row limit of; do
		if ! grep -F "| $row |" "$(dirname "$0")/README.md" | grep -Fwq "$limit"; then
			echo "README.md does not say of $row: $limit for$of" >&2
			exit 1
		fi
	done <"$work/limits"
}

for part in ${PARTS:-limits hosts faults file replicated bounds terminated refused}; do
	$part "$@"
done
