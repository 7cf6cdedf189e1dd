# deviceshare turn: waits for the turn of this pod's group, then becomes CMD; the turn ends when CMD ends.
#
#   curl -fsS $DEVICESHARE_AGENT/turn.sh | sh -s -- [--priority N] [--timeout D] [--slice D] [--signal NAME] -- CMD...
#
# POSIX sh, /proc, mkfifo, sleep, and curl or wget. The shell that runs this waits for "go" and becomes CMD, so signals,
# exit status and process are CMD's own. Beside it runs a companion: it keeps the connection to the node's agent by
# which the turn is held, and ends CMD when the lease runs out without a heartbeat (docs/turns.md). A ticker wakes the
# companion once a second, and takes its place when it is killed.
#
# File descriptors: 3 events, both ways; 4 events, to write; 5 and 6 the two ends of "go". They are closed by exec only:
# after a redirection of a function's the shell keeps a copy, and a reader that waits for the end of a pipe never sees it.

turn_say() { printf 'turn: %s\n' "$*" >&2; }

turn_usage() {
    cat >&2 <<'TEXT'
Usage: curl -fsS $DEVICESHARE_AGENT/turn.sh | sh -s -- [FLAG...] -- CMD [ARGUMENT...]

Waits until no other program of this pod's group has the turn, then runs CMD.

  --priority N   higher ones are next, then older ones; from -1000 to 1000 [0]
  --timeout D    give up after waiting so long, with exit status 124 [never]
  --slice D      when CMD has run so long and others wait, ask it to end [never]
  --signal NAME  by this signal [TERM]

D is in seconds, or with a unit: 90, 90s, 10m, 2h, 1d.
Exit status: CMD's; 124 timed out, 125 failed or refused, 126 or 127 CMD can't be run.
TEXT
}

turn_seconds() { # $1: a flag, $2: its value; sets $seconds
    unit=1
    case $2 in
    *s) unit=1 ;; *m) unit=60 ;; *h) unit=3600 ;; *d) unit=86400 ;;
    esac
    seconds=${2%[smhd]}
    case $seconds in
    '' | *[!0-9]* | 0?* | ????????*) turn_say "$1 has to be a time such as 90, 90s, 10m, 2h or 1d, not $2"; exit 125 ;;
    esac
    seconds=$((seconds * unit))
}

# The clock in hundredths of a second: the kernel's, the same for all containers of a node, never set.
turn_clock() { read -r now skip </proc/uptime; now=${now%.*}${now#*.}; }

# Reads /proc/$1/stat (proc_pid_stat(5)): sets state, group, tty, started. Fails where there is no such process.
turn_look() {
    state='' group='' tty='' threads='' started=''
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086 # split at blanks
    set -- $stat
    state=$1 group=$3 tty=$5 threads=${18:-} started=${20:-}
}

# Whether the process of the turn lives. What can't be read lives.
turn_alive() {
    turn_look "$cmd" || return 1
    [ "${started:-$born}" = "$born" ] || return 1
    case $state in
    Z* | X*) [ "${threads:-2}" -gt 1 ] ;; # its first thread may have ended before the others
    esac
}

# Runs in the foreground until "go", then becomes CMD.
turn_become() {
    exec 6>&-
    trap 'exit 143' TERM
    trap 'exit 130' INT
    trap 'exit 129' HUP
    word=''
    read -r word <&5 || { turn_say "the watching processes of this turn were killed"; exit 125; }
    [ "$word" = go ] || exit "$word"
    exec 5<&-
    case $- in
    *s*) exec </dev/null ;; # what is left of this script is not for CMD
    esac
    # shellcheck disable=SC2086 # words
    exec $prefix "$@"
    exit 126
}

turn_fetch() { # a subshell: becomes the client, whose PID it tells first
    read -r self skip </proc/self/stat
    echo "fetcher $self"
    unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY
    exec </dev/null 2>/dev/null 3<&- 4>&- 6>&-
    case $client in
    curl) exec curl -q -sN --connect-timeout @SILENCE@ "$1" ;;
    wget) exec wget -qO- -t 1 -T @SILENCE@ "$1" ;;
    busybox) exec wget -qO- "$1" ;;
    esac
}

turn_relay() { # $1: the number of the attempt
    exec >&4 2>/dev/null 3<&- 4>&- 6>&-
    while read -r line; do echo "$1 $line" || exit; done # nobody reads that any more
    echo "$1 end"
}

turn_connect() {
    turn_disconnect
    attempt=$((attempt + 1))
    turn_clock
    request=$now heard=$now
    query="token=$token&pid=$cmd&started=$born&priority=$priority&slice=$slice&held=$held"
    query="$query&waited=$(((now - arrival) / 100))"
    turn_fetch "$DEVICESHARE_AGENT/turn?$query" | turn_relay "$attempt" &
    relay=$!
}

turn_disconnect() {
    [ -z "$fetcher" ] || kill -KILL "$fetcher" 2>/dev/null
    [ -z "$relay" ] || kill -KILL "$relay" 2>/dev/null
    # Reaped here: process 1 of a container may not do it.
    [ -z "$fetcher" ] || wait "$relay" 2>/dev/null
    fetcher='' relay=''
}

# A process that writes "T tick" each second. When nobody reads that any more, the companion was killed: it becomes the
# companion. It can't know when the last heartbeat came, so it gives itself little time to hear the next.
turn_tick() {
    exec 3<&-
    trap '' HUP INT QUIT TERM PIPE
    while sleep @RETRY@; do
        echo "T tick" 2>/dev/null >&4 || break
    done
    exec 4>&-
    fetcher='' relay='' ticker=''
    turn_clock
    deadline=$((now + @SILENCE@00))
    turn_companion
}

turn_ticker() {
    [ -z "$ticker" ] || { kill -KILL "$ticker" && wait "$ticker"; } 2>/dev/null
    turn_tick &
    ticker=$!
    ticked=$now
}

turn_pipe() { # opens 3 and 4: a pipe with a name for a moment, where there is no other way to one
    for place in "${TMPDIR:-/tmp}" /dev/shm /tmp /var/tmp /run .; do
        pipe=$place/deviceshare-turn-$token-$1
        if (umask 077 && mkfifo "$pipe") 2>/dev/null; then return 0; fi
    done
    turn_say "mkfifo failed in /tmp and /dev/shm: set TMPDIR to a directory that can be written to"
    return 1
}

turn_signal() { # $1: a signal, $2: to the process group as well, if CMD has one of its own
    turn_look "$cmd"
    if [ "$2" ] && [ "$group" = "$cmd" ] && [ "$prefix" ]; then
        kill "-$1" "-$cmd" 2>/dev/null
    else
        kill "-$1" "$cmd" 2>/dev/null
    fi
}

turn_left() { # Whether anything in CMD's process group still runs; the dead that nobody reaped don't.
    for each in /proc/[0-9]*; do
        turn_look "${each#/proc/}" && [ "$group" = "$cmd" ] || continue
        case $state in Z* | X*) ;; *) return 0 ;; esac
    done
    return 1
}

# What CMD left running in its own process group ends with it.
turn_sweep() {
    case $prefix in *setsid) ;; *) return 0 ;; esac
    turn_left && kill -TERM "-$cmd" 2>/dev/null || return 0
    for second in @KILLS@; do
        sleep 1
        turn_left || return 0
    done
    kill -KILL "-$cmd" 2>/dev/null
}

turn_release() {
    turn_disconnect
    turn_ticker
    attempt=$((attempt + 1))
    for second in 1 2 3; do
        turn_fetch "$DEVICESHARE_AGENT/turn/over?token=$token" | turn_relay "$attempt" &
        relay=$!
        while read -r number word rest <&3; do
            case "$number $word" in
            "$attempt fetcher") fetcher=$rest ;;
            "$attempt over") turn_disconnect; return ;;
            "$attempt end" | "T tick") break ;;
            esac
        done
        [ "$word" = tick ] || read -r number word rest <&3
        turn_disconnect
    done
}

# Sets the time at which CMD has to have heard again, from the connection's age and the lease, both in milliseconds.
turn_extend() {
    case $1$2 in '' | *[!0-9]*) return 1 ;; esac
    [ $((request + $1 / 10 + $2 / 10)) -le "$deadline" ] || deadline=$((request + $1 / 10 + $2 / 10))
}

turn_finish() { # $1: the exit status for the shell that waits, "" where it isn't there any more
    [ -z "$1" ] || echo "$1" >&6 2>/dev/null
    exec 6>&-
    [ "$attempt" = 0 ] || turn_release # even if it has only waited: the turn may be on its way
    [ -z "$ticker" ] || { kill -KILL "$ticker" && wait "$ticker"; } 2>/dev/null
    exit 0
}

# The companion of $cmd. Knows from $held whether it was told to go.
turn_companion() {
    exec 5<&- >/dev/null
    trap '' HUP INT QUIT TERM PIPE
    attempt=0
    turn_pipe "$held$now" || turn_finish 125
    exec 3<>"$pipe" 4>"$pipe"
    rm -f "$pipe"
    killing=0 yielded=no told='' next=0
    turn_clock
    [ "$held" = 1 ] || deadline=0
    turn_ticker
    turn_connect
    while :; do
        number='' word='' rest=''
        read -r number word rest <&3
        turn_clock
        if ! turn_alive; then
            [ "$held" = 0 ] || turn_sweep
            turn_finish ''
        fi
        case $number in
        T) ticked=$now ;;
        "$attempt") turn_hear "$word" "$rest" ;;
        esac
        turn_watch
    done
}

turn_hear() { # $1: a word from the agent, $2: the rest of the line
    [ "$1" = fetcher ] || [ "$1" = end ] || heard=$now
    case $1 in
    fetcher) fetcher=$2 ;;
    end) fetcher='' relay='' next=$((now + 10)) ;; # at the next tick, unless that is at once
    wait)
        said=${2#* }
        [ "$said" = "$told" ] || turn_say "$said"
        told=$said
        ;;
    turn)
        # shellcheck disable=SC2086 # two numbers
        turn_extend ${2:-} || return 0
        # A client that was stopped may hear so late that another has the turn.
        if [ "$held" = 0 ] && [ "$now" -lt "$deadline" ]; then
            held=1
            turn_ticker # which knows, should it have to take over
            echo go >&6 2>/dev/null
        fi
        ;;
    yield)
        [ "$held" = 1 ] && [ "$yielded" = no ] || return 0
        yielded=yes
        turn_say "others wait, and the slice of $slice s is over: sending $signal to CMD"
        kill "-$signal" "$cmd" 2>/dev/null
        ;;
    gone | refused)
        if [ "$held" = 0 ]; then
            turn_say "$2"
            turn_finish 125
        fi
        [ "$1" = gone ] || return 0
        [ "$killing" != 0 ] || turn_say "$2; ending CMD"
        deadline=$now
        ;;
    *)
        [ "$1 $2" = "$told" ] || turn_say "the agent answered: $1 $2"
        told="$1 $2"
        ;;
    esac
}

# What is due by now.
turn_watch() {
    [ $((now - ticked)) -lt @SILENCE@00 ] || turn_ticker
    if [ "$held" = 0 ] && [ "$timeout" ] && [ $((now - arrival)) -ge "${timeout}00" ]; then
        turn_say "gave up after waiting $timeout s for the turn"
        turn_finish 124
    fi
    if [ "$held" = 1 ] && [ "$killing" = 0 ] && [ "$now" -ge "$deadline" ]; then
        [ "$deadline" = "$heard" ] || turn_say "lost the agent at $DEVICESHARE_AGENT, and with it the turn: ending CMD"
        killing=$((now + @KILL@00))
        turn_signal TERM group
        kill -CONT "$cmd" 2>/dev/null
    elif [ "$killing" != 0 ] && [ "$now" -ge "$killing" ]; then
        turn_signal KILL group
    fi
    if [ $((now - heard)) -ge @SILENCE@00 ] && [ "$next" = 0 ]; then next=$now; fi
    if [ "$next" != 0 ] && [ "$now" -ge "$next" ]; then
        next=0
        turn_connect
    fi
}

# Process 1 of a container can't be killed from inside of it, so there CMD runs as a child, and gets what 1 gets.
turn_as_init() {
    turn_become "$@" &
    cmd=$!
    turn_look "$cmd" && born=$started
    turn_companion &
    companion=$!
    exec 5<&- 6>&-
    for name in HUP INT QUIT TERM USR1 USR2 WINCH; do
        sent=$name
        # Without job control a child ignores these two, unless env can change that.
        [ "$defaults" ] || case $name in INT | QUIT) sent=TERM ;; esac
        # shellcheck disable=SC2064 # now
        trap "kill -$sent $cmd 2>/dev/null" "$name"
    done
    while :; do
        wait "$cmd" 2>/dev/null
        status=$?
        turn_alive || break
    done
    wait "$companion" 2>/dev/null
    exit "$status"
}

turn_main() {
    priority=0 timeout='' slice=0 signal=TERM
    while [ $# -gt 0 ]; do
        case $1 in
        --priority | --timeout | --slice | --signal)
            [ $# -gt 1 ] || { turn_say "$1 needs a value"; exit 125; }
            turn_flag "$1" "$2"
            shift
            ;;
        --*=*) turn_flag "${1%%=*}" "${1#*=}" ;;
        -h | --help) turn_usage; exit 0 ;;
        --) shift; break ;;
        -*) turn_say "there is no flag $1; see --help"; exit 125 ;;
        *) break ;;
        esac
        shift
    done
    [ $# -gt 0 ] || { turn_usage; exit 125; }
    turn_tools "$1"
    read -r token </proc/sys/kernel/random/uuid
    read -r cmd skip </proc/self/stat
    turn_look "$cmd"
    born=$started
    turn_pipe go || exit 125
    exec 6<>"$pipe" 5<"$pipe"
    rm -f "$pipe"
    turn_clock
    arrival=$now held=0 fetcher='' relay='' ticker=''
    [ "$cmd" != 1 ] || turn_as_init "$@"
    [ "$group" != "$cmd" ] || prefix='' # its group is the companion's as well
    (turn_companion &)
    turn_become "$@"
}

turn_flag() {
    case $1 in
    --priority)
        case ${2#-} in
        '' | *[!0-9]* | ?????*) turn_say "--priority has to be a whole number from -1000 to 1000, not $2"; exit 125 ;;
        esac
        priority=$2
        ;;
    --timeout) turn_seconds "$@"; timeout=$seconds ;;
    --slice) turn_seconds "$@"; slice=$seconds ;;
    --signal)
        signal=${2#SIG}
        case $signal in
        '' | *[!A-Z0-9]*) turn_say "--signal has to be a signal's name, such as TERM or USR1, not $2"; exit 125 ;;
        esac
        for name in $(kill -l); do
            [ "${name#SIG}" != "$signal" ] || return 0
        done
        turn_say "there is no signal $2"
        exit 125
        ;;
    *) turn_say "there is no flag $1; see --help"; exit 125 ;;
    esac
}

turn_tools() { # $1: CMD; sets client, prefix and defaults
    [ "$DEVICESHARE_AGENT" ] || {
        turn_say "DEVICESHARE_AGENT is not set: it is in containers of pods that deviceshare's webhook admitted"
        exit 125
    }
    command -v "$1" >/dev/null || { turn_say "$1: not found"; exit 127; }
    if command -v curl >/dev/null; then
        client=curl
    elif command -v wget >/dev/null; then
        case $(wget --help 2>&1) in *BusyBox*) client=busybox ;; *) client=wget ;; esac
    else
        turn_say "neither curl nor wget is in this image"
        exit 125
    fi
    prefix='' defaults=''
    # A group of its own, so that what CMD starts ends with it; with a terminal, that would take the terminal away.
    turn_look $$
    if [ "$tty" = 0 ] && command -v setsid >/dev/null; then prefix=setsid; fi
    if [ $$ = 1 ] && env --default-signal=INT,QUIT true 2>/dev/null; then
        defaults=yes prefix="env --default-signal=INT,QUIT $prefix"
    fi
}

turn_main "$@"
exit 125
