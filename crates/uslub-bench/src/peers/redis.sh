# A server on the socket $1 and $2 requests of each kind to it.
set -e
redis-server --port 0 --unixsocket "$1" --save '' --appendonly no > /dev/null &
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    [ -S "$1" ] && break
    sleep 0.05
done
redis-benchmark -s "$1" -q -n "$2" -c 8 -P 16 -r 100000 -d 100 -t set,get,lpush,sadd,hset,zadd > /dev/null
redis-cli -s "$1" shutdown nosave
wait
