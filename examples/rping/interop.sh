#!/bin/sh
# interop.sh: plays rping and datagrams against rdma-core's rping, udaddy and mckey, as server and as
# client. Succeeds if both sides do, each time.
#
#   cargo build --release -p bellwire-examples --example rping --example datagrams
#   cargo xtask vm -- sh examples/rping/interop.sh
set -u
programs=${BELLWIRE_EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
ours=$programs/rping
datagrams=$programs/datagrams
here=10.77.0.1
port=18700
failed=0
log=$(mktemp)

# listens: whether somebody does, at $port
listens() {
	rdma resource show cm_id | grep "state LISTEN" | grep -q ":$port "
}

# play NAME SERVER CLIENT PATTERN: the second as soon as the first listens; the pattern is in what they
# say
play() {
	: >"$log"
	timeout 30 $2 >>"$log" 2>&1 &
	server=$!
	until listens || ! kill -0 $server 2>/dev/null; do
		sleep 0.1
	done
	client=0
	timeout 30 $3 >>"$log" 2>&1 || client=$?
	wait $server
	server=$?
	if [ $server = 0 ] && [ $client = 0 ] && grep -q "$4" "$log"; then
		echo "ok      $1"
	else
		cat "$log"
		echo "FAILED  $1: the server ended with $server, the client with $client"
		failed=$((failed + 1))
	fi
	port=$((port + 1))
}

for size in 64 4000 65000; do
	options="-S $size -C 10"
	last="rdma-ping-9: JKL"
	play "rping of $size: our server" "$ours -s -v -a $here -p $port" \
		"rping -c -V -a $here -p $port $options" "server ping data: $last"
	play "rping of $size: our client" "rping -s -v -a $here -p $port -S $size" \
		"$ours -c -V -a $here -p $port $options" "server ping data: $last"
	play "rping of $size: both ours" "$ours -s -v -a $here -p $port" \
		"$ours -c -V -a $here -p $port $options" "server ping data: $last"
	play "rping of $size: its own queue pair, our server" "$ours -s -v -a $here -p $port" \
		"rping -c -q -V -a $here -p $port $options" "server ping data: $last"
done

# udaddy has one port.
port=7174
play "udaddy: our client" "udaddy -b $here" "$datagrams ask $here" "return status 0"
port=7174
play "udaddy: our server" "$datagrams serve -b $here" "udaddy -s $here" "return status 0"
port=7174
play "udaddy: both ours" "$datagrams serve -b $here" "$datagrams ask $here" "sending replies"

# group NAME RECEIVER SENDER: senders wait for 3 s by themselves
group() {
	: >"$log"
	timeout 30 $2 >>"$log" 2>&1 &
	receiver=$!
	sender=0
	timeout 30 $3 >>"$log" 2>&1 || sender=$?
	wait $receiver
	receiver=$?
	if [ $receiver = 0 ] && [ $sender = 0 ] && grep -q "receiving data transfers" "$log"; then
		echo "ok      $1"
	else
		cat "$log"
		echo "FAILED  $1: the receiver ended with $receiver, the sender with $sender"
		failed=$((failed + 1))
	fi
}

mckey="mckey -m 239.77.1.2 -b $here"
ours="$datagrams group 239.77.1.2 -b $here"
group "mckey: our receiver" "$ours" "$mckey -s"
group "mckey: our sender" "$mckey" "$ours --send"
rm "$log"
echo "$failed failed"
[ $failed = 0 ]
