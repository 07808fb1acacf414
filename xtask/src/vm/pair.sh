#!/bin/sh
# pair.sh PORT SERVER CLIENT: runs two command lines that talk to each other, the second as soon as
# the first listens at the TCP port. Succeeds if both do.
set -u
port=$(printf ':%04X' "$1")
echo "server: $2"
echo "client: $3"
sh -c "exec $2" &
server=$!
until grep -q "$port [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6; do
	if ! kill -0 "$server" 2>/dev/null; then
		wait "$server"
		echo "pair.sh: the server ended with status $? before it listened" >&2
		exit 1
	fi
	sleep 0.1
done
sh -c "exec $3"
client=$?
wait "$server"
server=$?
echo "server ended with $server, client with $client"
[ "$server" = 0 ] && [ "$client" = 0 ]
